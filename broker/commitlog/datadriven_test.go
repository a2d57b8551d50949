package commitlog

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/sluice-io/sluice/internal/record"
)

const scriptDir = "/data/t-0"

// TestLog runs the scripts in testdata/log, each on a fresh crashable file
// system. Run with -rewrite to take what the log does now as what it should do.
func TestLog(t *testing.T) {
	datadriven.Walk(t, "testdata/log", func(t *testing.T, path string) {
		s := &script{fs: newMemFS(vfs.NewCrashableMem()), now: testTime}
		if err := s.fs.MkdirAll("/data"); err != nil {
			t.Fatal(err)
		}
		s.syncRoot(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			run, ok := scriptCommands[d.Cmd]
			if !ok {
				d.Fatalf(t, "unknown command")
			}
			s.out.Reset()
			if err := run(s, t, d); err != nil {
				fmt.Fprintf(&s.out, "error: %s\n", describe(err))
			}
			return s.out.String()
		})
		if s.log != nil {
			s.log.Abort()
		}
	})
}

// script is the state of one running script.
type script struct {
	fs     *memFS
	log    *Log
	now    time.Time
	cfg    Config
	region Region
	out    strings.Builder
}

func (s *script) printf(format string, args ...any) { fmt.Fprintf(&s.out, format, args...) }

func (s *script) syncRoot(t *testing.T) {
	if err := errors.Join(SyncDir(s.fs, "/"), SyncDir(s.fs, "/data")); err != nil {
		t.Fatal(err)
	}
}

// describe is an error with the typed ones marked, without what varies.
func describe(err error) string {
	var kinds []string
	for name, kind := range map[string]error{
		"ErrNoSpace": ErrNoSpace, "ErrOffline": ErrOffline, "ErrClosed": ErrClosed, "ErrOffsetOutOfRange": ErrOffsetOutOfRange,
		"ErrOutOfOrderSequence": ErrOutOfOrderSequence, "ErrInvalidProducerEpoch": ErrInvalidProducerEpoch, "ErrBatchTooLarge": ErrBatchTooLarge,
	} {
		if errors.Is(err, kind) {
			kinds = append(kinds, name)
		}
	}
	var corrupt *CorruptionError
	if errors.As(err, &corrupt) {
		kinds = append(kinds, "CorruptionError")
	}
	sort.Strings(kinds)
	return fmt.Sprintf("%v: %v", kinds, err)
}

var scriptCommands = map[string]func(*script, *testing.T, *datadriven.TestData) error{
	"open":           (*script).open,
	"append":         (*script).append,
	"follow":         (*script).follow,
	"read":           (*script).read,
	"hold":           (*script).hold,
	"release":        (*script).release,
	"dump":           (*script).dump,
	"ls":             (*script).ls,
	"cat":            (*script).cat,
	"flush":          (*script).flush,
	"checkpoint":     (*script).checkpoint,
	"roll":           (*script).roll,
	"cleanable":      (*script).cleanable,
	"clean":          (*script).clean,
	"retain":         (*script).retain,
	"remove-deleted": (*script).removeDeleted,
	"set-start":      (*script).setStart,
	"truncate":       (*script).truncate,
	"close":          (*script).close,
	"kill":           (*script).kill,
	"delete":         (*script).delete,
	"crash":          (*script).crash,
	"corrupt":        (*script).corrupt,
	"cut":            (*script).cutFile,
	"zeros":          (*script).zeros,
	"put":            (*script).put,
	"rm":             (*script).rm,
	"mv":             (*script).mv,
	"fault":          (*script).fault,
	"producers":      (*script).producers,
	"expire":         (*script).expire,
	"epoch":          (*script).epoch,
	"assign-epoch":   (*script).assignEpoch,
	"time":           (*script).time,
	"index":          (*script).index,
	"later":          (*script).later,
	"config":         (*script).config,
}

// arg reads an optional argument.
func arg[T any](t *testing.T, d *datadriven.TestData, name string, def T) T {
	v := def
	d.MaybeScanArgs(t, name, &v)
	return v
}

