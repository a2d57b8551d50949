package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/internal/testenv"
)

func compactingConfig(t *testing.T) Config {
	cfg := testConfig(t)
	cfg.CleanerBackoff = 10 * time.Millisecond
	cfg.CleanerThreads = 2
	return cfg
}

// compacted is the newest record of each key: offset and value.
type compacted map[string]string

// writeKeyed writes records of random keys, some of them tombstones, and keeps
// what a compacted topic must keep.
func writeKeyed(t *testing.T, cl *kgo.Client, topic string, records, keys int, want compacted) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(records)))
	var batch []*kgo.Record
	for i := range records {
		rec := &kgo.Record{Topic: topic, Partition: 0, Key: fmt.Appendf(nil, "key-%d", r.IntN(keys))}
		if r.IntN(10) > 0 {
			rec.Value = make([]byte, 600)
			for j := range rec.Value {
				rec.Value[j] = byte('a' + r.IntN(26))
			}
		}
		if batch = append(batch, rec); len(batch) < 500 && i+1 < records {
			continue
		}
		if err := cl.ProduceSync(t.Context(), batch...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		for _, rec := range batch {
			want[string(rec.Key)] = fmt.Sprintf("%d %s", rec.Offset, rec.Value)
			if rec.Value == nil {
				want[string(rec.Key)] = "" // it may be there or not
			}
		}
		batch = batch[:0]
	}
}

// readCompacted is what a consumer makes of a compacted topic, and how many
// records it took.
func readCompacted(t *testing.T, n *node, topic string) (got compacted, records int) {
	t.Helper()
	end := n.partitions.Get(topic, 0).HighWatermark()
	cl := n.client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	got = compacted{}
	for last := int64(-1); last < end-1; {
		fetches := cl.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range fetches.Records() {
			if r.Offset <= last {
				t.Fatalf("offset %d after %d", r.Offset, last)
			}
			last = r.Offset
			records++
			got[string(r.Key)] = fmt.Sprintf("%d %s", r.Offset, r.Value)
			if r.Value == nil {
				got[string(r.Key)] = ""
			}
		}
	}
	return got, records
}

func (c compacted) check(t *testing.T, want compacted) {
	t.Helper()
	maps.DeleteFunc(c, func(_, v string) bool { return v == "" })
	live := maps.Clone(want)
	maps.DeleteFunc(live, func(_, v string) bool { return v == "" })
	if maps.Equal(c, live) {
		return
	}
	for k, v := range live {
		if c[k] != v {
			t.Fatalf("%d keys of %d; %s is %.20q, want %.20q", len(c), len(live), k, c[k], v)
		}
	}
	t.Fatalf("%d keys, want %d", len(c), len(live))
}

// TestCompactedTopic compacts a topic while it is written. A consumer makes the
// same map of it as of all that was written, also after kills; Kafka's own
// reader of log files has nothing to say against it.
func TestCompactedTopic(t *testing.T) {
	cfg := compactingConfig(t)
	n := startNode(t, cfg)
	const topic, records, keys = "compacted", 24_000, 300
	n.createTopic(t, topic, 1, map[string]*string{
		"cleanup.policy": ptr("compact"), "segment.bytes": ptr("1048576"), "min.cleanable.dirty.ratio": ptr("0.1"),
		"delete.retention.ms": ptr("50"), "file.delete.delay.ms": ptr("0"),
	})
	want := compacted{}
	for i, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.ZstdCompression(), kgo.SnappyCompression()} {
		cl := n.client(t, kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		writeKeyed(t, cl, topic, records/3-i, keys, want)
		cl.Close()
		n.abort()
		n = startNode(t, cfg)
	}
	l := func() *commitlog.Log { return n.partitions.Get(topic, 0).Log() }
	eventually(t, "all that may be is compacted", func() bool {
		segments := l().Segments()
		return l().CleanedTo() == segments[len(segments)-1].BaseOffset
	})
	got, read := readCompacted(t, n, topic)
	got.check(t, want)
	if read > records/2 {
		t.Errorf("%d records of %d are left, of %d keys", read, records, keys)
	}
	eventually(t, "the compaction is noted", func() bool {
		data, err := os.ReadFile(filepath.Join(cfg.DataDir, commitlog.CleanerFile))
		return err == nil && string(data) == fmt.Sprintf("0\n1\n%s 0 %d\n", topic, l().CleanedTo())
	})
	n.stop(t)
	n = startNode(t, cfg)
	got, _ = readCompacted(t, n, topic)
	got.check(t, want)
	n.stop(t)
	if !testing.Short() {
		checkWithKafka(t, filepath.Join(cfg.DataDir, topic+"-0"))
	}
}

