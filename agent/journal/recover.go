package journal

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	segmentSuffix      = ".journal"
	segmentHeaderBytes = 42
	formatVersion      = 3
	// headerStartBytes is what every format begins with, and all of the header of 1 and 2.
	headerStartBytes = 22
	readBytes        = 1 << 20
)

var segmentMagic = []byte("sluicejn")

// VersionError says that a journal was written by a newer version. It is left as it is.
type VersionError struct {
	Path    string
	Version int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("journal segment %s was written by a newer version (format %d, this one knows %d): run that version", e.Path, e.Version, formatVersion)
}

func segmentName(number uint64) string { return fmt.Sprintf("%020d%s", number, segmentSuffix) }

func segmentHeader(s *segment) []byte {
	h := append(make([]byte, 0, segmentHeaderBytes), segmentMagic...)
	h = be.AppendUint16(h, formatVersion)
	h = be.AppendUint64(h, s.first)
	h = be.AppendUint32(h, crc32.Checksum(h, castagnoli))
	h = be.AppendUint64(h, s.number)
	h = be.AppendUint64(h, uint64(s.old))
	return be.AppendUint32(h, crc32.Checksum(h, castagnoli))
}

// segmentSeed is what the CRCs of a segment's entries begin with.
func segmentSeed(number uint64) uint32 {
	return crc32.Checksum(be.AppendUint64(nil, number), castagnoli)
}

// found is a segment as it lies in the directory.
type found struct {
	segment
	data []byte
	head header
}

// header is what a segment's beginning says.
type header struct {
	whole bool // or it says nothing
	first uint64
	old   int64
	size  int64  // of the header
	seed  uint32 // of the entries' CRCs
}

// recover reads all segments. See the package's comment for the rules.
func (j *Journal) recover() (*Loaded, error) {
	segments, err := j.list()
	if err != nil {
		return nil, err
	}
	loaded := &Loaded{}
	replay := replay{loaded: loaded, batches: map[ID]*Batch{}, from: j.cfg.From}
	due := uint64(0) // sequence of the next entry; 0: of the first there is
	for i := range segments {
		s := &segments[i]
		j.number = s.number + 1
		if err := j.load(s); err != nil {
			return nil, err
		}
		if !s.head.whole {
			loaded.TornBytes += s.size
			j.segments = append(j.segments, &s.segment)
			s.first = due
			continue
		}
		if s.first > max(due, j.cfg.From, 1) {
			if err := j.drop(segments[i:], loaded); err != nil {
				return nil, err
			}
			break
		}
		end, err := j.nextFirst(segments[i+1:])
		if err != nil {
			return nil, err
		}
		due = j.read(s, end, &replay)
		s.data = nil
		j.segments = append(j.segments, &s.segment)
	}
	j.next = max(due, 1)
	settled := replay.before(j.cfg.From)
	j.settle(settled)
	replay.settle(settled)
	loaded.Unsettled = replay.order()
	loaded.Floors = j.startFloors()
	if err := j.skipTo(j.cfg.From); err != nil {
		return nil, err
	}
	return loaded, j.syncAll()
}