func (s *script) scanConfig(t *testing.T, d *datadriven.TestData) {
	s.cfg.SegmentBytes = arg(t, d, "segment-bytes", s.cfg.SegmentBytes)
	s.cfg.IndexIntervalBytes = arg(t, d, "index-interval", s.cfg.IndexIntervalBytes)
	s.cfg.IndexBytes = arg(t, d, "index-bytes", s.cfg.IndexBytes)
	s.cfg.SegmentAge = time.Duration(arg(t, d, "segment-ms", s.cfg.SegmentAge.Milliseconds())) * time.Millisecond
	s.cfg.RetentionBytes = arg(t, d, "retention-bytes", s.cfg.RetentionBytes)
	s.cfg.RetentionAge = time.Duration(arg(t, d, "retention-ms", s.cfg.RetentionAge.Milliseconds())) * time.Millisecond
	s.cfg.LogAppendTime = arg(t, d, "log-append-time", s.cfg.LogAppendTime)
	s.cfg.Compact = arg(t, d, "compact", s.cfg.Compact)
	s.cfg.DirtyRatioMin = arg(t, d, "dirty-ratio", s.cfg.DirtyRatioMin)
	s.cfg.CompactionLagMin = time.Duration(arg(t, d, "lag-min-ms", s.cfg.CompactionLagMin.Milliseconds())) * time.Millisecond
	s.cfg.CompactionLagMax = time.Duration(arg(t, d, "lag-max-ms", s.cfg.CompactionLagMax.Milliseconds())) * time.Millisecond
	s.cfg.TombstoneRetention = time.Duration(arg(t, d, "tombstone-ms", s.cfg.TombstoneRetention.Milliseconds())) * time.Millisecond
}

// cleanable prints what compaction would do.
func (s *script) cleanable(t *testing.T, d *datadriven.TestData) error {
	c, err := s.log.Cleanable(arg(t, d, "up-to", s.log.EndOffset()), s.now)
	s.printf("from=%d to=%d clean=%d dirty=%d due=%v\n", c.From, c.To, c.CleanBytes, c.DirtyBytes, c.Due)
	return err
}

// clean compacts; keys bounds how many the map holds.
func (s *script) clean(t *testing.T, d *datadriven.TestData) error {
	cfg := CleanerConfig{}
	if keys := arg(t, d, "keys", int64(0)); keys > 0 {
		cfg.DedupeBytes = (keys*dedupeLoadDen/dedupeLoadNum + 1) * dedupeSlotBytes
	}
	out, err := NewCleaner(cfg).Clean(s.log, arg(t, d, "up-to", s.log.EndOffset()), s.now)
	s.printf("from=%d to=%d segments=%d->%d records=%d->%d more=%v\n", out.From, out.To,
		out.SegmentsBefore, out.SegmentsAfter, out.RecordsRead, out.RecordsKept, out.More)
	return err
}

func (s *script) config(t *testing.T, d *datadriven.TestData) error {
	s.scanConfig(t, d)
	s.log.UpdateConfig(s.cfg)
	return nil
}

func (s *script) open(t *testing.T, d *datadriven.TestData) error {
	s.scanConfig(t, d)
	opt := OpenOptions{Clean: d.HasArg("clean"), Now: s.now, RecoveryPoint: arg(t, d, "recovery-point", int64(0)), LogStart: arg(t, d, "log-start", int64(0)), CleanedTo: arg(t, d, "cleaned-to", int64(0)), Holes: d.HasArg("holes")}
	l, rec, err := Open(s.fs, scriptDir, s.cfg, opt)
	if err != nil {
		return err
	}
	s.log = l
	if rec.Clean {
		s.printf("clean")
	} else {
		s.printf("checked segments=%d batches=%d bytes=%d", rec.SegmentsChecked, rec.BatchesChecked, rec.BytesChecked)
	}
	if rec.IndexesRebuilt > 0 {
		s.printf(" indexes-rebuilt=%d", rec.IndexesRebuilt)
	}
	s.printf("\n")
	if rec.CutBytes > 0 || rec.SegmentsDropped > 0 {
		s.printf("cut bytes=%d from offset=%d segments=%d: %s\n", rec.CutBytes, rec.CutOffset, rec.SegmentsDropped, rec.CutReason)
	}
	for _, name := range rec.Removed {
		s.printf("removed %s\n", name)
	}
	s.offsets()
	return nil
}

func (s *script) offsets() {
	s.printf("start=%d end=%d synced=%d size=%d\n", s.log.StartOffset(), s.log.EndOffset(), s.log.SyncedOffset(), s.log.Size())
}

// append adds one batch per line of input; the words of a line are its records.
func (s *script) append(t *testing.T, d *datadriven.TestData) error {
	opts := record.BuildOptions{ProducerID: arg(t, d, "pid", int64(-1)), ProducerEpoch: int16(arg(t, d, "pepoch", 0)), BaseSequence: arg(t, d, "seq", int32(0))}
	opts.Idempotent = opts.ProducerID >= 0
	ts := arg(t, d, "ts", s.now.UnixMilli())
	var data []byte
	together := d.HasArg("together") // all batches in one append
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		var batch record.Batch
		if d.HasArg("keyed") {
			batch = buildKeyed(t, opts, ts, strings.Fields(line)...)
		} else {
			batch = buildBatch(t, opts, ts, strings.Fields(line)...)
		}
		if opts.Idempotent {
			opts.BaseSequence = record.AddSequence(opts.BaseSequence, record.Batch(batch).Count())
		}
		if data = append(data, batch...); together {
			continue
		}
		if err := s.appendBytes(t, d, data); err != nil {
			return err
		}
		data = nil
	}
	if together {
		return s.appendBytes(t, d, data)
	}
	return nil
}

