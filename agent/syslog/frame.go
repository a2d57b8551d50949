package syslog

import (
	"bytes"

	"github.com/sluice-io/sluice/agent/tail"
)

const (
	// lengthDigitsMax and frameBytesMax bound what is believed of a frame's length; anything else is no frame.
	lengthDigitsMax = 9
	frameBytesMax   = 64 << 20
	// messagesMax bounds the messages of a chunk.
	messagesMax = 8192
)

// mode is how the messages of a connection are told apart.
type mode int8

const (
	unknown mode = iota // nothing came yet that tells
	lines               // by newlines
	counted             // by lengths before them (octet counting, RFC 6587)
)

// framer finds messages. A connection whose first bytes are a length, a blank and < is counted. Where a length should stand and does
// not, the rest of the connection is taken by lines: so nothing is dropped.
type framer struct {
	bytesMax int
	byLines  tail.Framing
	mode     mode
	skip     int // bytes of a message over the limit that are still to come
}

// newFraming returns the framing of one connection.
func newFraming(bytesMax int) tail.Framing {
	f := &framer{bytesMax: bytesMax, byLines: tail.NewLines(bytesMax, tail.UTF8)}
	return f.frame
}

func (f *framer) frame(c *tail.Chunk, data []byte, at int, final bool) int {
	if f.mode == unknown {
		f.mode = detect(data[at:], final)
	}
	if f.mode == counted {
		at = f.counted(c, data, at, final)
	}
	if f.mode == lines && len(c.Lines) < messagesMax {
		at = f.byLines(c, data, at, final)
	}
	return at
}

// detect tells how messages are told apart; unknown when more bytes are needed.
func detect(data []byte, final bool) mode {
	digits := countDigits(data)
	switch {
	case len(data) == 0:
		return unknown
	case digits == 0 || digits > lengthDigitsMax || data[0] == '0':
		return lines
	case digits+1 < len(data):
		if data[digits] == ' ' && data[digits+1] == '<' {
			return counted
		}
		return lines
	case final, digits < len(data) && data[digits] != ' ':
		return lines
	}
	return unknown
}

func countDigits(data []byte) int {
	n := 0
	for n < len(data) && n <= lengthDigitsMax && data[n]-'0' <= 9 {
		n++
	}
	return n
}

// counted adds the messages that are whole, and returns where the first that is not begins.
func (f *framer) counted(c *tail.Chunk, data []byte, at int, final bool) int {
	for at < len(data) && len(c.Lines) < messagesMax {
		if f.skip > 0 {
			n := min(f.skip, len(data)-at)
			f.skip -= n
			c.Skipped.TooLong += int64(n)
			at += n
			continue
		}
		if data[at] == '\n' || data[at] == '\r' { // some put one behind each message
			c.Skipped.Frame++
			at++
			continue
		}
		start, size, ok, wait := length(data, at, final)
		if wait {
			return at
		}
		if !ok {
			f.mode = lines
			return at
		}
		next := f.message(c, data, at, start, size, final)
		if next == at {
			return at
		}
		at = next
	}
	return at
}

// length reads a message's length and the blank behind it. wait says that more bytes are needed.
func length(data []byte, at int, final bool) (start, size int, ok, wait bool) {
	digits := countDigits(data[at:])
	if at+digits >= len(data) && digits <= lengthDigitsMax {
		return 0, 0, false, !final
	}
	if digits == 0 || digits > lengthDigitsMax || data[at] == '0' || data[at+digits] != ' ' {
		return 0, 0, false, false
	}
	for _, d := range data[at : at+digits] {
		size = size*10 + int(d-'0')
	}
	return at + digits + 1, size, size <= frameBytesMax, false
}

// message adds one message, and returns where the next begins, or at when it is not whole. Of one over the limit the beginning is taken; of
// one that ends with the connection what there is.
func (f *framer) message(c *tail.Chunk, data []byte, at, start, size int, final bool) int {
	have := min(len(data)-start, size)
	cut := have < size
	if cut && !final && have <= f.bytesMax {
		return at
	}
	c.Skipped.Frame += int64(start - at)
	l := tail.Line{Start: uint32(start), End: uint32(start + have), Next: uint32(start + have), Cut: cut}
	next := start + have
	if size > f.bytesMax && have > f.bytesMax {
		l.End, l.Next, l.Cut = uint32(start+f.bytesMax), uint32(start+f.bytesMax), true
		c.Skipped.TooLong += int64(have - f.bytesMax)
		c.Skipped.Cuts++
		f.skip = size - have
	}
	if !l.Cut {
		l.End = uint32(start + len(trimmed(data[start:start+have])))
	}
	c.Lines = append(c.Lines, l)
	return next
}

// trimmed is a message without what ends it: a newline, which some count, and NUL.
func trimmed(p []byte) []byte { return bytes.TrimRight(p, "\r\n\x00") }
