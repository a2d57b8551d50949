package journal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/sluice-io/sluice/internal/quickio"
	"github.com/sluice-io/sluice/internal/record"
)

// Defaults of a journal.
const (
	segmentBytesDefault = 16 << 20
	bytesMaxDefault     = 1 << 30
	// segmentsMin is how many segments a journal's limit has room for, where their size is not set.
	segmentsMin = 8
	// sparesMax is how many segments are kept to be used again: what one call of Release lets go in bulk.
	sparesMax = 8
)

// ErrFull says that the journal has reached its limit: what is in it must be settled first.
var ErrFull = errors.New("the journal is full")

// Config configures a journal. The zero value is usable.
type Config struct {
	// FS is the file system; nil means the operating system's.
	FS FS
	// SegmentBytes is how large a segment grows before the next begins; 0 means 16 MiB, and less where BytesMax is: what is settled is removed by
	// segments, so that one which could not be let go would keep the journal full.
	SegmentBytes int64
	// BytesMax bounds what the journal takes on disk; 0 means 1 GiB. Bundles are refused beyond it, what settles them is not.
	BytesMax int64
	// Sync makes bundles and floors durable before Append returns. Without it they survive the end of the process, not of the machine.
	Sync bool
	// From is the sequence that the newest snapshot names: ranges of earlier bundles are in it. 0 is the first start.
	From uint64
}

// Loaded is what a journal held when it was opened.
type Loaded struct {
	// Unsettled are the batches to care for, without their bytes; in the order they were written, but for those that replace others,
	// which stand in the place of the first of these.
	Unsettled []*Batch
	// Moves are the ranges of bundles that the snapshot does not contain, in order.
	Moves []Range
	// Floors are those in force.
	Floors []Floor
	// Counts of what was read, and of what a crash left of segments that end early.
	Entries, TornBytes int64
	// LostSegments were dropped because entries before them are missing.
	LostSegments int
}

// Journal is an open journal. Safe for concurrent use.
type Journal struct {
	log *slog.Logger
	cfg Config
	dir string

	mu       sync.Mutex
	segments []*segment // guarded by mu: by number; the last is written to
	next     uint64     // guarded by mu: sequence of the next entry
	number   uint64     // guarded by mu: of the next segment
	spares   []*segment // guarded by mu: let go, oldest first; their files wait for the next segments
	rolled   bool       // guarded by mu: a segment began since the last Release
	broken   bool       // guarded by mu: the last segment ends in what failed
	where    map[ID]place
	floors   map[partition]floor // guarded by mu
	buf      []byte              // guarded by mu
	bytes    int64               // guarded by mu: of all segments but the spares
	reserved bool                // guarded by mu: the reserve is there
	short    bool                // guarded by mu: the disk was full, and was not seen to have room since
	trouble  error               // guarded by mu: of the last bundles
}

type partition struct {
	topic TopicID
	index int32
}

// floor is a floor and how many unsettled batches need it. A floor of an earlier run is forgotten with the last of them.
type floor struct {
	offset  int64
	batches int
	current bool // set since Open
}

// place is where a batch's bytes are.
type place struct {
	seg  *segment
	at   int64
	size int
	part partition
}

