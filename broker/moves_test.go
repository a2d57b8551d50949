package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/internal/record"
)

// moveTo asks for the log of a topic's first partition to be moved.
func (n *node) moveTo(t *testing.T, topic, dir string) error {
	t.Helper()
	req := kadm.AlterReplicaLogDirsReq{}
	req.Add(dir, kadm.TopicsSet{topic: {0: {}}})
	done, err := n.admin(t).AlterAllReplicaLogDirs(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return done[1][topic][0].Err
}

// logAt is the data directory that a topic's first partition is in, "" while it is in none.
func (n *node) logAt(topic string) string {
	if p := n.partitions.Get(topic, 0); p != nil {
		return filepath.Dir(p.Log().Dir())
	}
	return ""
}

func (n *node) awaitMove(t *testing.T, topic, dir string) {
	t.Helper()
	eventually(t, topic+" is in "+dir, func() bool { return n.logAt(topic) == dir && len(n.mover.list()) == 0 })
}

// elsewhere is a data directory that a topic's first partition is not in.
func (n *node) elsewhere(topic string) string {
	for _, d := range n.dirs {
		if d.path != n.logAt(topic) {
			return d.path
		}
	}
	return ""
}

// leftOvers are the directories of a topic that are not of its partitions.
func leftOvers(t *testing.T, cfg Config, topic string) (names []string) {
	t.Helper()
	for _, dir := range cfg.dataDirs() {
		found, err := filepath.Glob(filepath.Join(dir, topic+"-*.*"))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// values are those of a topic's records, which have to be as many and in order.
func (n *node) wantValues(t *testing.T, topic string, want int) {
	t.Helper()
	for i, r := range consume(t, n.client(t, kgo.ConsumeTopics(topic)), want) {
		if string(r.Value) != fmt.Sprintf("value-%06d", i) {
			t.Fatalf("record %d is %s", i, r.Value)
		}
	}
	eventually(t, fmt.Sprintf("there are %d records", want), func() bool {
		p := n.partitions.Get(topic, 0) // none in the moment of an exchange
		return p != nil && p.HighWatermark() == int64(want)
	})
}

// A log is moved while producers write to it and consumers read it: nothing is lost,
// doubled or refused for good, and it is where it should be after a start, too.
func TestALogMovesUnderLoad(t *testing.T) {
	cfg := severalDirs(t)
	n := startNode(t, cfg)
	small := "1048576"
	n.createTopic(t, "t", 1, map[string]*string{"segment.bytes": &small})
	cl := n.client(t, kgo.ProducerBatchMaxBytes(2000), kgo.ProducerBatchCompression(kgo.NoCompression()))
	sent := 0
	more := func(records int) {
		produce(t, cl, "t", sent, sent+records)
		sent += records
	}
	more(100_000) // several segments, and several pieces
	for range 4 {
		to := n.elsewhere("t")
		if err := n.moveTo(t, "t", to); err != nil {
			t.Fatal(err)
		}
		for n.logAt("t") != to {
			more(50)
		}
		more(50)
	}
	at := n.logAt("t")
	n.wantValues(t, "t", sent)
	eventually(t, "the old logs are gone", func() bool { return len(leftOvers(t, cfg, "t")) == 0 })
	n.highWatermarkStep()
	n.checkpointStep()
	n.stop(t)
	n = startNode(t, cfg)
	if n.logAt("t") != at || n.recovered.unclean.Load() != 0 {
		t.Errorf("in %s, %d logs checked", n.logAt("t"), n.recovered.unclean.Load())
	}
	cl = n.client(t)
	more(10)
	n.wantValues(t, "t", sent)
}

// What a group has committed moves with its log.
func TestTheOffsetsLogMoves(t *testing.T) {
	cfg := severalDirs(t)
	cfg.OffsetsPartitions = 1
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	offsets := kadm.Offsets{}
	offsets.AddOffset("t", 0, 42, -1)
	commit := func() {
		if err := n.admin(t).CommitAllOffsets(t.Context(), "g", offsets); err != nil {
			t.Fatal(err)
		}
	}
	commit()
	to := n.elsewhere("__consumer_offsets")
	if err := n.moveTo(t, "__consumer_offsets", to); err != nil {
		t.Fatal(err)
	}
	n.awaitMove(t, "__consumer_offsets", to)
	got, err := n.admin(t).FetchOffsets(t.Context(), "g")
	if o, ok := got.Lookup("t", 0); err != nil || !ok || o.At != 42 {
		t.Errorf("%+v, %v", got, err)
	}
	commit()
}

// A compacted log has gaps, which its copy keeps, and one whose start was moved begins there.
func TestLogsWithGapsMove(t *testing.T) {
	cfg := severalDirs(t)
	n := startNode(t, cfg)
	compact := "compact"
	n.createTopic(t, "t", 1, map[string]*string{"cleanup.policy": &compact})
	cl := n.client(t)
	for i := range 300 {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Key: fmt.Append(nil, i%7), Value: fmt.Append(nil, i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if i == 250 {
			rollAll(t, n)
		}
	}
	p := n.partitions.Get("t", 0)
	if err := n.cleaner.clean(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	list := func() (out []string) {
		for off, l := int64(0), n.partitions.Get("t", 0).Log(); off < l.EndOffset(); {
			region, err := l.Read(off, 1, l.EndOffset(), true)
			if err != nil || region.Len == 0 {
				t.Fatal(off, region.Len, err)
			}
			b := make([]byte, region.Len)
			if _, err := region.File.ReadAt(b, region.Pos); err != nil {
				t.Fatal(err)
			}
			region.Release()
			out = append(out, string(b))
			off = record.Batch(b).LastOffset() + 1
		}
		return out
	}
	want := list()
	to := n.elsewhere("t")
	if err := n.moveTo(t, "t", to); err != nil {
		t.Fatal(err)
	}
	n.awaitMove(t, "t", to)
	if got := list(); len(want) >= 300 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d batches, %d before", len(got), len(want))
	}

	n.createTopic(t, "u", 1, nil)
	produce(t, cl, "u", 0, 10)
	starts := kadm.Offsets{}
	starts.AddOffset("u", 0, 7, -1)
	if _, err := n.admin(t).DeleteRecords(t.Context(), starts); err != nil {
		t.Fatal(err)
	}
	to = n.elsewhere("u")
	if err := n.moveTo(t, "u", to); err != nil {
		t.Fatal(err)
	}
	n.awaitMove(t, "u", to)
	if l := n.partitions.Get("u", 0).Log(); l.StartOffset() != 7 || l.EndOffset() != 10 {
		t.Errorf("from %d to %d", l.StartOffset(), l.EndOffset())
	}
}

// slowMoves keeps moves from ending: a rate of a byte a second lets one piece pass.
func slowMoves(t *testing.T, n *node) {
	n.mustAlter(t, kmsg.ConfigResourceTypeBroker, "1", "replica.alter.log.dirs.io.max.bytes.per.second=1")
}

// A move is told of while it lasts, can be turned to another directory and be cancelled,
// ends with its topic, and goes on after a restart.
func TestAMoveCanBeWatchedAndCancelled(t *testing.T) {
	cfg := severalDirs(t)
	n := startNode(t, cfg)
	slowMoves(t, n)
	n.createTopic(t, "t", 1, nil)
	cl := n.client(t)
	produce(t, cl, "t", 0, 100)
	home := n.logAt("t")
	first, second := "", ""
	for _, dir := range cfg.dataDirs() {
		if dir != home && first == "" {
			first = dir
		} else if dir != home {
			second = dir
		}
	}
	future := func() (found []string) {
		for _, d := range n.describeLogDirs(t).Dirs {
			for _, topic := range d.Topics {
				for _, p := range topic.Partitions {
					if p.IsFuture {
						found = append(found, fmt.Sprintf("%s-%d in %s", topic.Topic, p.Partition, d.Dir))
					}
				}
			}
		}
		return found
	}
	for i, dir := range []string{first, second} {
		for range 2 { // once more changes nothing
			if err := n.moveTo(t, "t", dir); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a piece is copied, as far as the rate allows", func() bool {
				l := n.mover.list()
				return len(l) == 1 && (i > 0 || l[0].Lag == 0)
			})
		}
		produce(t, cl, "t", 100+i, 101+i)
		if got := fmt.Sprint(future()); got != "[t-0 in "+dir+"]" {
			t.Fatal(got)
		}
		if l := n.mover.list(); l[0].Lag == 0 || i == 0 && l[0].Bytes == 0 {
			t.Errorf("%+v", l)
		}
	}
	if err := n.moveTo(t, "t", home); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no copy is left", func() bool { return len(future()) == 0 && len(leftOvers(t, cfg, "t")) == 0 })
	if n.logAt("t") != home {
		t.Error("a cancelled move was made")
	}

	if err := n.moveTo(t, "t", second); err != nil {
		t.Fatal(err)
	}
	n.stop(t)
	n = startNode(t, cfg)
	if got := fmt.Sprint(future()); got != "[t-0 in "+second+"]" {
		t.Error("after a restart: ", got)
	}
	n.mustAlter(t, kmsg.ConfigResourceTypeBroker, "1", "replica.alter.log.dirs.io.max.bytes.per.second=0")
	n.awaitMove(t, "t", second)

	slowMoves(t, n)
	if err := n.moveTo(t, "t", home); err != nil {
		t.Fatal(err)
	}
	if _, err := n.admin(t).DeleteTopics(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	n.mustAlter(t, kmsg.ConfigResourceTypeBroker, "1", "replica.alter.log.dirs.io.max.bytes.per.second=0")
	eventually(t, "the copy of a deleted topic is gone", func() bool { return len(leftOvers(t, cfg, "t")) == 0 })
}

// A move to a full disk waits; the log is served from where it is.
func TestAMoveWaitsForRoom(t *testing.T) {
	cfg := severalDirs(t)
	disk := &fullFS{}
	cfg.FS = disk
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	produce(t, n.client(t), "t", 0, 100)
	home := n.logAt("t")
	disk.full.Store(true)
	if err := n.moveTo(t, "t", n.elsewhere("t")); err != nil {
		t.Fatal(err)
	}
	n.wantValues(t, "t", 100)
	if n.logAt("t") != home {
		t.Error("moved to a full disk")
	}
	disk.full.Store(false)
	for dir, code := range n.logDirErrors(t) {
		if code != 0 {
			t.Errorf("%s: %v", dir, kerr.ErrorForCode(code))
		}
	}
}

// deadFS takes no change any more after a number of them, as if the process had ended there; with once, it fails a single one.
type deadFS struct {
	commitlog.OSFS
	once  bool
	armed atomic.Bool
	left  atomic.Int64
}

var errDead = &os.PathError{Op: "write", Path: "the disk", Err: syscall.EIO}

func (f *deadFS) dead() bool {
	if !f.armed.Load() {
		return false
	}
	left := f.left.Add(-1)
	return left < 0 && (!f.once || left == -1)
}

func (f *deadFS) OpenFile(name string, flag int) (commitlog.File, error) {
	if flag&os.O_CREATE != 0 && f.dead() {
		return nil, errDead
	}
	file, err := f.OSFS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return &deadFile{file, f}, nil
}

func (f *deadFS) MkdirAll(dir string) error {
	if f.dead() {
		return errDead
	}
	return f.OSFS.MkdirAll(dir)
}

func (f *deadFS) Rename(from, to string) error {
	if f.dead() {
		return errDead
	}
	return f.OSFS.Rename(from, to)
}

func (f *deadFS) Remove(name string) error {
	if f.dead() {
		return errDead
	}
	return f.OSFS.Remove(name)
}

type deadFile struct {
	commitlog.File
	fs *deadFS
}

func (f *deadFile) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.dead() {
		return 0, errDead
	}
	return f.File.WriteAt(p, off)
}

func (f *deadFile) Sync() error {
	if f.fs.dead() {
		return errDead
	}
	return f.File.Sync()
}

func (f *deadFile) Truncate(size int64) error {
	if f.fs.dead() {
		return errDead
	}
	return f.File.Truncate(size)
}

// Whatever a broker had done of a move when it was killed, or when its disk failed it
// once, the next one has all records, in one place, and ends the move.
func TestAMoveOutlastsAKillAtAnyStep(t *testing.T) {
	step := int64(1)
	if testing.Short() {
		step = 5
	}
	for _, once := range []bool{false, true} {
		steps := int64(0)
		for ; !killedInMove(t, steps, once); steps += step {
		}
		if steps < 10 {
			t.Errorf("a move of %d changes", steps)
		}
	}
}

// killedInMove kills a broker after some changes to the disk in a move; whole says that
// the move had ended by then.
func killedInMove(t *testing.T, steps int64, once bool) (whole bool) {
	cfg := severalDirs(t)
	disk := &deadFS{once: once}
	cfg.FS = disk
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	cl := n.client(t)
	produce(t, cl, "t", 0, 200)
	rollAll(t, n)
	produce(t, cl, "t", 200, 300)
	to := n.elsewhere("t")
	disk.left.Store(steps)
	disk.armed.Store(true)
	asked := n.moveTo(t, "t", to)
	eventually(t, "the disk is dead or the move done", func() bool {
		return disk.left.Load() < 0 || n.logAt("t") == to && len(n.mover.list()) == 0 && len(leftOvers(t, cfg, "t")) == 0
	})
	whole = disk.left.Load() >= 0
	n.abort()
	cl.Close()
	cfg.FS = nil
	n = startNode(t, cfg)
	defer n.stop(t)
	n.wantValues(t, "t", 300)
	if asked == nil {
		eventually(t, fmt.Sprintf("the move is ended, killed after %d changes", steps), func() bool { return len(n.mover.list()) == 0 && len(leftOvers(t, cfg, "t")) == 0 })
	}
	n.wantValues(t, "t", 300)
	produce(t, n.client(t), "t", 300, 310)
	n.wantValues(t, "t", 310)
	return whole
}
