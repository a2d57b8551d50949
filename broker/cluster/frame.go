package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// The embedded store's directory holds one snapshot and the log that follows it:
//
//	00000000000000000042.snapshot   the tree after transaction 42, one frame
//	00000000000000000042.log        transactions 43, 44, ..., a frame each
//
// A frame is
//
//	uint32  CRC-32C of what follows
//	uint32  length of the payload
//	payload
//
// with integers big-endian. A transaction's payload is
//
//	uvarint number, uvarint session, uvarint count, then count times:
//	  byte kind, byte ephemeral, varint version, path, data (uvarint length and bytes)
//
// and a snapshot's payload is
//
//	byte format (1), uvarint number, uvarint session, uvarint count, then count nodes,
//	parents before children: path, data, uvarint version, uvarint created, uvarint owner
//
// Recovery: a transaction is acknowledged once its frame is synced, so only the
// last frame of the last log can be unfinished, and is cut. A bad frame with a
// whole one anywhere after it is damage to what was acknowledged: opening is
// refused. A snapshot is written under a temporary name, synced and renamed, so
// one that has its name is whole. It makes all files with lower numbers
// unneeded; a crash before they are removed leaves them to the next opening.

// frameHeaderBytes is the length of what precedes a frame's payload.
const frameHeaderBytes = 8

// framePayloadBytesMax bounds what a damaged length can make us read.
const framePayloadBytesMax = 1 << 30

const snapshotFormat = 1

// opSession is a stored operation that no caller can ask for: a new session
// begins, and the ephemeral nodes of earlier ones go. Its Version is the session.
const opSession OpKind = 5

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CorruptionError says that a file of the embedded store is damaged in a place
// that no crash explains.
type CorruptionError struct {
	Path   string
	Offset int64
	Err    error
}

func (e *CorruptionError) Error() string {
	return fmt.Sprintf("%s is damaged at byte %d: %v; restore it from a copy, "+
		"or move the directory away to begin with an empty cluster", e.Path, e.Offset, e.Err)
}

func (e *CorruptionError) Unwrap() error { return e.Err }

var (
	errFrameShort = errors.New("frame is not whole")
	errFrameCRC   = errors.New("frame's checksum is wrong")
)

func appendFrame(dst, payload []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, frameHeaderBytes)...)
	binary.BigEndian.PutUint32(dst[start+4:], uint32(len(payload)))
	dst = append(dst, payload...)
	binary.BigEndian.PutUint32(dst[start:], crc32.Checksum(dst[start+4:], castagnoli))
	return dst
}

func nextFrame(buf []byte) (payload, rest []byte, err error) {
	if len(buf) < frameHeaderBytes {
		return nil, nil, errFrameShort
	}
	n := int(binary.BigEndian.Uint32(buf[4:]))
	if n > framePayloadBytesMax || n > len(buf)-frameHeaderBytes {
		return nil, nil, errFrameShort
	}
	end := frameHeaderBytes + n
	if crc32.Checksum(buf[4:end], castagnoli) != binary.BigEndian.Uint32(buf) {
		return nil, nil, errFrameCRC
	}
	return buf[frameHeaderBytes:end], buf[end:], nil
}

// tornTail tells whether a bad frame at the start of buf is the last one: no
// whole transaction begins anywhere after it. An empty frame, which a
// zero-filled tail would be full of, is none.
func tornTail(buf []byte) bool {
	for i := 1; i+frameHeaderBytes < len(buf); i++ {
		if payload, _, err := nextFrame(buf[i:]); err == nil && len(payload) > 0 {
			return false
		}
	}
	return true
}

func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func encodeTxn(zxid, session int64, ops []Op) []byte {
	var p []byte
	p = binary.AppendUvarint(p, uint64(zxid))
	p = binary.AppendUvarint(p, uint64(session))
	p = binary.AppendUvarint(p, uint64(len(ops)))
	for _, op := range ops {
		ephemeral := byte(0)
		if op.Ephemeral {
			ephemeral = 1
		}
		p = append(p, byte(op.Kind), ephemeral)
		p = binary.AppendVarint(p, int64(op.Version))
		p = appendString(p, op.Path)
		p = appendString(p, op.Data)
	}
	return appendFrame(nil, p)
}

func decodeTxn(payload []byte) (zxid, session int64, ops []Op, err error) {
	r := reader{buf: payload}
	zxid, session = r.int(), r.int()
	count := r.count()
	for range count {
		op := Op{Kind: OpKind(r.byte()), Ephemeral: r.byte() == 1}
		op.Version = int32(r.varint())
		op.Path, op.Data = string(r.bytes()), bytes.Clone(r.bytes())
		ops = append(ops, op)
	}
	return zxid, session, ops, r.end()
}

func encodeSnapshot(t *tree) []byte {
	p := []byte{snapshotFormat}
	p = binary.AppendUvarint(p, uint64(t.zxid))
	p = binary.AppendUvarint(p, uint64(t.session))
	p = binary.AppendUvarint(p, uint64(len(t.nodes)))
	for _, path := range sortedKeys(t.nodes) {
		n := t.nodes[path]
		p = appendString(p, path)
		p = appendString(p, n.data)
		p = binary.AppendUvarint(p, uint64(n.stat.Version))
		p = binary.AppendUvarint(p, uint64(n.stat.Created))
		p = binary.AppendUvarint(p, uint64(n.stat.Owner))
	}
	return p
}

func decodeSnapshot(payload []byte) (*tree, error) {
	r := reader{buf: payload}
	if format := r.byte(); r.err == nil && format != snapshotFormat {
		return nil, fmt.Errorf("snapshot has format %d, this version reads %d", format, snapshotFormat)
	}
	t := newTree()
	t.zxid, t.session = r.int(), r.int()
	count := r.count()
	for range count {
		path, data := string(r.bytes()), bytes.Clone(r.bytes())
		n := &node{data: data, stat: Stat{Version: int32(r.int()), Created: r.int(), Owner: r.int()}}
		if r.err != nil {
			break
		}
		if path == "/" {
			t.nodes["/"] = n
			continue
		}
		parentPath, name, err := splitPath(path)
		if err != nil {
			return nil, err
		}
		parent, ok := t.nodes[parentPath]
		if !ok {
			return nil, fmt.Errorf("snapshot has %s without its parent", path)
		}
		t.attach(path, parent, name, n)
	}
	return t, r.end()
}

var errPayload = errors.New("payload is malformed")

// reader decodes a payload; its first error sticks.
type reader struct {
	buf []byte
	err error
}

func (r *reader) fail() { r.buf, r.err = nil, errPayload }

func (r *reader) byte() byte {
	if len(r.buf) == 0 {
		r.fail()
		return 0
	}
	b := r.buf[0]
	r.buf = r.buf[1:]
	return b
}

func (r *reader) int() int64 {
	v, n := binary.Uvarint(r.buf)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.buf = r.buf[n:]
	return int64(v)
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.buf)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.buf = r.buf[n:]
	return v
}

// count reads how many elements follow; each takes at least a byte.
func (r *reader) count() int64 {
	n := r.int()
	if n < 0 || n > int64(len(r.buf)) {
		r.fail()
		return 0
	}
	return n
}

func (r *reader) bytes() []byte {
	n := r.int()
	if n < 0 || n > int64(len(r.buf)) {
		r.fail()
		return nil
	}
	b := r.buf[:n:n]
	r.buf = r.buf[n:]
	return b
}

func (r *reader) end() error {
	if r.err == nil && len(r.buf) > 0 {
		r.err = errPayload
	}
	return r.err
}
