package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/commitlog"
)

func severalDirs(t *testing.T) Config {
	cfg := testConfig(t)
	cfg.MoreDataDirs = []string{t.TempDir(), t.TempDir()}
	return cfg
}

// partitionsIn counts the partitions' directories of a data directory.
func partitionsIn(t *testing.T, dir, topic string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, topic+"-[0-9]*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

func TestPartitionsAreSpreadOverDirectories(t *testing.T) {
	cfg := severalDirs(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 9, nil)
	n.createTopic(t, "u", 3, nil)
	produce(t, n.client(t, kgo.RecordPartitioner(kgo.RoundRobinPartitioner())), "t", 0, 900)
	n.checkpointStep()
	n.highWatermarkStep()
	ids := map[string]bool{}
	for _, dir := range cfg.dataDirs() {
		if got := partitionsIn(t, dir, "t"); got != 3 {
			t.Errorf("%d partitions of t in %s", got, dir)
		}
		if got := partitionsIn(t, dir, "u"); got != 1 {
			t.Errorf("%d partitions of u in %s", got, dir)
		}
		p, ok, err := commitlog.ReadProperties(commitlog.OSFS{}, dir)
		if err != nil || !ok || p.ClusterID != n.identity.ClusterID || ids[p.DirectoryID] {
			t.Errorf("%+v, %v", p, err)
		}
		ids[p.DirectoryID] = true
		for _, file := range []string{lockFile, commitlog.RecoveryPointFile, commitlog.HighWatermarkFile} {
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				t.Error(err)
			}
		}
	}
	n.stop(t)
	for _, dir := range cfg.dataDirs() {
		if _, err := os.Stat(filepath.Join(dir, commitlog.CleanShutdownFile)); err != nil {
			t.Error(err)
		}
	}
	// The order of the directories does not matter, but for the first.
	cfg.MoreDataDirs[0], cfg.MoreDataDirs[1] = cfg.MoreDataDirs[1], cfg.MoreDataDirs[0]
	n = startNode(t, cfg)
	if n.recovered.unclean.Load() != 0 {
		t.Errorf("%d logs were checked after a clean stop", n.recovered.unclean.Load())
	}
	if got := consume(t, n.client(t, kgo.ConsumeTopics("t")), 900); len(got) != 900 {
		t.Errorf("%d records", len(got))
	}
	if _, err := n.admin(t).DeleteTopics(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	n.createTopic(t, "v", 3, nil)
	for _, dir := range cfg.dataDirs() {
		if partitionsIn(t, dir, "t") != 0 || partitionsIn(t, dir, "v") != 1 {
			t.Errorf("%d of t and %d of v in %s", partitionsIn(t, dir, "t"), partitionsIn(t, dir, "v"), dir)
		}
	}
}

// failingFS fails every sync of a file below a directory.
type failingFS struct {
	commitlog.OSFS
	bad atomic.Pointer[string]
}

func (f *failingFS) OpenFile(name string, flag int) (commitlog.File, error) {
	file, err := f.OSFS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return &failingFile{file, f, name}, nil
}

type failingFile struct {
	commitlog.File
	fs   *failingFS
	name string
}

func (f *failingFile) Sync() error {
	if bad := f.fs.bad.Load(); bad != nil && strings.HasPrefix(f.name, *bad) {
		return &os.PathError{Op: "sync", Path: f.name, Err: syscall.EIO}
	}
	return f.File.Sync()
}

// produceTo sends one record to a partition and returns its error, without a
// second try.
func (n *node) produceTo(t *testing.T, topic string, partition int32, value string) error {
	t.Helper()
	cl := n.client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite(), kgo.RecordRetries(0))
	defer cl.Close()
	return cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}).FirstErr()
}

// byDirectory splits a topic's partitions by whether they are in a directory.
func (n *node) byDirectory(topic, dir string) (in, out []int32) {
	for _, p := range n.partitions.All() {
		if p.Topic() != topic {
			continue
		}
		if filepath.Dir(p.Log().Dir()) == dir {
			in = append(in, p.Index())
		} else {
			out = append(out, p.Index())
		}
	}
	return in, out
}

