package api

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
)

// reader decodes a request body by hand, for the requests whose decoded form
// would cost more than what is done with them. Everything it returns aliases
// the body. After the first error all reads give zero values; see err.
type reader struct {
	b        []byte
	flexible bool
	bad      bool
	size     int // of the whole body, for taken
}

// taken is how many bytes of the body were read.
func (r *reader) taken() int { return r.size - len(r.b) }

func (r *reader) err() error {
	if r.bad {
		return fmt.Errorf("%w: body is cut short or malformed", errMalformed)
	}
	return nil
}

// span takes n bytes.
func (r *reader) span(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	s := r.b[:n:n]
	r.b = r.b[n:]
	return s
}

func (r *reader) int8() int8 {
	if s := r.span(1); s != nil {
		return int8(s[0])
	}
	return 0
}

func (r *reader) int16() int16 {
	if s := r.span(2); s != nil {
		return int16(binary.BigEndian.Uint16(s))
	}
	return 0
}

func (r *reader) int32() int32 {
	if s := r.span(4); s != nil {
		return int32(binary.BigEndian.Uint32(s))
	}
	return 0
}

func (r *reader) int64() int64 {
	if s := r.span(8); s != nil {
		return int64(binary.BigEndian.Uint64(s))
	}
	return 0
}

func (r *reader) uuid() (id [16]byte) {
	copy(id[:], r.span(16))
	return id
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || n > 5 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// length reads the length of a string, byte array or array, -1 for null. size
// is the width of the length in the versions that are not flexible.
func (r *reader) length(size int) int {
	if r.flexible {
		return int(r.uvarint()) - 1
	}
	if size == 2 {
		return int(r.int16())
	}
	return int(r.int32())
}

// str reads a string; ok is false for null. The string aliases the body.
func (r *reader) str() (s string, ok bool) {
	n := r.length(2)
	if n == -1 {
		return "", false
	}
	b := r.span(n)
	return unsafe.String(unsafe.SliceData(b), len(b)), !r.bad
}

// bytes reads a byte array, nil for null.
func (r *reader) bytes() []byte {
	n := r.length(4)
	if n == -1 {
		return nil
	}
	return r.span(n)
}

// array reads the length of an array of elements that take at least least
// bytes each, so that a count no body could hold is refused. Null is 0.
func (r *reader) array(least int) int {
	n := r.length(4)
	if n == -1 {
		return 0
	}
	if n < 0 || n > len(r.b)/least {
		r.bad, r.b = true, nil
		return 0
	}
	return n
}

// limit refuses a request with more topics or partitions than are allowed.
func (r *reader) limit(topics, partitions int) {
	if topics >= partitionsMax || partitions > partitionsMax {
		r.bad, r.b = true, nil
	}
}

// tags skips tagged fields.
func (r *reader) tags() {
	if !r.flexible {
		return
	}
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		r.uvarint()
		r.span(int(r.uvarint()))
	}
}

// writer encodes a response by hand.
type writer struct {
	b        []byte
	flexible bool
}

func (w *writer) int16(v int16) { w.b = binary.BigEndian.AppendUint16(w.b, uint16(v)) }
func (w *writer) int32(v int32) { w.b = binary.BigEndian.AppendUint32(w.b, uint32(v)) }
func (w *writer) int64(v int64) { w.b = binary.BigEndian.AppendUint64(w.b, uint64(v)) }
func (w *writer) uvarint(v int) { w.b = binary.AppendUvarint(w.b, uint64(v)) }

// length writes the length of a string, byte array or array, -1 for null.
func (w *writer) length(n, size int) {
	switch {
	case w.flexible:
		w.uvarint(n + 1)
	case size == 2:
		w.int16(int16(n))
	default:
		w.int32(int32(n))
	}
}

func (w *writer) array(n int) { w.length(n, 4) }

func (w *writer) str(s string) {
	w.length(len(s), 2)
	w.b = append(w.b, s...)
}

func (w *writer) nullableStr(s string) {
	if s == "" {
		w.length(-1, 2)
		return
	}
	w.str(s)
}

// tags writes an empty set of tagged fields.
func (w *writer) tags() {
	if w.flexible {
		w.b = append(w.b, 0)
	}
}

// diverging writes a set of one tagged field: where a follower's log is to be
// cut (KIP-595).
func (w *writer) diverging(to *replica.EpochEnd) {
	w.uvarint(1)
	w.uvarint(0)
	w.uvarint(4 + 8 + 1)
	w.int32(to.Epoch)
	w.int64(to.End)
	w.tags()
}

// currentLeader writes a set of one tagged field: where the partition's leader
// is (KIP-951).
func (w *writer) currentLeader(tag int, leader, epoch int32) {
	w.uvarint(1)
	w.uvarint(tag)
	w.uvarint(9) // its size: two int32 and an empty set of tags
	w.int32(leader)
	w.int32(epoch)
	w.tags()
}

// encodeEndpoints ends a response with its tagged fields: the addresses of the
// brokers for the clients of a listener if leaders were named, otherwise none.
func (a *API) encodeEndpoints(w *writer, listener string, named bool) {
	if !named {
		w.tags()
		return
	}
	in := writer{flexible: true}
	var brokers []cluster.Broker
	if im := a.Image(); im != nil {
		brokers = im.Brokers
	}
	in.array(len(brokers))
	for _, b := range brokers {
		host, port := b.At(listener)
		in.int32(b.ID)
		in.str(host)
		in.int32(port)
		in.nullableStr(b.Rack)
		in.tags()
	}
	w.uvarint(1)
	w.uvarint(0)
	w.uvarint(len(in.b))
	w.b = append(w.b, in.b...)
}