// buildKeyed makes a batch of words KEY=VALUE; KEY= is a tombstone.
func buildKeyed(t testing.TB, opts record.BuildOptions, ts int64, words ...string) record.Batch {
	t.Helper()
	var b record.Builder
	for _, w := range words {
		key, text, _ := strings.Cut(w, "=")
		var value []byte
		if text != "" {
			value = []byte(text)
		}
		b.Append(ts, []byte(key), value, nil)
	}
	batch, err := b.Build(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func (s *script) appendBytes(t *testing.T, d *datadriven.TestData, data []byte) error {
	out, err := s.log.Append(data, arg(t, d, "epoch", int32(0)), s.now)
	if err != nil {
		return err
	}
	s.printf("%d-%d", out.First, out.Last)
	if out.LogAppendTime >= 0 {
		s.printf(" time=%d", out.LogAppendTime)
	}
	if out.Rolled {
		s.printf(" rolled")
	}
	if out.Duplicate {
		s.printf(" duplicate")
	}
	s.printf("\n")
	return nil
}

// follow appends batches as a leader's log has them, all at once: each line has the
// offset and the epoch of one and its records. "damaged" breaks the last one.
func (s *script) follow(t *testing.T, d *datadriven.TestData) error {
	opts := record.BuildOptions{ProducerID: arg(t, d, "pid", int64(-1)), BaseSequence: arg(t, d, "seq", int32(0))}
	opts.Idempotent = opts.ProducerID >= 0
	var data []byte
	for line := range strings.Lines(strings.TrimSpace(d.Input)) {
		words := strings.Fields(line)
		batch := buildKeyed(t, opts, s.now.UnixMilli(), words[2:]...)
		var base int64
		var epoch int32
		if _, err := fmt.Sscanf(words[0]+" "+words[1], "%d epoch=%d", &base, &epoch); err != nil {
			t.Fatal(err)
		}
		batch.SetBaseOffset(base)
		batch.SetLeaderEpoch(epoch)
		data = append(data, batch...)
	}
	if d.HasArg("damaged") {
		data[len(data)-1] ^= 1
	}
	if d.HasArg("cut") {
		data = data[:len(data)-1]
	}
	out, err := s.log.AppendAsFollower(data, arg(t, d, "epoch", int32(0)), s.now)
	if err != nil {
		return err
	}
	s.printf("%d-%d bytes=%d\n", out.First, out.Last, out.Bytes)
	return nil
}

func (s *script) read(t *testing.T, d *datadriven.TestData) error {
	r, err := s.log.Read(arg(t, d, "offset", int64(0)), arg(t, d, "max", 1<<20), arg(t, d, "up-to", s.log.EndOffset()), !d.HasArg("strict"))
	if err != nil {
		return err
	}
	defer r.Release()
	return s.printRegion(r)
}

func (s *script) printRegion(r Region) error {
	data := make([]byte, r.Len)
	if r.Len > 0 {
		if _, err := r.File.ReadAt(data, r.Pos); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	s.printf("bytes %d-%d\n", r.Pos, r.Pos+int64(r.Len))
	return s.printBatches(data)
}

func (s *script) printBatches(data []byte) error {
	for len(data) > 0 {
		b, rest, err := record.Next(data)
		if err == nil {
			err = b.CheckCRC()
		}
		if err != nil {
			return err
		}
		s.printf("  %d-%d epoch=%d size=%d:", b.BaseOffset(), b.LastOffset(), b.LeaderEpoch(), len(b))
		if ms, ok := b.DeleteHorizon(); ok {
			s.printf(" horizon=%d", ms-testTime.UnixMilli())
		}
		err = b.Each(nil, func(r *record.Record) error {
			if r.Key != nil {
				s.printf(" %d:%s=", r.Offset, r.Key)
			} else {
				s.printf(" ")
			}
			s.printf("%s", r.Value)
			return nil
		})
		s.printf("\n")
		if err != nil {
			return err
		}
		data = rest
	}
	return nil
}

// hold keeps a region, to be printed and let go by release.
func (s *script) hold(t *testing.T, d *datadriven.TestData) (err error) {
	s.region, err = s.log.Read(arg(t, d, "offset", int64(0)), 1<<20, s.log.EndOffset(), true)
	return err
}

func (s *script) release(*testing.T, *datadriven.TestData) error {
	defer s.region.Release()
	return s.printRegion(s.region)
}

func (s *script) dump(*testing.T, *datadriven.TestData) error {
	s.offsets()
	for _, seg := range s.log.Segments() {
		s.printf("segment %d-%d bytes=%d\n", seg.BaseOffset, seg.EndOffset, seg.Bytes)
		data, err := readFile(s.fs, filepath.Join(scriptDir, fileName(seg.BaseOffset, logSuffix)))
		if err == nil {
			err = s.printBatches(data[:seg.Bytes])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *script) ls(t *testing.T, d *datadriven.TestData) error {
	dir := arg(t, d, "dir", scriptDir)
	entries, err := s.fs.List(dir)
	if err != nil {
		return err
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name < entries[j].Name })
	for _, e := range entries {
		s.printf("%s %d\n", strings.TrimLeft(strings.TrimPrefix(e.Name, "0000000000000000"), " "), e.Size)
	}
	return nil
}

func (s *script) cat(t *testing.T, d *datadriven.TestData) error {
	data, err := readFile(s.fs, s.path(t, d))
	s.printf("%s", data)
	return err
}

// path is the argument file, in which a number stands for twenty digits.
func (s *script) path(t *testing.T, d *datadriven.TestData) string {
	return scriptPath(arg(t, d, "file", "0.log"))
}

func scriptPath(name string) string {
	if number, suffix, ok := strings.Cut(name, "."); ok {
		var base int64
		if _, err := fmt.Sscan(number, &base); err == nil {
			name = fileName(base, "."+suffix)
		}
	}
	return filepath.Join(scriptDir, name)
}

func (s *script) flush(*testing.T, *datadriven.TestData) error {
	synced, err := s.log.Flush()
	s.printf("synced=%d\n", synced)
	return err
}

func (s *script) checkpoint(*testing.T, *datadriven.TestData) error {
	point, err := s.log.Checkpoint()
	s.printf("recovery-point=%d\n", point)
	return err
}

func (s *script) roll(*testing.T, *datadriven.TestData) error {
	rolled, err := s.log.RollIfDue(s.now)
	s.printf("rolled=%v\n", rolled)
	return err
}

func (s *script) retain(t *testing.T, d *datadriven.TestData) error {
	gone, err := s.log.Retain(s.now, arg(t, d, "up-to", s.log.EndOffset()))
	for _, seg := range gone {
		s.printf("removed segment %d-%d bytes=%d\n", seg.BaseOffset, seg.EndOffset, seg.Bytes)
	}
	s.offsets()
	return err
}

func (s *script) removeDeleted(*testing.T, *datadriven.TestData) error {
	n, err := s.log.RemoveDeleted(s.now)
	s.printf("segments=%d\n", n)
	return err
}

func (s *script) setStart(t *testing.T, d *datadriven.TestData) error {
	err := s.log.SetStartOffset(arg(t, d, "offset", int64(0)))
	s.offsets()
	return err
}

func (s *script) truncate(t *testing.T, d *datadriven.TestData) error {
	offset := arg(t, d, "offset", int64(0))
	truncate := s.log.TruncateTo
	if d.HasArg("fully") {
		truncate = s.log.TruncateFullyAt
	}
	err := truncate(offset, s.now)
	s.offsets()
	return err
}

func (s *script) close(*testing.T, *datadriven.TestData) error { return s.log.Close() }

func (s *script) kill(*testing.T, *datadriven.TestData) error {
	s.log.Abort()
	return nil
}

func (s *script) delete(*testing.T, *datadriven.TestData) error {
	err := s.log.Delete()
	removed, removeErr := RemoveDeletedDirs(s.fs, "/data")
	s.printf("left over: %d\n", len(removed))
	return errors.Join(err, removeErr)
}

// crash cuts the power: what is not synced is lost, or kept in part.
func (s *script) crash(t *testing.T, d *datadriven.TestData) error {
	s.log.Abort()
	s.fs = s.fs.crash(arg(t, d, "keep-percent", 0), uint64(arg(t, d, "seed", 1)))
	return nil
}

// corrupt flips the bits of one byte; at counts from the end when negative.
func (s *script) corrupt(t *testing.T, d *datadriven.TestData) error {
	return s.change(t, d, func(data []byte) []byte {
		at := arg(t, d, "at", 0)
		if at < 0 {
			at += len(data)
		}
		data[at] ^= 0xff
		return data
	})
}

func (s *script) cutFile(t *testing.T, d *datadriven.TestData) error {
	return s.change(t, d, func(data []byte) []byte { return data[:len(data)-arg(t, d, "bytes", 0)] })
}

func (s *script) zeros(t *testing.T, d *datadriven.TestData) error {
	return s.change(t, d, func(data []byte) []byte { return append(data, make([]byte, arg(t, d, "bytes", 0))...) })
}

func (s *script) change(t *testing.T, d *datadriven.TestData, fn func([]byte) []byte) error {
	data, err := readFile(s.fs, s.path(t, d))
	if err != nil {
		return err
	}
	return writeSynced(s.fs, s.path(t, d), fn(data))
}

func (s *script) put(t *testing.T, d *datadriven.TestData) error {
	return writeSynced(s.fs, s.path(t, d), []byte(d.Input))
}

func (s *script) rm(t *testing.T, d *datadriven.TestData) error {
	return errors.Join(s.fs.Remove(s.path(t, d)), SyncDir(s.fs, scriptDir))
}

func (s *script) mv(t *testing.T, d *datadriven.TestData) error {
	return errors.Join(s.fs.Rename(s.path(t, d), scriptPath(arg(t, d, "to", ""))), SyncDir(s.fs, scriptDir))
}

// fault makes the file system fail until "fault clear".
func (s *script) fault(t *testing.T, d *datadriven.TestData) error {
	f := s.fs.faults
	f.clear()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = errors.New("injected")
	if d.HasArg("space") {
		f.limited, f.spaceBytes = true, arg(t, d, "space", 0)
	}
	if d.HasArg("short") {
		f.shortSuffix, f.shortBytes = arg(t, d, "file", logSuffix), arg(t, d, "short", 0)
	}
	kinds := map[string]errorfs.OpKind{"sync": errorfs.OpFileSync, "create": errorfs.OpCreate, "rename": errorfs.OpRename, "remove": errorfs.OpRemove, "write": errorfs.OpFileWriteAt, "read": errorfs.OpFileReadAt}
	for name, kind := range kinds {
		if d.HasArg(name) {
			f.fail = map[errorfs.OpKind]string{kind: arg(t, d, name, "")}
		}
	}
	return nil
}

func (s *script) producers(*testing.T, *datadriven.TestData) error {
	for _, p := range s.log.ActiveProducers() {
		s.printf("%d epoch=%d sequence=%d offset=%d\n", p.ProducerID, p.Epoch, p.LastSequence, p.LastOffset)
	}
	return nil
}

func (s *script) expire(*testing.T, *datadriven.TestData) error {
	s.printf("expired=%d\n", s.log.ExpireProducers(s.now))
	return nil
}

func (s *script) epoch(t *testing.T, d *datadriven.TestData) error {
	s.printf("latest=%d", s.log.LatestEpoch())
	for e := int32(0); e <= s.log.LatestEpoch()+1; e++ {
		found, end := s.log.EndOffsetForEpoch(e)
		s.printf(" %d:(%d,%d)", e, found, end)
	}
	s.printf("\n")
	return nil
}

func (s *script) assignEpoch(t *testing.T, d *datadriven.TestData) error {
	return s.log.AssignEpoch(arg(t, d, "epoch", int32(0)), arg(t, d, "start", s.log.EndOffset()))
}

func (s *script) time(t *testing.T, d *datadriven.TestData) error {
	upTo := arg(t, d, "up-to", s.log.EndOffset())
	find := func(upTo int64) (int64, int64, int32, bool, error) {
		return s.log.OffsetForTimestamp(arg(t, d, "ms", int64(0)), upTo)
	}
	if d.HasArg("max") {
		find = s.log.MaxTimestamp
	}
	offset, ts, epoch, ok, err := find(upTo)
	s.printf("offset=%d ts=%d epoch=%d ok=%v\n", offset, ts, epoch, ok)
	return err
}

// index prints the entries of an index file.
func (s *script) index(t *testing.T, d *datadriven.TestData) error {
	path := s.path(t, d)
	data, err := readFile(s.fs, path)
	if err != nil {
		return err
	}
	width := offsetEntryBytes
	if strings.HasSuffix(path, timesSuffix) {
		width = timeEntryBytes
	}
	x := &index{width: width}
	for ; len(data) >= width; data = data[width:] {
		e := x.decode(data)
		s.printf("%d %d\n", e.key, e.val)
	}
	return nil
}

func (s *script) later(t *testing.T, d *datadriven.TestData) error {
	s.now = s.now.Add(time.Duration(arg(t, d, "ms", int64(0))) * time.Millisecond)
	return nil
}