// describeLogDirs asks the broker itself: the client's merging of several
// brokers' answers leaves out fields.
func (n *node) describeLogDirs(t *testing.T) *kmsg.DescribeLogDirsResponse {
	t.Helper()
	resp, err := n.client(t).Broker(1).RetriableRequest(t.Context(), kmsg.NewPtrDescribeLogDirsRequest())
	if err != nil {
		t.Fatal(err)
	}
	return resp.(*kmsg.DescribeLogDirsResponse)
}

func (n *node) logDirErrors(t *testing.T) map[string]int16 {
	t.Helper()
	out := map[string]int16{}
	for _, d := range n.describeLogDirs(t).Dirs {
		out[d.Dir] = d.ErrorCode
	}
	return out
}

// A failed fsync takes its directory offline, with all partitions in it, and no
// other; what was acknowledged is there when the disk is back.
func TestFailedDirectoryTakesItsPartitionsOnly(t *testing.T) {
	cfg := severalDirs(t)
	disk := &failingFS{}
	cfg.FS = disk
	n := startNode(t, cfg)
	n.createTopic(t, "t", 6, nil)
	bad := cfg.MoreDataDirs[0]
	lost, kept := n.byDirectory("t", bad)
	if len(lost) != 2 || len(kept) != 4 {
		t.Fatalf("%v, %v", lost, kept)
	}
	for p := range int32(6) {
		if err := n.produceTo(t, "t", p, "acknowledged"); err != nil {
			t.Fatal(err)
		}
	}
	disk.bad.Store(&bad)
	if err := n.produceTo(t, "t", lost[0], "refused"); !errors.Is(err, kerr.KafkaStorageError) {
		t.Errorf("while a sync fails: %v", err)
	}
	for _, p := range lost { // the second has not been touched since
		if err := n.produceTo(t, "t", p, "refused"); !errors.Is(err, kerr.KafkaStorageError) {
			t.Errorf("partition %d in the failed directory: %v", p, err)
		}
	}
	for _, p := range kept {
		if err := n.produceTo(t, "t", p, "kept"); err != nil {
			t.Errorf("partition %d in another directory: %v", p, err)
		}
	}
	if codes := n.logDirErrors(t); codes[bad] != kerr.KafkaStorageError.Code || codes[cfg.DataDir] != 0 || codes[cfg.MoreDataDirs[1]] != 0 {
		t.Errorf("%v", codes)
	}
	if n.Ready() != nil || series(t, n.reg, "sluice_broker_offline_partitions")[""] != 2 || series(t, n.reg, "sluice_broker_offline_data_dirs")[""] != 1 {
		t.Errorf("ready: %v, %v offline", n.Ready(), series(t, n.reg, "sluice_broker_offline_partitions"))
	}
	described, err := n.admin(t).ListTopics(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range described["t"].Partitions {
		if offline := len(p.OfflineReplicas) == 1; offline != (p.Partition == lost[0] || p.Partition == lost[1]) {
			t.Errorf("partition %d: offline replicas %v", p.Partition, p.OfflineReplicas)
		}
	}
	n.createTopic(t, "later", 4, nil)
	if got := partitionsIn(t, bad, "later"); got != 0 {
		t.Errorf("%d new partitions in the failed directory", got)
	}

	disk.bad.Store(nil)
	n.abort()
	n = startNode(t, cfg)
	for p := range int32(6) {
		if hw := n.partitions.Get("t", p).HighWatermark(); hw < 1 {
			t.Errorf("partition %d ends at %d", p, hw)
		}
		if err := n.produceTo(t, "t", p, "again"); err != nil {
			t.Error(err)
		}
	}
}

// What is in a directory that cannot be read at the start is not made anew
// elsewhere.
func TestDirectoryUnreadableAtStart(t *testing.T) {
	cfg := severalDirs(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 6, nil)
	bad := cfg.MoreDataDirs[1]
	lost, kept := n.byDirectory("t", bad)
	for p := range int32(6) {
		if err := n.produceTo(t, "t", p, "acknowledged"); err != nil {
			t.Fatal(err)
		}
	}
	n.stop(t)
	if err := os.Rename(bad, bad+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, cfg)
	if codes := n.logDirErrors(t); codes[bad] != kerr.KafkaStorageError.Code {
		t.Errorf("%v", codes)
	}
	for _, p := range lost {
		if err := n.produceTo(t, "t", p, "refused"); !errors.Is(err, kerr.KafkaStorageError) {
			t.Errorf("%v", err)
		}
	}
	for _, p := range kept {
		if err := n.produceTo(t, "t", p, "kept"); err != nil {
			t.Error(err)
		}
	}
	n.createTopic(t, "later", 2, nil)
	if err := n.produceTo(t, "later", 1, "new topics are served"); err != nil {
		t.Error(err)
	}
	n.retryOffline() // changes nothing
	ctx := t.Context()
	if err := n.Shutdown(ctx); err == nil {
		t.Error("a stop with a failed directory is told to be clean")
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(bad+".away", bad); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, cfg)
	for _, p := range lost {
		if hw := n.partitions.Get("t", p).HighWatermark(); hw != 1 {
			t.Errorf("partition %d ends at %d", p, hw)
		}
	}
}

func TestBadDataDirs(t *testing.T) {
	cfg, other := severalDirs(t), testConfig(t)
	startNode(t, other).stop(t)
	startNode(t, cfg).stop(t)
	foreign := cfg
	foreign.MoreDataDirs = []string{other.DataDir}
	wantWords(t, startError(t, foreign), other.DataDir, "belongs to cluster", "log.dirs")
	twice := cfg
	twice.MoreDataDirs = []string{cfg.DataDir}
	wantWords(t, startError(t, twice), cfg.DataDir, "twice")
	// Two logs of one partition.
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	n.stop(t)
	for _, dir := range cfg.dataDirs() {
		if err := os.MkdirAll(filepath.Join(dir, "t-0"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	wantWords(t, startError(t, cfg), "have a log of t-0", cfg.DataDir)
}

func TestDescribeLogDirs(t *testing.T) {
	cfg := severalDirs(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 3, nil)
	produce(t, n.client(t, kgo.RecordPartitioner(kgo.RoundRobinPartitioner())), "t", 0, 300)
	dirs, err := n.admin(t).DescribeAllLogDirs(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	partitions := 0
	dirs[1].Each(func(d kadm.DescribedLogDir) {
		if d.Err != nil {
			t.Errorf("%+v", d)
		}
		d.Topics.Each(func(p kadm.DescribedLogDirPartition) {
			if partitions++; p.Size != n.partitions.Get(p.Topic, p.Partition).Log().Size() || p.Size == 0 || p.IsFuture {
				t.Errorf("%+v", p)
			}
		})
	})
	if len(dirs[1]) != 3 || partitions != 3 {
		t.Errorf("%d directories with %d partitions", len(dirs[1]), partitions)
	}
	if resp := n.describeLogDirs(t); resp.Version != 5 || resp.Dirs[0].TotalBytes <= 0 || resp.Dirs[0].UsableBytes <= 0 {
		t.Errorf("%+v", resp)
	}

	// Where it is, it may stay.
	home := filepath.Dir(n.partitions.Get("t", 0).Log().Dir())
	for dir, want := range map[string]error{home: nil, "/nowhere": kerr.LogDirNotFound} {
		if got := n.moveTo(t, "t", dir); got != want {
			t.Errorf("to %s: %v, want %v", dir, got, want)
		}
	}
}

// A full disk refuses with Kafka's code, and takes no directory offline.
func TestDiskFullIsNoFailure(t *testing.T) {
	cfg := severalDirs(t)
	disk := &fullFS{}
	cfg.FS = disk
	n := startNode(t, cfg)
	n.createTopic(t, "t", 3, nil)
	for round := range 2 {
		for p := range int32(3) {
			if err := n.produceTo(t, "t", p, fmt.Sprint("room ", round)); err != nil {
				t.Fatal(err)
			}
		}
		disk.full.Store(true)
		for p := range int32(3) {
			if err := n.produceTo(t, "t", p, "full"); !errors.Is(err, kerr.KafkaStorageError) {
				t.Errorf("%v", err)
			}
		}
		for dir, code := range n.logDirErrors(t) {
			if code != 0 {
				t.Errorf("%s: %v", dir, kerr.ErrorForCode(code))
			}
		}
		if got := consume(t, n.client(t, kgo.ConsumeTopics("t")), 3*(round+1)); len(got) != 3*(round+1) {
			t.Errorf("%d records", len(got))
		}
		disk.full.Store(false)
	}
}