// segment is one file.
type segment struct {
	name      string
	number    uint64
	first     uint64 // sequence of its first entry
	size      int64
	file      File // nil when not open
	unsettled int
	named     bool  // its name is durable
	own       bool  // begun by this process
	old       int64 // bytes of an earlier segment in its file when it began
	disk      int64 // of its file
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Open reads the journal in dir and begins a new segment. A journal is opened once at a time; the caller sees to that.
func Open(log *slog.Logger, dir string, cfg Config) (*Journal, *Loaded, error) {
	if cfg.FS == nil {
		cfg.FS = OSFS{}
	}
	if cfg.BytesMax == 0 {
		cfg.BytesMax = bytesMaxDefault
	}
	if cfg.SegmentBytes == 0 {
		cfg.SegmentBytes = min(segmentBytesDefault, cfg.BytesMax/segmentsMin)
	}
	j := &Journal{log: log, cfg: cfg, dir: dir, next: 1, number: 1, where: map[ID]place{}, floors: map[partition]floor{}}
	if err := cfg.FS.MkdirAll(dir); err != nil {
		return nil, nil, fmt.Errorf("make the journal's directory: %w", err)
	}
	if err := j.syncDir(filepath.Dir(dir)); err != nil {
		return nil, nil, fmt.Errorf("make the journal's directory durable: %w", err)
	}
	loaded, err := j.recover()
	if err == nil {
		err = j.beginWithReserve()
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open journal %s: %w", dir, err), j.Close())
	}
	return j, loaded, nil
}

// Append writes bundles and other entries, all or none, in order, and gives the batches their IDs. It returns the sequence of the first. After an error nothing was written, and it can be called again. Bundles get an ErrFull
// when the journal is at its limit.
func (j *Journal) Append(entries ...Entry) (first uint64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if growing(entries) {
		first, j.trouble = j.appendBundles(entries)
		return first, j.trouble
	}
	if first, err = j.append(entries); quickio.NoRoom(err) {
		return j.appendShort(entries)
	}
	return first, err
}

// appendBundles refuses bundles beyond the limit, and on a full disk.
func (j *Journal) appendBundles(entries []Entry) (first uint64, err error) {
	if j.bytes >= j.cfg.BytesMax {
		return 0, fmt.Errorf("%w: %d bytes, limit %d", ErrFull, j.bytes, j.cfg.BytesMax)
	}
	if j.short {
		if err := j.mayGrow(); err != nil {
			return 0, err
		}
	}
	first, err = j.append(entries)
	j.short = j.short || quickio.NoRoom(err)
	return first, err
}

func (j *Journal) append(entries []Entry) (first uint64, err error) {
	if err := j.ready(); err != nil {
		return 0, err
	}
	seg := j.segments[len(j.segments)-1]
	first = j.next
	size := seg.size
	if err := j.write(seg, first, entries); err != nil {
		// What was written of it is void: the next segment begins with the same sequence.
		j.broken = true
		j.unplace(entries)
		if quickio.NoRoom(err) {
			err = errors.Join(err, j.cut(seg, size))
		}
		return 0, fmt.Errorf("append to journal segment %s: %w", seg.name, err)
	}
	for i := range entries {
		j.apply(seg, first+uint64(i), &entries[i])
	}
	j.next += uint64(len(entries))
	return first, nil
}

// ready sees to a segment that can be written to.
func (j *Journal) ready() error {
	if last := j.segments[len(j.segments)-1]; !j.broken && last.size < j.cfg.SegmentBytes {
		return nil
	}
	return j.roll()
}

// write appends entries to a segment's file.
func (j *Journal) write(seg *segment, first uint64, entries []Entry) error {
	sync := false
	for i := range entries {
		if err := j.writeEntry(seg, first+uint64(i), &entries[i]); err != nil {
			return err
		}
		sync = sync || entries[i].Bundle != nil || entries[i].Floors != nil
	}
	if !sync || !j.cfg.Sync {
		return nil
	}
	return j.sync(seg)
}

// sync makes a segment durable, and with the first time its name.
func (j *Journal) sync(seg *segment) error {
	if err := seg.file.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if seg.named {
		return nil
	}
	if err := j.syncDir(j.dir); err != nil {
		return err
	}
	seg.named = true
	return nil
}

// unplace forgets the batches of entries that could not be written.
func (j *Journal) unplace(entries []Entry) {
	for i := range entries {
		if b := entries[i].Bundle; b != nil {
			for _, x := range b.Batches {
				delete(j.where, x.ID)
			}
		}
	}
}

func (j *Journal) writeEntry(seg *segment, seq uint64, e *Entry) error {
	buf := append(j.buf[:0], make([]byte, entryHeaderBytes)...)
	buf = e.appendMeta(buf, seq)
	j.buf = buf
	crc := crc32.Update(segmentSeed(seg.number), castagnoli, buf[entryHeaderBytes:])
	size := len(buf) - entryHeaderBytes
	at := seg.size + int64(len(buf))
	if b := e.Bundle; b != nil {
		for i, x := range b.Batches {
			x.ID = ID{Entry: seq, Index: uint32(i)}
			if err := x.readHeader(); err != nil {
				return err
			}
			crc = record.CombineSums(crc, x.Data.Sum(), len(x.Data))
			size += len(x.Data)
		}
	}
	if size > entryBytesMax {
		return fmt.Errorf("an entry of %d bytes, the limit is %d", size, entryBytesMax)
	}
	be.PutUint32(buf, uint32(size))
	be.PutUint32(buf[4:], crc)
	if err := j.put(seg, buf); err != nil {
		return err
	}
	if e.Bundle == nil {
		return nil
	}
	for _, x := range e.Bundle.Batches {
		if err := j.put(seg, x.Data); err != nil {
			return err
		}
		j.where[x.ID] = place{seg: seg, at: at, size: len(x.Data), part: partition{x.TopicID, x.Partition}}
		at += int64(len(x.Data))
	}
	return nil
}

// put writes bytes and counts what reached the disk, whether all did or not.
func (j *Journal) put(seg *segment, p []byte) error {
	n, err := seg.file.Write(p)
	seg.size += int64(n)
	seg.disk = max(seg.disk, seg.size)
	j.bytes += int64(n)
	return err
}

// apply brings what is known in line with an entry.
func (j *Journal) apply(seg *segment, seq uint64, e *Entry) {
	switch {
	case e.Bundle != nil:
		for _, x := range e.Bundle.Batches {
			seg.unsettled++
			j.need(partition{x.TopicID, x.Partition}, 1)
		}
		j.settle(e.Bundle.Replaces)
	case e.Ack != nil:
		if e.Ack.NextOffset >= 0 {
			j.setFloor(Floor{TopicID: e.Ack.TopicID, Partition: e.Ack.Partition, Offset: e.Ack.NextOffset})
		}
		j.settle(e.Ack.IDs)
	case e.Settled != nil:
		j.settle(e.Settled.IDs)
	default:
		for _, f := range e.Floors {
			j.setFloor(f)
		}
	}
}

func (j *Journal) settle(ids []ID) {
	for _, id := range ids {
		p, ok := j.where[id]
		if !ok {
			continue
		}
		delete(j.where, id)
		p.seg.unsettled--
		j.need(p.part, -1)
	}
}

// need counts the unsettled batches of a partition.
func (j *Journal) need(p partition, n int) {
	f, ok := j.floors[p]
	if !ok {
		f.offset = -1
	}
	f.batches += n
	if f.batches <= 0 && !f.current {
		delete(j.floors, p)
		return
	}
	j.floors[p] = f
}

func (j *Journal) setFloor(f Floor) {
	p := partition{f.TopicID, f.Partition}
	x := j.floors[p]
	x.offset, x.current = f.Offset, true
	j.floors[p] = x
}

// floorsLocked are the floors in force.
func (j *Journal) floorsLocked() (out []Floor) {
	for p, f := range j.floors {
		if f.offset >= 0 {
			out = append(out, Floor{TopicID: p.topic, Partition: p.index, Offset: f.offset})
		}
	}
	return out
}

// roll begins a new segment with the floors in force at its head.
func (j *Journal) roll() error {
	if n := len(j.segments); j.cfg.Sync && n > 0 && j.segments[n-1].file != nil {
		// Or a power cut could take its end and make a hole before the next.
		if err := j.sync(j.segments[n-1]); err != nil && !j.broken {
			return err
		}
	}
	seg := &segment{name: segmentName(j.number), number: j.number, first: j.next, own: true}
	j.number++ // whatever becomes of it: no number is used twice
	if err := j.makeFile(seg); err != nil {
		return err
	}
	if err := j.begin(seg); err != nil {
		// Without a whole header it holds nothing.
		return errors.Join(fmt.Errorf("begin segment %s: %w", seg.name, err), seg.file.Close(), j.removeFile(seg))
	}
	j.segments = append(j.segments, seg)
	j.broken, j.rolled = false, true
	return nil
}

// makeFile gives a segment a spare's file, or a new one.
func (j *Journal) makeFile(seg *segment) (err error) {
	name := filepath.Join(j.dir, seg.name)
	if len(j.spares) == 0 {
		if seg.file, err = j.cfg.FS.Create(name); err != nil {
			return fmt.Errorf("make segment: %w", err)
		}
		return nil
	}
	spare := j.spares[0]
	j.spares = j.spares[1:]
	if seg.file, err = j.cfg.FS.Reuse(filepath.Join(j.dir, spare.name), name); err != nil {
		return fmt.Errorf("use segment %s again: %w", spare.name, err)
	}
	seg.old, seg.disk = spare.disk, spare.disk
	return nil
}

func (j *Journal) begin(seg *segment) error {
	if err := j.put(seg, segmentHeader(seg)); err != nil {
		return err
	}
	floors := j.floorsLocked()
	if len(floors) == 0 {
		return nil
	}
	if err := j.writeEntry(seg, j.next, &Entry{Floors: floors}); err != nil {
		return err
	}
	j.next++
	return nil
}

func (j *Journal) removeFile(seg *segment) error {
	if err := j.unlink(seg); err != nil {
		return err
	}
	j.bytes -= seg.size
	return nil
}

func (j *Journal) unlink(seg *segment) error {
	if err := j.cfg.FS.Remove(filepath.Join(j.dir, seg.name)); err != nil {
		return fmt.Errorf("remove segment %s: %w", seg.name, err)
	}
	return nil
}

// Read returns the bytes of an unsettled batch, in dst's memory when there is room.
func (j *Journal) Read(id ID, dst []byte) (record.Batch, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p, ok := j.where[id]
	if !ok {
		return nil, fmt.Errorf("batch %d of entry %d is not in the journal", id.Index, id.Entry)
	}
	if p.seg.file == nil {
		file, err := j.cfg.FS.Open(filepath.Join(j.dir, p.seg.name))
		if err != nil {
			return nil, fmt.Errorf("open segment: %w", err)
		}
		p.seg.file = file
	}
	if cap(dst) < p.size {
		dst = make([]byte, p.size)
	}
	dst = dst[:p.size]
	if n, err := p.seg.file.ReadAt(dst, p.at); n < p.size {
		return nil, fmt.Errorf("read batch %d of entry %d in segment %s at %d: %w", id.Index, id.Entry, p.seg.name, p.at, err)
	}
	if err := record.Batch(dst).CheckCRC(); err != nil {
		return nil, fmt.Errorf("batch %d of entry %d in segment %s at %d: %w", id.Index, id.Entry, p.seg.name, p.at, err)
	}
	return dst, nil
}

// Release lets go of segments that only hold entries before keep and no unsettled batch: a few of their files are kept for the next segments, one less
// with each call before which no segment began.
func (j *Journal) Release(keep uint64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var errs []error
	if !j.rolled && len(j.spares) > 0 {
		errs = append(errs, j.unlink(j.spares[0]))
		j.spares = j.spares[1:]
	}
	j.rolled = false
	for len(j.segments) > 1 && j.segments[1].first <= keep && j.segments[0].unsettled == 0 {
		seg := j.segments[0]
		if seg.file != nil {
			errs = append(errs, seg.file.Close())
			seg.file = nil
		}
		if err := j.letGo(seg); err != nil {
			return errors.Join(append(errs, err)...)
		}
		j.segments = j.segments[1:]
	}
	return errors.Join(errs...)
}

// letGo keeps a segment's file for one of the next, or removes it.
func (j *Journal) letGo(seg *segment) error {
	if !seg.own || len(j.spares) >= sparesMax {
		return j.removeFile(seg)
	}
	j.spares = append(j.spares, seg)
	j.bytes -= seg.size
	return nil
}

// Next is the sequence of the next entry.
func (j *Journal) Next() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next
}

// Bytes is what the journal takes on disk, but for files that wait for new segments; unsettled the number of batches that wait.
func (j *Journal) Bytes() (bytes int64, unsettled int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes, len(j.where)
}

// Full says whether bundles are refused.
func (j *Journal) Full() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes >= j.cfg.BytesMax
}

// Close closes the files. Nothing is written.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var errs []error
	for _, seg := range j.segments {
		if seg.file != nil {
			errs = append(errs, seg.file.Close())
			seg.file = nil
		}
	}
	return errors.Join(errs...)
}
