package commitlog

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/sluice-io/sluice/internal/record"
)

// TestModel runs random steps on a log and on a plain slice of what it must hold:
// appends of idempotent and other producers, flushes, checkpoints, rolls,
// retention, truncation, clean stops, kills, power cuts that keep some of what
// was not synced, full disks, and reads in between.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"append":     m.append,
			"append2":    m.append,
			"resend":     m.resend,
			"full":       m.appendFull,
			"read":       m.read,
			"time":       m.time,
			"flush":      m.flush,
			"checkpoint": m.checkpoint,
			"retain":     m.retain,
			"start":      m.setStart,
			"truncate":   m.truncate,
			"close":      m.closeReopen,
			"kill":       m.killReopen,
			"crash":      m.crashReopen,
			"":           m.check,
		})
		m.log.Abort()
	})
}

// modelBatch is a batch that the log must hold.
type modelBatch struct {
	base, last int64
	timestamp  int64
	epoch      int32
	values     []string
	pid        int64 // -1: none
	sequence   int32
}

type logModel struct {
	fs      *memFS
	log     *Log
	cfg     Config
	now     time.Time
	batches []modelBatch
	start   int64
	end     int64
	synced  int64
	point   int64 // the stored recovery point
	stored  int64 // the stored start
	epoch   int32
	next    map[int64]int32 // next sequence by producer
	serial  int
}

func newModel(t *rapid.T) *logModel {
	m := &logModel{fs: newMemFS(vfs.NewCrashableMem()), now: testTime, next: map[int64]int32{}}
	m.cfg = Config{
		SegmentBytes:       rapid.Int64Range(500, 2000).Draw(t, "segment bytes"),
		IndexIntervalBytes: rapid.Int64Range(1, 300).Draw(t, "index interval"),
		RetentionBytes:     500, DeleteDelay: -1,
	}
	if err := errors.Join(m.fs.MkdirAll("/data"), SyncDir(m.fs, "/")); err != nil {
		t.Fatal(err)
	}
	m.open(t, true)
	return m
}

func (m *logModel) open(t *rapid.T, clean bool) Recovery {
	l, rec, err := Open(m.fs, scriptDir, m.cfg, OpenOptions{RecoveryPoint: m.point, LogStart: m.stored, Clean: clean, Now: m.now})
	if err != nil {
		t.Fatal(err)
	}
	m.log = l
	return rec
}

// draw makes the next batch.
func (m *logModel) draw(t *rapid.T) (modelBatch, []byte) {
	b := modelBatch{base: m.end, epoch: m.epoch, pid: rapid.Int64Range(-1, 3).Draw(t, "producer"), timestamp: rapid.Int64Range(0, 50).Draw(t, "timestamp")}
	for range rapid.IntRange(1, 4).Draw(t, "records") {
		b.values = append(b.values, fmt.Sprintf("%d-%s", m.serial, rapid.StringN(0, 20, -1).Draw(t, "value")))
		m.serial++
	}
	b.last = b.base + int64(len(b.values)) - 1
	opts := record.BuildOptions{ProducerID: b.pid, Codec: record.Codec(rapid.IntRange(0, 1).Draw(t, "codec") * 2)}
	if b.pid >= 0 {
		b.sequence = m.next[b.pid]
		opts.Idempotent, opts.BaseSequence = true, b.sequence
	}
	var builder record.Builder
	for _, v := range b.values {
		builder.Append(b.timestamp, nil, []byte(v), nil)
	}
	data, err := builder.Build(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b, data
}

func (m *logModel) append(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "new epoch") == 0 {
		m.epoch++
	}
	b, data := m.draw(t)
	out, err := m.log.Append(data, m.epoch, m.now)
	if err != nil || out.First != b.base || out.Last != b.last || out.Duplicate {
		t.Fatalf("append at %d: %+v, %v", b.base, out, err)
	}
	m.took(b)
}

func (m *logModel) took(b modelBatch) {
	m.batches = append(m.batches, b)
	m.end = b.last + 1
	if b.pid >= 0 {
		m.next[b.pid] = record.AddSequence(b.sequence, int32(len(b.values)))
	}
}

// appendFull appends while the disk has little room or a write stops half way.
func (m *logModel) appendFull(t *rapid.T) {
	f := m.fs.faults
	if rapid.Bool().Draw(t, "short") {
		f.shortSuffix, f.shortBytes = logSuffix, rapid.IntRange(0, 200).Draw(t, "short bytes")
	} else {
		f.limited, f.spaceBytes = true, rapid.IntRange(0, 400).Draw(t, "space")
	}
	b, data := m.draw(t)
	out, err := m.log.Append(data, m.epoch, m.now)
	f.clear()
	switch {
	case err == nil && out.First == b.base:
		m.took(b)
	case errors.Is(err, ErrNoSpace) || errors.Is(err, io.ErrShortWrite):
		// Until then a power cut may bring back what was refused, as it may
		// any write that was not synced: its producer knows only that it failed.
		m.flush(t)
	default:
		t.Fatalf("append on a full disk: %+v, %v", out, err)
	}
}

