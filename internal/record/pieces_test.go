package record

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// The checksum is the same whatever of it is known, and a wrong piece is noticed.
func TestPieces(t *testing.T) {
	const before = 3*PieceBytes + 100
	rng := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 10*PieceBytes)
	for i := range buf {
		buf[i] = byte(rng.Uint32())
	}
	var sums []uint32
	for at := 0; at < len(buf); at += PieceBytes {
		sums = append(sums, PieceSum(buf[at:at+PieceBytes]))
	}
	for _, at := range []int{0, 1, PieceBytes - 21, PieceBytes - 20, PieceBytes, before} {
		for _, size := range []int{61, PieceBytes - 1, PieceBytes, PieceBytes + 21, 2 * PieceBytes, 5*PieceBytes + 17, len(buf) - before} {
			b := buf[at : at+size]
			want := crc32.Checksum(b[attributesAt:], castagnoli)
			for known := range len(sums) + 1 {
				p := Pieces{Sums: sums[:known], At: at}
				if got := p.checksum(b, attributesAt); got != want {
					t.Fatalf("%d bytes at %d, %d pieces known: %#x, want %#x", size, at, known, got, want)
				}
			}
		}
	}
}

func TestValidateWithPieces(t *testing.T) {
	const at = 77 // of the batch in the frame
	b := build(t, BuildOptions{}, []Record{{Timestamp: 100, Value: make([]byte, 5*PieceBytes)}})
	frame := append(make([]byte, at), b...)
	b = frame[at:]
	v := &Validator{Pieces: Pieces{At: at}}
	for n := PieceBytes; n <= len(frame); n += PieceBytes {
		v.Pieces.Sums = append(v.Pieces.Sums, PieceSum(frame[n-PieceBytes:n]))
	}
	if err := b.Validate(v); err != nil {
		t.Fatal(err)
	}
	for i := range v.Pieces.Sums[1:] { // the first has bytes that are not under the batch's checksum
		v.Pieces.Sums[1+i] ^= 1 << i
		if err := b.Validate(v); !errors.Is(err, ErrCRC) {
			t.Errorf("piece %d is wrong: %v", 1+i, err)
		}
		v.Pieces.Sums[1+i] ^= 1 << i
	}
}
