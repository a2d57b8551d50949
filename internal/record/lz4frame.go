package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/pierrec/lz4/v4"
)

// An LZ4 frame, as in the LZ4 Frame Format Description 1.6, and what of it Kafka's brokers and Java client take:
//
//	magic u32 | flags u8 | block size u8 | [content size u64] | header checksum u8
//	blocks: size u32, its top bit set when stored as is | data | [checksum u32]
//	end mark u32 = 0 | [content checksum u32]
//
// All numbers are little-endian. Blocks that refer to earlier ones and dictionaries are refused. The content's checksum is not compared, as
// Kafka does not: the batch's own covers the same bytes. What follows the frame is ignored, as Kafka ignores it.
const (
	lz4Magic          = 0x184d2204
	lz4VersionMask    = 0xc0
	lz4Version        = 0x40
	lz4Independent    = 0x20
	lz4BlockChecksums = 0x10
	lz4ContentSize    = 0x08
	lz4ContentCheck   = 0x04
	lz4ReservedFlags  = 0x03 // the dictionary, too
	lz4Stored         = 1 << 31
	// lz4ExpansionMax is how many bytes one byte of a block can become.
	lz4ExpansionMax = 255
)

var (
	errLZ4Header   = errors.New("bad frame header")
	errLZ4Checksum = errors.New("checksum mismatch")
)

// lz4Frame is a frame's header.
type lz4Frame struct {
	blockBytesMax  int
	blockChecksums bool
}

// expandLZ4 decodes each block to where it belongs in the kept buffer.
func (d *Decompressor) expandLZ4(src []byte) ([]byte, error) {
	frame, src, err := parseLZ4Header(src)
	if err != nil {
		return nil, err
	}
	out := d.out[:0]
	for {
		var block []byte
		var stored bool
		if block, stored, src, err = frame.nextBlock(src); err != nil || block == nil {
			return out, err
		}
		if out, err = frame.appendBlock(out, block, stored); err != nil {
			return nil, err
		}
		if len(out) > d.limitBytes {
			return nil, ErrTooLarge
		}
	}
}

func parseLZ4Header(src []byte) (f lz4Frame, rest []byte, err error) {
	const fixed = 7
	if len(src) < fixed {
		return f, nil, io.ErrUnexpectedEOF
	}
	flags, descriptor := src[4], src[5]
	size := fixed
	if flags&lz4ContentSize != 0 {
		size += 8
	}
	switch {
	case binary.LittleEndian.Uint32(src) != lz4Magic:
		return f, nil, fmt.Errorf("%w: no frame of LZ4", errLZ4Header)
	case flags&lz4VersionMask != lz4Version || flags&lz4ReservedFlags != 0 || descriptor&0x8f != 0 || descriptor>>4 < 4:
		return f, nil, fmt.Errorf("%w: flags %#02x, block size %#02x", errLZ4Header, flags, descriptor)
	case flags&lz4Independent == 0:
		return f, nil, fmt.Errorf("%w: blocks that depend on earlier ones, which Kafka's clients cannot read", errLZ4Header)
	case len(src) < size:
		return f, nil, io.ErrUnexpectedEOF
	case src[size-1] != byte(xxh32(src[4:size-1])>>8):
		return f, nil, fmt.Errorf("header: %w", errLZ4Checksum)
	}
	f.blockBytesMax = 1 << (8 + 2*(descriptor>>4)) // 64 KiB, 256 KiB, 1 MiB or 4 MiB
	f.blockChecksums = flags&lz4BlockChecksums != 0
	return f, src[size:], nil
}

// nextBlock takes a block off src; none at the end mark.
func (f *lz4Frame) nextBlock(src []byte) (block []byte, stored bool, rest []byte, err error) {
	if len(src) < 4 {
		return nil, false, nil, io.ErrUnexpectedEOF
	}
	head := binary.LittleEndian.Uint32(src)
	if head == 0 {
		return nil, false, nil, nil
	}
	size := int(head &^ lz4Stored)
	src = src[4:]
	switch {
	case size > f.blockBytesMax:
		return nil, false, nil, fmt.Errorf("block of %d bytes in a frame of at most %d each", size, f.blockBytesMax)
	case len(src) < size || f.blockChecksums && len(src) < size+4:
		return nil, false, nil, io.ErrUnexpectedEOF
	}
	block, rest = src[:size:size], src[size:]
	if f.blockChecksums {
		if binary.LittleEndian.Uint32(rest) != xxh32(block) {
			return nil, false, nil, fmt.Errorf("block: %w", errLZ4Checksum)
		}
		rest = rest[4:]
	}
	return block, head&lz4Stored != 0, rest, nil
}

func (f *lz4Frame) appendBlock(out, block []byte, stored bool) ([]byte, error) {
	if stored {
		return append(out, block...), nil
	}
	room := min(f.blockBytesMax, lz4ExpansionMax*len(block))
	out = growBytes(out, room)
	n, err := lz4.UncompressBlock(block, out[len(out):len(out)+room])
	if err != nil {
		return nil, err
	}
	return out[:len(out)+n], nil
}

// xxh32 is the 32-bit xxHash of b with seed 0.
func xxh32(b []byte) uint32 {
	const p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
	h := uint32(p5)
	total := uint32(len(b))
	if len(b) >= 16 {
		v := [4]uint32{p1, p2, 0, 0}
		v[0] += p2
		v[3] -= p1
		for ; len(b) >= 16; b = b[16:] {
			for i := range v {
				v[i] = bits.RotateLeft32(v[i]+binary.LittleEndian.Uint32(b[4*i:])*p2, 13) * p1
			}
		}
		h = bits.RotateLeft32(v[0], 1) + bits.RotateLeft32(v[1], 7) + bits.RotateLeft32(v[2], 12) + bits.RotateLeft32(v[3], 18)
	}
	h += total
	for ; len(b) >= 4; b = b[4:] {
		h = bits.RotateLeft32(h+binary.LittleEndian.Uint32(b)*p3, 17) * p4
	}
	for _, c := range b {
		h = bits.RotateLeft32(h+uint32(c)*p5, 11) * p1
	}
	h = (h ^ h>>15) * p2
	h = (h ^ h>>13) * p3
	return h ^ h>>16
}
