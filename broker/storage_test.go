package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/broker/commitlog"
)

// fullFS is a file system whose disk can be full: writes that would make a log
// longer fail half way.
type fullFS struct {
	commitlog.OSFS
	full atomic.Bool
}

func (f *fullFS) OpenFile(name string, flag int) (commitlog.File, error) {
	file, err := f.OSFS.OpenFile(name, flag)
	if err != nil || !strings.HasSuffix(name, ".log") {
		return file, err
	}
	return &fullFile{file, f}, nil
}

type fullFile struct {
	commitlog.File
	fs *fullFS
}

func (f *fullFile) WriteAt(p []byte, off int64) (int, error) {
	if !f.fs.full.Load() {
		return f.File.WriteAt(p, off)
	}
	n, err := f.File.WriteAt(p[:len(p)/2], off)
	if err == nil {
		err = &os.PathError{Op: "write", Path: "log", Err: syscall.ENOSPC}
	}
	return n, err
}

// While the disk is full producers get an error and consumers go on; when there
// is room again, producing goes on, and nothing acknowledged is lost.
func TestDiskFull(t *testing.T) {
	cfg := testConfig(t)
	disk := &fullFS{}
	cfg.FS = disk
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	produce(t, n.client(t), "t", 0, 100)

	disk.full.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	cl := n.client(t)
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "t", Value: []byte("refused")}).FirstErr(); err == nil {
		t.Error("acknowledged on a full disk")
	}
	if got := consume(t, n.client(t, kgo.ConsumeTopics("t")), 100); len(got) != 100 {
		t.Errorf("%d records while the disk is full", len(got))
	}
	if n.Ready() != nil || n.partitions.Get("t", 0).Err() != nil {
		t.Errorf("not ready: %v, %v", n.Ready(), n.partitions.Get("t", 0).Err())
	}
	disk.full.Store(false)
	produce(t, n.client(t), "t", 100, 200)
	n.abort()
	n = startNode(t, cfg)
	seen := map[string]bool{}
	for _, r := range consume(t, n.client(t, kgo.ConsumeTopics("t")), 200) {
		seen[string(r.Value)] = true
	}
	if !seen["value-000000"] || !seen["value-000199"] {
		t.Errorf("%d values", len(seen))
	}
}

func TestNoRoomForTheClusterState(t *testing.T) {
	b := &Broker{cfg: Config{DataDir: "/srv/first"}}
	wantWords(t, b.explainNoRoom(fmt.Errorf("write cluster store: %w", syscall.ENOSPC)).Error(), "no space left", "/srv/first", "log.dirs", "make some")
	if other := errors.New("another"); b.explainNoRoom(other) != other {
		t.Error("another error is explained")
	}
}

// A log that is damaged below its recovery point keeps its own partition
// offline and no other.
func TestOneBadLogDoesNotStopTheOthers(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "good", 1, nil)
	n.createTopic(t, "bad", 1, nil)
	produce(t, n.client(t), "good", 0, 10)
	n.stop(t)
	// A file where the log's directory should be.
	dir := filepath.Join(cfg.DataDir, "bad-0")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, cfg)
	if got := consume(t, n.client(t, kgo.ConsumeTopics("good")), 10); len(got) != 10 {
		t.Errorf("%d records", len(got))
	}
	if offline := series(t, n.reg, "sluice_broker_offline_partitions")[""]; offline != 1 {
		t.Errorf("%v partitions offline", offline)
	}
	// Mended, it comes back without a restart.
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	n.retryOffline()
	produce(t, n.client(t), "bad", 0, 10)
	if offline := series(t, n.reg, "sluice_broker_offline_partitions")[""]; offline != 0 {
		t.Errorf("%v partitions offline", offline)
	}
}

// The directory of a topic that the cluster does not know is kept, under a name
// that is not served.
func TestUnknownDirectoryIsSetAside(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	produce(t, n.client(t), "t", 0, 10)
	n.stop(t)
	if err := os.Rename(filepath.Join(cfg.DataDir, "t-0"), filepath.Join(cfg.DataDir, "other-0")); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, cfg)
	strays, err := filepath.Glob(filepath.Join(cfg.DataDir, "other-0.*-stray", "*.log"))
	if err != nil || len(strays) != 1 {
		t.Errorf("%v, %v", strays, err)
	}
	produce(t, n.client(t), "t", 0, 10) // an empty log was made for it
}