// resend sends one of a producer's last five batches again.
func (m *logModel) resend(t *rapid.T) {
	pid := rapid.Int64Range(0, 3).Draw(t, "producer")
	var last []modelBatch
	for i := len(m.batches) - 1; i >= 0 && len(last) < producerBatchesMax; i-- {
		if m.batches[i].pid == pid {
			last = append(last, m.batches[i])
		}
	}
	if len(last) == 0 {
		t.Skip("nothing sent")
	}
	b := rapid.SampledFrom(last).Draw(t, "batch")
	var builder record.Builder
	for _, v := range b.values {
		builder.Append(b.timestamp, nil, []byte(v), nil)
	}
	data, err := builder.Build(record.BuildOptions{Idempotent: true, ProducerID: pid, BaseSequence: b.sequence}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.log.Append(data, m.epoch, m.now)
	if err != nil || !out.Duplicate || out.First != b.base || out.Last != b.last {
		t.Fatalf("batch %d-%d sent again: %+v, %v", b.base, b.last, out, err)
	}
}

func (m *logModel) read(t *rapid.T) {
	if m.start == m.end {
		t.Skip("empty")
	}
	offset := rapid.Int64Range(m.start, m.end-1).Draw(t, "offset")
	upTo := rapid.Int64Range(offset, m.end).Draw(t, "up to")
	maxBytes := rapid.IntRange(0, 600).Draw(t, "max bytes")
	r, err := m.log.Read(offset, maxBytes, upTo, true)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	data := make([]byte, r.Len)
	if r.Len > 0 {
		if _, err := r.File.ReadAt(data, r.Pos); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	i := m.batchOf(offset)
	if r.Len == 0 {
		if offset < upTo && m.batches[i].last < upTo {
			t.Fatalf("nothing read at %d up to %d", offset, upTo)
		}
		return
	}
	for n := 0; len(data) > 0; n++ {
		b, rest, err := record.Next(data)
		if err != nil {
			t.Fatal(err)
		}
		want := m.batches[i+n]
		if b.BaseOffset() != want.base || b.LastOffset() != want.last || b.LeaderEpoch() != want.epoch || want.last >= upTo {
			t.Fatalf("read at %d up to %d: batch %d-%d of epoch %d, want %+v", offset, upTo, b.BaseOffset(), b.LastOffset(), b.LeaderEpoch(), want)
		}
		if n > 0 && r.Len-len(rest) > maxBytes {
			t.Fatalf("%d bytes of %d", r.Len, maxBytes)
		}
		data = rest
	}
}

// batchOf is the index of the batch that holds an offset.
func (m *logModel) batchOf(offset int64) int {
	for i, b := range m.batches {
		if b.last >= offset {
			return i
		}
	}
	return len(m.batches)
}

func (m *logModel) time(t *rapid.T) {
	ms, upTo := rapid.Int64Range(0, 55).Draw(t, "ms"), rapid.Int64Range(m.start, m.end).Draw(t, "up to")
	want, newest, newestAt := noOffset, int64(-1), noOffset
	for _, b := range m.batches[m.batchOf(m.start):] {
		first := max(b.base, m.start)
		if want == noOffset && b.timestamp >= ms && first < upTo {
			want = first
		}
		if b.timestamp > newest && b.last < upTo {
			newest, newestAt = b.timestamp, first
		}
	}
	offset, _, _, ok, err := m.log.OffsetForTimestamp(ms, upTo)
	if err != nil || offset != want || ok != (want != noOffset) {
		t.Fatalf("timestamp %d up to %d: %d %v %v, want %d", ms, upTo, offset, ok, err, want)
	}
	offset, ts, _, _, err := m.log.MaxTimestamp(upTo)
	if err != nil || offset != newestAt || ts != newest {
		t.Fatalf("largest timestamp up to %d: %d at %d %v, want %d at %d", upTo, ts, offset, err, newest, newestAt)
	}
}

func (m *logModel) flush(t *rapid.T) {
	synced, err := m.log.Flush()
	if err != nil || synced != m.end {
		t.Fatalf("flush: %d, %v", synced, err)
	}
	m.synced = synced
}

func (m *logModel) checkpoint(t *rapid.T) {
	point, err := m.log.Checkpoint()
	if err != nil || point != m.log.SyncedOffset() {
		t.Fatalf("checkpoint: %d, %v", point, err)
	}
	m.point, m.stored = point, m.start
}

func (m *logModel) retain(t *rapid.T) {
	gone, err := m.log.Retain(m.now, m.synced)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.log.RemoveDeleted(m.now); err != nil {
		t.Fatal(err)
	}
	if len(gone) > 0 {
		m.start = max(m.start, gone[len(gone)-1].EndOffset)
	}
}

func (m *logModel) setStart(t *rapid.T) {
	m.start = rapid.Int64Range(m.start, max(m.start, m.synced)).Draw(t, "start")
	if err := m.log.SetStartOffset(m.start); err != nil {
		t.Fatal(err)
	}
}

func (m *logModel) truncate(t *rapid.T) {
	offset := rapid.Int64Range(m.start, m.end).Draw(t, "truncate to")
	if err := m.log.TruncateTo(offset, m.now); err != nil {
		t.Fatal(err)
	}
	m.lost(t, m.log.EndOffset())
	if m.end > offset {
		t.Fatalf("truncated to %d, ends at %d", offset, m.end)
	}
	m.point = min(m.point, m.end)
	// What a follower removes it must not bring back.
	m.flush(t)
}

// lost forgets the batches from an offset on.
func (m *logModel) lost(t *rapid.T, end int64) {
	i := m.batchOf(end)
	if i < len(m.batches) && m.batches[i].base < end {
		t.Fatalf("log ends at %d, within batch %+v", end, m.batches[i])
	}
	m.batches, m.end = m.batches[:i], end
	m.start, m.stored, m.synced = min(m.start, end), min(m.stored, end), min(m.synced, end)
	m.next = map[int64]int32{}
	for _, b := range m.batches {
		if b.pid >= 0 {
			m.next[b.pid] = record.AddSequence(b.sequence, int32(len(b.values)))
		}
	}
}

func (m *logModel) closeReopen(t *rapid.T) {
	if err := m.log.Close(); err != nil {
		t.Fatal(err)
	}
	m.point, m.stored, m.synced = m.end, m.start, m.end
	if rapid.Bool().Draw(t, "power cut after the stop") {
		m.fs = m.fs.crash(0, 1)
	}
	if rec := m.open(t, true); !rec.Clean || rec.IndexesRebuilt > 0 {
		t.Fatalf("not clean: %+v", rec)
	}
}

func (m *logModel) killReopen(t *rapid.T) {
	m.log.Abort()
	start := m.log.StartOffset()
	if rec := m.open(t, false); rec.CutBytes > 0 {
		t.Fatalf("a kill lost data: %+v", rec)
	}
	m.restarted(t, start)
}

func (m *logModel) crashReopen(t *rapid.T) {
	m.log.Abort()
	start := m.log.StartOffset()
	m.fs = m.fs.crash(rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "percent kept"), rapid.Uint64().Draw(t, "seed"))
	m.open(t, false)
	if end := m.log.EndOffset(); end < m.synced || end > m.end {
		t.Fatalf("synced to %d, ended at %d, came back with %d", m.synced, m.end, end)
	}
	m.lost(t, m.log.EndOffset())
	m.restarted(t, start)
}

// restarted takes over what an unclean start may choose: a start that was not
// stored may be an earlier one.
func (m *logModel) restarted(t *rapid.T, start int64) {
	m.synced = m.end
	got := m.log.StartOffset()
	if got > max(start, m.stored) || got < m.stored && got > m.end {
		t.Fatalf("start was %d, stored %d, came back as %d", start, m.stored, got)
	}
	m.start = got
}

// check compares everything.
func (m *logModel) check(t *rapid.T) {
	if m.log.StartOffset() != m.start || m.log.EndOffset() != m.end {
		t.Fatalf("log has %d-%d, want %d-%d", m.log.StartOffset(), m.log.EndOffset(), m.start, m.end)
	}
	var want []string
	for _, b := range m.batches {
		for i, v := range b.values {
			if offset := b.base + int64(i); offset >= m.start {
				want = append(want, fmt.Sprintf("%d:%s", offset, v))
			}
		}
	}
	got := readValues(fatalTB{t: t}, m.log, m.start)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("log holds %v\nwant %v", got, want)
	}
	producers := m.log.ActiveProducers()
	if len(producers) != len(m.next) {
		t.Fatalf("producers %+v are known, want %v", producers, m.next)
	}
	for _, p := range producers {
		if next := record.AddSequence(p.LastSequence, 1); next != m.next[p.ProducerID] {
			t.Fatalf("producer %d: next sequence %d, want %d", p.ProducerID, next, m.next[p.ProducerID])
		}
	}
}

// fatalTB lets helpers for tests run under rapid.
type fatalTB struct {
	testing.TB
	t *rapid.T
}

func (f fatalTB) Helper()                   {}
func (f fatalTB) Fatal(args ...any)         { f.t.Fatal(args...) }
func (f fatalTB) Fatalf(s string, a ...any) { f.t.Fatalf(s, a...) }
