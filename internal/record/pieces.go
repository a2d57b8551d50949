package record

import "hash/crc32"

// PieceBytes is the length of a piece whose checksum can be known beforehand.
const PieceBytes = 64 << 10

// Pieces are the CRC-32C checksums of consecutive pieces, of PieceBytes each, of
// the bytes that a batch came in. Who receives a large request computes them while
// its bytes are still in the processor's cache, which they have left when the
// whole batch is there. The zero value knows none.
type Pieces struct {
	Sums []uint32
	// At is where the batch starts in the first piece, or how far behind it.
	At int
}

// checksum is that of b from the byte at from on, using what is known.
func (p *Pieces) checksum(b []byte, from int) uint32 {
	first := (p.At + from + PieceBytes - 1) / PieceBytes
	end := min((p.At+len(b))/PieceBytes, len(p.Sums))
	if first >= end {
		return crc32.Checksum(b[from:], castagnoli)
	}
	sum := crc32.Checksum(b[from:first*PieceBytes-p.At], castagnoli)
	for _, piece := range p.Sums[first:end] {
		sum = CombineSums(sum, piece, PieceBytes)
	}
	return crc32.Update(sum, castagnoli, b[end*PieceBytes-p.At:])
}

// PieceSum is the checksum of a piece.
func PieceSum(piece []byte) uint32 { return crc32.Checksum(piece, castagnoli) }
