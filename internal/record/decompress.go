package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

const (
	// DecompressedBytesMax is the default limit on what one batch may expand
	// to: 128 MiB. It is what keeps a small hostile batch from taking all memory.
	DecompressedBytesMax = 128 << 20
	// bufferRetainBytesMax is the largest output buffer that is kept for the
	// next batch; a larger one is a rare batch's and is given back.
	bufferRetainBytesMax = 4 << 20
	// zstdMemoryMin lets a decoder have the windows that encoders use, of up to
	// 8 MiB, whatever the limit on what comes out.
	zstdMemoryMin = 8 << 20
)

// ErrTooLarge says that a batch expands to more than the decompressor's limit.
var ErrTooLarge = errors.New("decompressed records exceed the limit")

// xerialMagic starts the framing that Kafka's Java client puts around snappy
// blocks; a version and a compatible version, an int32 each, follow it.
var xerialMagic = [8]byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const xerialHeaderBytes = 16

// Decompressor expands the records of batches. It keeps its codecs' state and
// one output buffer, so that reuse costs no allocation. Not safe for concurrent use.
type Decompressor struct {
	limitBytes int
	out        []byte
	src        bytes.Reader
	gzip       *gzip.Reader
	zstd       *zstd.Decoder
}

// NewDecompressor returns a decompressor that refuses to expand a batch beyond
// limitBytes with ErrTooLarge; 0 takes DecompressedBytesMax.
func NewDecompressor(limitBytes int) *Decompressor {
	if limitBytes <= 0 {
		limitBytes = DecompressedBytesMax
	}
	return &Decompressor{limitBytes: limitBytes}
}

// SetLimit changes the limit for the calls that follow; 0 takes DecompressedBytesMax,
// which the limit is never above.
func (d *Decompressor) SetLimit(bytes int) {
	if bytes <= 0 || bytes > DecompressedBytesMax {
		bytes = DecompressedBytesMax
	}
	if bytes != d.limitBytes {
		d.limitBytes, d.zstd = bytes, nil // which has the limit built in
	}
}

// Decompress expands src. The result is valid until the next call and aliases
// src when codec is None.
func (d *Decompressor) Decompress(codec Codec, src []byte) ([]byte, error) {
	if codec == None {
		return src, nil
	}
	if cap(d.out) > bufferRetainBytesMax {
		d.out = nil
	}
	out, err := d.expand(codec, src)
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w", codec, err)
	}
	d.out = out
	return out, nil
}

func (d *Decompressor) expand(codec Codec, src []byte) ([]byte, error) {
	switch codec {
	case Gzip:
		return d.expandGzip(src)
	case Snappy:
		return d.expandSnappy(src)
	case LZ4:
		return d.expandLZ4(src)
	case Zstd:
		return d.expandZstd(src)
	default:
		return nil, errors.New("unknown codec")
	}
}

func (d *Decompressor) expandGzip(src []byte) ([]byte, error) {
	d.src.Reset(src)
	if d.gzip == nil {
		z, err := gzip.NewReader(&d.src)
		if err != nil {
			return nil, err
		}
		d.gzip = z
	} else if err := d.gzip.Reset(&d.src); err != nil {
		return nil, err
	}
	return d.readAll(d.gzip)
}

// readAll reads r to its end into the kept buffer, within the limit.
func (d *Decompressor) readAll(r io.Reader) ([]byte, error) {
	out := d.out[:0]
	for {
		if len(out) == cap(out) {
			out = append(out, 0)[:len(out)]
		}
		n, err := r.Read(out[len(out):cap(out)])
		out = out[:len(out)+n]
		if len(out) > d.limitBytes {
			return nil, ErrTooLarge
		}
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (d *Decompressor) expandZstd(src []byte) ([]byte, error) {
	if d.zstd == nil {
		// One goroutine less per decoder, and a bound that is checked before
		// a frame's declared size is allocated.
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(max(d.limitBytes, zstdMemoryMin))))
		if err != nil {
			return nil, err
		}
		d.zstd = z
	}
	out, err := d.zstd.DecodeAll(src, d.out[:0])
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return nil, fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	if err == nil && len(out) > d.limitBytes {
		return nil, ErrTooLarge
	}
	return out, err
}

// expandSnappy takes both forms that producers send: the framing of the Java
// client's library and one bare block.
func (d *Decompressor) expandSnappy(src []byte) ([]byte, error) {
	if len(src) < xerialHeaderBytes || !bytes.HasPrefix(src, xerialMagic[:]) {
		return d.appendSnappyBlock(d.out[:0], src)
	}
	out := d.out[:0]
	src = src[xerialHeaderBytes:]
	for len(src) > 0 {
		if len(src) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		size := binary.BigEndian.Uint32(src)
		src = src[4:]
		if uint64(size) > uint64(len(src)) {
			return nil, io.ErrUnexpectedEOF
		}
		var err error
		if out, err = d.appendSnappyBlock(out, src[:size]); err != nil {
			return nil, err
		}
		src = src[size:]
	}
	return out, nil
}

// appendSnappyBlock decodes one block to the end of dst, within the limit.
func (d *Decompressor) appendSnappyBlock(dst, block []byte) ([]byte, error) {
	size, err := s2.DecodedLen(block)
	if err != nil {
		return nil, err
	}
	if size > d.limitBytes-len(dst) {
		return nil, ErrTooLarge
	}
	dst = growBytes(dst, size)
	if _, err := s2.Decode(dst[len(dst):len(dst)+size], block); err != nil {
		return nil, err
	}
	return dst[:len(dst)+size], nil
}

// growBytes makes room for n more bytes behind b.
func growBytes(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	return append(b, make([]byte, n)...)[:len(b)]
}