// list finds the segments, in order.
func (j *Journal) list() ([]found, error) {
	names, err := j.cfg.FS.List(j.dir)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	var out []found
	for _, name := range names {
		number, err := strconv.ParseUint(strings.TrimSuffix(name, segmentSuffix), 10, 64)
		if err != nil || name != segmentName(number) {
			continue
		}
		out = append(out, found{segment: segment{name: name, number: number}})
	}
	slices.SortFunc(out, func(a, b found) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	return out, nil
}

// load reads a segment's bytes and checks its header.
func (j *Journal) load(s *found) error {
	data, err := j.slurp(s.name, -1)
	if err != nil {
		return err
	}
	s.data, s.size, s.disk = data, int64(len(data)), int64(len(data))
	j.bytes += s.size
	s.head, err = j.readHeader(s, data)
	s.first, s.old = s.head.first, s.head.old
	return err
}

// readHeader reads the header of a file's data. One that is torn, or another segment's, is not whole.
func (j *Journal) readHeader(s *found, data []byte) (header, error) {
	if !sumFollows(data, headerStartBytes-4) || !bytes.HasPrefix(data, segmentMagic) {
		return header{}, nil
	}
	h := header{whole: true, first: be.Uint64(data[len(segmentMagic)+2:]), size: headerStartBytes}
	switch v := be.Uint16(data[len(segmentMagic):]); {
	case v < 1 || v > formatVersion:
		return header{}, &VersionError{Path: filepath.Join(j.dir, s.name), Version: int(v)}
	case v < formatVersion:
		return h, nil
	}
	if !sumFollows(data, segmentHeaderBytes-4) || be.Uint64(data[headerStartBytes:]) != s.number {
		return header{}, nil
	}
	h.size, h.seed, h.old = segmentHeaderBytes, segmentSeed(s.number), int64(be.Uint64(data[headerStartBytes+8:]))
	return h, nil
}

// sumFollows says whether the CRC of the first bytes of data comes after them.
func sumFollows(data []byte, size int) bool {
	return len(data) >= size+4 && crc32.Checksum(data[:size], castagnoli) == be.Uint32(data[size:])
}

// slurp reads a file, or no more than most bytes of it.
func (j *Journal) slurp(name string, most int) ([]byte, error) {
	f, err := j.cfg.FS.Open(filepath.Join(j.dir, name))
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	defer f.Close() // only read from
	var data []byte
	for {
		data = slices.Grow(data, readBytes)
		n, err := f.ReadAt(data[len(data):len(data)+readBytes], int64(len(data)))
		data = data[:len(data)+n]
		if err == io.EOF || err == nil && n == 0 || most >= 0 && len(data) >= most {
			return data, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read segment %s: %w", name, err)
		}
	}
}

// nextFirst is the sequence at which the next whole segment begins; the largest when there is none.
func (j *Journal) nextFirst(after []found) (uint64, error) {
	for i := range after {
		data, err := j.slurp(after[i].name, segmentHeaderBytes)
		if err != nil {
			return 0, err
		}
		h, err := j.readHeader(&after[i], data)
		if err != nil || h.whole {
			return h.first, err
		}
	}
	return ^uint64(0), nil
}

// read applies a segment's entries below end and returns the sequence that is due after them.
func (j *Journal) read(s *found, end uint64, r *replay) uint64 {
	due, at := s.first, s.head.size
	for due < end {
		body, ok := entryAt(s.data, at, s.head.seed)
		if !ok {
			break
		}
		seq, e, err := decodeBody(body)
		if err != nil || seq != due {
			break
		}
		j.remember(&s.segment, &e, at+entryHeaderBytes+int64(len(body)))
		j.apply(&s.segment, seq, &e)
		r.apply(seq, &e)
		at += entryHeaderBytes + int64(len(body))
		due++
	}
	r.loaded.TornBytes += s.size - max(at, min(s.old, s.size)) // what was in the file before is not torn
	return due
}

// entryAt returns what follows the CRC of an entry that is whole.
func entryAt(data []byte, at int64, seed uint32) ([]byte, bool) {
	data = data[at:]
	if len(data) < entryHeaderBytes {
		return nil, false
	}
	size := int64(be.Uint32(data))
	if size < entryMinBytes || size > entryBytesMax || size > int64(len(data)-entryHeaderBytes) {
		return nil, false
	}
	body := data[entryHeaderBytes : entryHeaderBytes+size]
	return body, crc32.Update(seed, castagnoli, body) == be.Uint32(data[4:])
}

// remember notes where the batches of an entry are that ends at end.
func (j *Journal) remember(seg *segment, e *Entry, end int64) {
	if e.Bundle == nil {
		return
	}
	at := end
	for _, x := range e.Bundle.Batches {
		at -= int64(x.Size)
	}
	for _, x := range e.Bundle.Batches {
		j.where[x.ID] = place{seg: seg, at: at, size: x.Size, part: partition{x.TopicID, x.Partition}}
		at += int64(x.Size)
	}
}

// replay collects what the caller must know.
type replay struct {
	loaded  *Loaded
	from    uint64
	batches map[ID]*Batch
	list    []*Batch
}

func (r *replay) apply(seq uint64, e *Entry) {
	r.loaded.Entries++
	switch {
	case e.Bundle != nil:
		if seq >= r.from {
			r.loaded.Moves = append(r.loaded.Moves, e.Bundle.Ranges...)
		}
		r.insert(e.Bundle)
		r.settle(e.Bundle.Replaces)
	case e.Ack != nil:
		r.settle(e.Ack.IDs)
	case e.Settled != nil:
		r.settle(e.Settled.IDs)
	}
}

// insert adds the batches of a bundle: at the end, or where those stand that they replace, for a partition's batches go in order.
func (r *replay) insert(b *Bundle) {
	for _, x := range b.Batches {
		x.Data = nil
		r.batches[x.ID] = x
	}
	at := len(r.list)
	if len(b.Replaces) > 0 {
		if i := slices.IndexFunc(r.list, func(x *Batch) bool { return slices.Contains(b.Replaces, x.ID) }); i >= 0 {
			at = i
		}
	}
	r.list = slices.Insert(r.list, at, b.Batches...)
}

func (r *replay) settle(ids []ID) {
	for _, id := range ids {
		delete(r.batches, id)
	}
}

// before are the batches of entries that the snapshot is past: it was taken when they were settled, though a power cut may have taken the
// entries that say so.
func (r *replay) before(from uint64) (out []ID) {
	for id := range r.batches {
		if id.Entry < from {
			out = append(out, id)
		}
	}
	return out
}

// order returns the unsettled batches, those of a partition in their order.
func (r *replay) order() []*Batch {
	return slices.DeleteFunc(r.list, func(b *Batch) bool { return r.batches[b.ID] == nil })
}

// startFloors keeps the floors that unsettled batches need, and marks them as those of an earlier run.
func (j *Journal) startFloors() []Floor {
	for p, f := range j.floors {
		if f.current = false; f.batches <= 0 {
			delete(j.floors, p)
			continue
		}
		j.floors[p] = f
	}
	return j.floorsLocked()
}

// drop removes segments that follow a hole.
func (j *Journal) drop(segments []found, loaded *Loaded) error {
	for i := range segments {
		s := &segments[i]
		j.number = s.number + 1
		if s.size == 0 { // not loaded
			if err := j.load(s); err != nil {
				return err
			}
		}
		if err := j.removeFile(&s.segment); err != nil {
			return err
		}
		loaded.LostSegments++
	}
	return nil
}

// skipTo goes on with the sequence that the snapshot names, where the journal ends before it: a power cut took its end, or it was
// removed. What is left lies before the snapshot, and would be followed by a hole.
func (j *Journal) skipTo(from uint64) error {
	if j.next >= from {
		return nil
	}
	j.next = from
	for _, s := range j.segments {
		if err := j.removeFile(s); err != nil {
			return err
		}
	}
	j.segments = nil
	return nil
}

// syncAll makes what was found durable: the next snapshot will rely on it.
func (j *Journal) syncAll() error {
	for _, s := range j.segments {
		f, err := j.cfg.FS.Open(filepath.Join(j.dir, s.name))
		if err != nil {
			return fmt.Errorf("open segment: %w", err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("sync segment %s: %w", s.name, err)
		}
	}
	return j.syncDir(j.dir)
}

func (j *Journal) syncDir(dir string) error {
	d, err := j.cfg.FS.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync the directory: %w", err)
	}
	return nil
}