// checkWithKafka lets Kafka's reader of log files check a log and its indexes.
func checkWithKafka(t *testing.T, dir string) {
	t.Helper()
	files := func(pattern string) string {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		return strings.Join(found, ",")
	}
	for _, args := range [][]string{
		{"--deep-iteration", "--files", files("*.log")},
		{"--index-sanity-check", "--files", files("*.index")},
		{"--index-sanity-check", "--files", files("*.timeindex")},
		{"--verify-index-only", "--files", files("*.index")},
		{"--verify-index-only", "--files", files("*.timeindex")},
		{"--files", files("*.snapshot")},
	} {
		cmd := testenv.KafkaTool(t, "org.apache.kafka.tools.DumpLogSegments", args...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args[0], err, out)
		}
		if args[0] == "--deep-iteration" && (!strings.Contains(string(out), "isvalid: true") || !strings.Contains(string(out), "deleteHorizonMs: OptionalLong[1")) {
			t.Errorf("%.2000s", out)
		}
		// Gaps between offsets, which it reports, are as they must be.
		for _, bad := range []string{"Mismatch", "mismatch", "isvalid: false", "is not sane", "Exception", "out of order", "Found ", "corrupt"} {
			if strings.Contains(string(out), bad) {
				i := strings.Index(string(out), bad)
				t.Errorf("%v: %.600s", args, string(out)[max(i-200, 0):])
			}
		}
	}
}

// TestCompactionWithoutGroupFsync compacts where nothing else waits for the disk.
func TestCompactionWithoutGroupFsync(t *testing.T) {
	cfg := compactingConfig(t)
	cfg.NoGroupFsync = true
	cfg.RetentionCheck = 20 * time.Millisecond
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, map[string]*string{"cleanup.policy": ptr("compact,delete"), "segment.bytes": ptr("1048576"), "min.cleanable.dirty.ratio": ptr("0")})
	want := compacted{}
	writeKeyed(t, n.client(t, kgo.RecordPartitioner(kgo.ManualPartitioner())), "t", 4000, 50, want)
	l := n.partitions.Get("t", 0).Log()
	eventually(t, "it is compacted", func() bool {
		segments := l.Segments()
		return len(segments) > 1 && l.CleanedTo() == segments[len(segments)-1].BaseOffset
	})
	got, _ := readCompacted(t, n, "t")
	got.check(t, want)
}

// TestConsumerOffsetsAreCompacted commits the same offsets again and again: the
// log of the group stays small, and the last commit outlives a kill.
func TestConsumerOffsetsAreCompacted(t *testing.T) {
	cfg := compactingConfig(t)
	cfg.OffsetsPartitions = 1
	cfg.TopicDefaults = map[string]string{"log.cleaner.min.cleanable.ratio": "0.2"}
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	commit := func(at int64) {
		var offsets kadm.Offsets
		offsets.Add(kadm.Offset{Topic: "t", Partition: 0, At: at, LeaderEpoch: -1, Metadata: strings.Repeat("m", 4000)})
		resp, err := n.admin(t).CommitOffsets(t.Context(), "g", offsets)
		if err == nil {
			err = resp.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	commit(0)
	_, err := n.admin(t).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "segment.bytes", Value: ptr("1048576")}}, cluster.OffsetsTopic)
	if err != nil {
		t.Fatal(err)
	}
	const commits = 700
	for i := range int64(commits) {
		commit(i)
	}
	l := n.partitions.Get(cluster.OffsetsTopic, 0).Log()
	eventually(t, "the offsets are compacted", func() bool { return l.CleanedTo() > 200 && l.Size() < 2<<20 })
	n.abort()
	n = startNode(t, cfg)
	got, err := n.admin(t).FetchOffsets(t.Context(), "g")
	if o, ok := got.Lookup("t", 0); err != nil || !ok || o.At != commits-1 {
		t.Fatalf("%+v, %v", o, err)
	}
}