// What was set aside is removed when its time is over, counted from when that was
// noted, and not what only looks like it.
func TestStraysAreRemovedInTime(t *testing.T) {
	clock := &stoppedClock{t: time.Now()}
	cfg := testConfig(t)
	cfg.Now = clock.now
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	n.stop(t)
	at := func(name string) string { return filepath.Join(cfg.DataDir, name) }
	if err := os.Rename(at("t-0"), at("other-0")); err != nil {
		t.Fatal(err)
	}
	old := at("old-0.0123-stray") // of a build that noted nothing
	for _, dir := range []string{old, at("keep-stray"), at("t-0.0123-stray.old")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n = startNode(t, cfg)
	strays := func() int {
		t.Helper()
		n.strayStep()
		found, err := filepath.Glob(at("*.*-stray"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	clock.advance(time.Hour)
	if left := strays(); left != 2 {
		t.Errorf("%d are left after an hour", left)
	}
	clock.advance(7*24*time.Hour - time.Hour)
	if left := strays(); left != 1 {
		t.Errorf("%d are left after a week", left)
	}
	clock.advance(time.Hour)
	if left := strays(); left != 0 {
		t.Errorf("%d are left after a week and an hour", left)
	}
	for _, dir := range []string{at("keep-stray"), at("t-0.0123-stray.old"), at("t-0")} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
	if gone, err := filepath.Glob(at("*-delete")); err != nil || len(gone) > 0 {
		t.Errorf("left: %v, %v", gone, err)
	}
	n.cfg.StrayRetention = -1
	if err := os.Mkdir(old, 0o755); err != nil {
		t.Fatal(err)
	}
	clock.advance(10_000 * time.Hour)
	if left := strays(); left != 1 {
		t.Error("removed although it is to be kept for ever")
	}
}

// A tail that is torn by a kill is cut, and said so; earlier records stay.
func TestTornTailIsCut(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	for i := range 10 {
		produce(t, n.client(t), "t", i*10, (i+1)*10)
	}
	n.abort()
	path := filepath.Join(cfg.DataDir, "t-0", "00000000000000000000.log")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-5); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, cfg)
	if n.recovered.cutBytes.Load() == 0 {
		t.Error("nothing was cut")
	}
	end := n.partitions.Get("t", 0).HighWatermark()
	if end != 90 {
		t.Errorf("the log ends at %d", end)
	}
	if got := consume(t, n.client(t, kgo.ConsumeTopics("t")), 90); len(got) != 90 {
		t.Errorf("%d records", len(got))
	}
}

// Retention removes what is too old, and keeps the rest, without a restart.
func TestRetentionStep(t *testing.T) {
	cfg := testConfig(t)
	var offset atomic.Int64
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, map[string]*string{"segment.bytes": ptr("1048576"), "retention.ms": ptr("3600000"), "file.delete.delay.ms": ptr("0")})
	cl := n.client(t, kgo.ProducerBatchCompression(kgo.NoCompression()))
	for range 4 {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: bytes.Repeat([]byte("x"), 600_000)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	n.retentionStep()
	if start := n.partitions.Get("t", 0).Log().StartOffset(); start != 0 {
		t.Errorf("young records are gone, up to %d", start)
	}
	offset.Store(int64(2 * time.Hour))
	n.retentionStep()
	n.rollStep()
	start := n.partitions.Get("t", 0).Log().StartOffset()
	if start == 0 {
		t.Error("old records are still there")
	}
	n.checkpointStep()
	n.highWatermarkStep()
	n.producerStep()
	n.abort()
	n = startNode(t, cfg)
	if after := n.partitions.Get("t", 0).Log().StartOffset(); after < start {
		t.Errorf("the log starts at %d after a restart, it was %d", after, start)
	}
}

// Checkpoints are written when something changed, and not otherwise.
func TestCheckpointsAreWrittenOnChange(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	produce(t, n.client(t), "t", 0, 10)
	path := filepath.Join(cfg.DataDir, commitlog.HighWatermarkFile)
	n.highWatermarkStep()
	content, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(content), "t 0 10\n") {
		t.Fatalf("%q, %v", content, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	n.highWatermarkStep()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("it was written though nothing had changed")
	}
}