// TestDeleteRecords moves the log start, as far as the high watermark, and keeps
// it over restarts; what a topic's cleanup.policy does not allow is refused.
func TestDeleteRecords(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 2, nil)
	n.createTopic(t, "compacted", 1, map[string]*string{"cleanup.policy": ptr("compact")})
	cl := n.client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	produce(t, cl, "t", 0, 100)
	deleteTo := func(topic string, partition int32, offset int64) (int64, error) {
		var offsets kadm.Offsets
		offsets.Add(kadm.Offset{Topic: topic, Partition: partition, At: offset})
		resp, err := n.admin(t).DeleteRecords(t.Context(), offsets)
		if err != nil { // the client knows of no such partition
			return -1, err
		}
		r, _ := resp.Lookup(topic, partition)
		return r.LowWatermark, r.Err
	}
	for _, c := range []struct {
		topic     string
		partition int32
		offset    int64
		low       int64
		err       error
	}{
		{"t", 0, 40, 40, nil},
		{"t", 0, 10, 40, nil},
		{"t", 0, 101, -1, kerr.OffsetOutOfRange},
		{"t", 0, -2, -1, kerr.OffsetOutOfRange},
		{"t", 2, 0, -1, kerr.UnknownTopicOrPartition},
		{"none", 0, 0, -1, kerr.UnknownTopicOrPartition},
		{"compacted", 0, -1, -1, kerr.PolicyViolation},
	} {
		if low, err := deleteTo(c.topic, c.partition, c.offset); low != c.low || !errors.Is(err, c.err) {
			t.Errorf("%s-%d to %d: %d, %v; want %d, %v", c.topic, c.partition, c.offset, low, err, c.low, c.err)
		}
	}
	if got := consume(t, n.client(t, kgo.ConsumeTopics("t")), 60); got[0].Offset != 40 {
		t.Errorf("the first record has offset %d", got[0].Offset)
	}
	n.checkpointStep()
	n.abort()
	n = startNode(t, cfg)
	if start := n.partitions.Get("t", 0).Log().StartOffset(); start != 40 {
		t.Errorf("the log starts at %d after a kill", start)
	}
	if low, err := deleteTo("t", 0, -1); low != 100 || err != nil {
		t.Errorf("%d, %v", low, err)
	}
	n.stop(t)
	n = startNode(t, cfg)
	if start := n.partitions.Get("t", 0).Log().StartOffset(); start != 100 {
		t.Errorf("the log starts at %d after a stop", start)
	}
}

// TestDeleteRecordsTool lets Kafka's own tool delete records.
func TestDeleteRecordsTool(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 2, nil)
	produce(t, n.client(t, kgo.RecordPartitioner(kgo.ManualPartitioner())), "t", 0, 100)
	file := filepath.Join(t.TempDir(), "offsets.json")
	content := `{"partitions": [{"topic": "t", "partition": 0, "offset": 70}, {"topic": "t", "partition": 1, "offset": -1}], "version": 1}`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := testenv.KafkaTool(t, "org.apache.kafka.tools.DeleteRecordsCommand", "--bootstrap-server", n.Addr(), "--offset-json-file", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "partition: t-0\tlow_watermark: 70") || !strings.Contains(string(out), "partition: t-1\tlow_watermark: 0") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestPacer holds to a number of bytes a second and ends with its context.
func TestPacer(t *testing.T) {
	var p pacer
	ctx, cancel := context.WithCancel(t.Context())
	begun := time.Now()
	for range 3 {
		if err := p.wait(ctx, 10_000, 1e6); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begun); took < 30*time.Millisecond {
		t.Errorf("30,000 bytes at 1,000,000 a second took %s", took)
	}
	time.AfterFunc(time.Millisecond, cancel)
	if err := p.wait(ctx, 1<<40, 1e6); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestCheckpointsOfDeletedTopics makes a topic again under its name and kills
// the broker: what was stored of the first one must not cut the second.
func TestCheckpointsOfDeletedTopics(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	produce(t, n.client(t), "t", 0, 100)
	if err := n.partitions.Get("t", 0).Log().SetStartOffset(90); err != nil {
		t.Fatal(err)
	}
	n.checkpointStep()
	if _, err := n.admin(t).DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	n.createTopic(t, "t", 1, nil)
	produce(t, n.client(t), "t", 0, 5)
	n.abort()
	n = startNode(t, cfg)
	if l := n.partitions.Get("t", 0).Log(); l.StartOffset() != 0 || l.EndOffset() != 5 {
		t.Fatalf("the log has %d to %d", l.StartOffset(), l.EndOffset())
	}
}
