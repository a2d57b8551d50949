package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/testenv"
)

// A measurement prints rows of its own after the loads.
type measurement struct {
	name string
	run  func(t *testing.T, rivals [2]rival)
}

func measurements() []measurement {
	return []measurement{
		{"bare sendfile", sendfileLimit},
		{"group fsync", groupFsync},
		{"cold read", coldRead},
		{"segments", segments},
		{"partitions", partitions},
	}
}

// groupFsync is what waiting for the disk costs: the default, which acks=all of one replica means here.
func groupFsync(t *testing.T, rivals [2]rival) {
	fsync := startOurs(t, "sluice with group fsync", testenv.Sluice(t), true)
	for _, l := range []load{pacedLoad(), rawPacedLoad(), franzLoad(100, -1, "none")} {
		l.name = "group fsync: " + l.name
		l.compare(t, [2]rival{fsync, rivals[1]})
	}
}

// What a cold read reads: old segments that are not in the page cache.
const (
	coldBytes   = 1_000_000_000
	coldSegment = "16777216"
	coldRate    = 200_000_000
)

// coldRead is the latency of producers at 5,000/s without and with a consumer that reads old segments from the disk once: as fast as it can, when it
// and the broker want more than the machine's cores, and at the rate of a consumer that does something with the records.
func coldRead(t *testing.T, rivals [2]rival) {
	for _, r := range rivals {
		client := connectTo(t, r)
		old := topicName("cold")
		makeTopic(t, client, old, benchPartitions, map[string]*string{"segment.bytes": ptr(coldSegment)})
		cfg := RawConfig{Topic: old, Duration: time.Minute, Records: coldBytes / 1034, RecordBytes: 1024, Acks: 1, Codec: "none"}
		if _, err := RawProduce(t.Context(), client, cfg, nil); err != nil {
			t.Fatal(err)
		}
		for _, rate := range []int64{0, coldRate} {
			coldReadAt(t, r, client, old, rate)
		}
		if err := deleteTopic(t.Context(), client, old); err != nil {
			t.Fatal(err)
		}
		r.removed(t, old)
	}
}

// coldReadAt prints the rows of reads at a rate in bytes per second; 0 is no limit.
func coldReadAt(t *testing.T, r rival, client *kgo.Client, topic string, rate int64) {
	var alone, beside, ratio, read []float64
	for i := range *runsEach {
		alone = append(alone, pacedP99(t, r, func() { time.Sleep(*loadFor) }))
		dropCache(t, r, topic)
		beside = append(beside, pacedP99(t, r, func() { read = append(read, readOnce(t, client, topic, rate)) }))
		ratio = append(ratio, beside[i]/alone[i])
	}
	name := "cold read beside 5,000/s"
	if rate > 0 {
		name = fmt.Sprintf("cold read at %d MB/s beside 5,000/s", rate/1e6)
	}
	fmt.Printf("| %s, %s | ack p99 ms: alone, beside, ratio | %.4g | %.4g | %.2f |\n", name, r.name, median(alone), median(beside), median(ratio))
	fmt.Printf("| %s, %s | MB/s read | %.4g | | |\n", name, r.name, median(read))
}

// pacedP99 is that of producers while something is done beside them.
func pacedP99(t *testing.T, r rival, beside func()) float64 {
	client := connectTo(t, r)
	topic := topicName("paced")
	makeTopic(t, client, topic, benchPartitions, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		beside()
	})
	cfg := pacedConfig(topic)
	cfg.Duration = time.Minute
	s, err := RawProduce(ctx, client, cfg, nil)
	cancel()
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if err := deleteTopic(t.Context(), client, topic); err != nil {
		t.Fatal(err)
	}
	return ms(s.Quantile(.99))
}

// readOnce reads a topic from its start to its end, at rate bytes per second if that is not 0, and returns the rate in MB/s.
func readOnce(t *testing.T, client *kgo.Client, topic string, rate int64) float64 {
	counted := newTally()
	p := &pace{rate: rate, began: time.Now()}
	err := onEachPartition(t.Context(), client, topic, func(ctx context.Context, conn net.Conn, partition int32, _ int) error {
		return rawFetchPartition(ctx, pacedConn{conn, p}, topic, partition, false, counted)
	})
	if err != nil {
		t.Error("cold read: ", err)
	}
	return counted.stats().MegabytesPerSecond()
}

// pace holds the connections that share it to a rate in bytes per second; 0 is no limit.
type pace struct {
	rate  int64
	began time.Time
	taken atomic.Int64
}

type pacedConn struct {
	net.Conn
	pace *pace
}

// Read waits until what was read is due.
func (c pacedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if taken := c.pace.taken.Add(int64(n)); c.pace.rate > 0 {
		time.Sleep(time.Until(c.pace.began.Add(time.Duration(float64(taken) / float64(c.pace.rate) * float64(time.Second)))))
	}
	return n, err
}

// dropCache takes a topic's segments out of the page cache.
func dropCache(t *testing.T, r rival, topic string) {
	files, err := filepath.Glob(filepath.Join(r.data, topic+"-*", "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatal("no segments to drop: ", err)
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), forget(f), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// The batches in the measurements of growth, of which each reads or writes one at a time.
const (
	growthRecordBytes  = 1000
	growthBatchRecords = 16
	growthOperations   = 4000
)

// segments is the time of a fetch at a random offset of a partition of one size in more and more segments.
func segments(t *testing.T, rivals [2]rival) {
	const bytes = 1 << 30
	for _, count := range []int{1, 100, 1000} {
		client := connectTo(t, rivals[0])
		topic := topicName("segments")
		makeTopic(t, client, topic, 1, map[string]*string{"segment.bytes": ptr(strconv.Itoa(max(bytes/count, 1<<20)))})
		cfg := RawConfig{Topic: topic, Duration: time.Minute, Records: bytes / (growthRecordBytes + 12), RecordBytes: growthRecordBytes,
			BatchRecords: growthBatchRecords, InFlight: 64, Acks: 1, Codec: "none"}
		produced, err := RawProduce(t.Context(), client, cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		before := rivals[0].cpu(t)
		s, err := fetchAtRandom(t.Context(), client, topic, produced.Records)
		if err != nil {
			t.Fatal(err)
		}
		printGrowth(fmt.Sprintf("fetch at a random offset, %d segments", count), s, rivals[0].cpu(t).since(before))
		if err := deleteTopic(t.Context(), client, topic); err != nil {
			t.Fatal(err)
		}
		rivals[0].removed(t, topic)
	}
}

func fetchAtRandom(ctx context.Context, client *kgo.Client, topic string, records int64) (Stats, error) {
	counted := newTally()
	err := onEachPartition(ctx, client, topic, func(ctx context.Context, conn net.Conn, partition int32, _ int) error {
		in := bufio.NewReaderSize(conn, rawReadBuffer)
		format := kmsg.NewRequestFormatter(kmsg.FormatterClientID("sluice-raw"))
		var buf []byte
		for range growthOperations {
			req := fetchRequest(topic, partition, rand.Int64N(records))
			req.Topics[0].Partitions[0].PartitionMaxBytes = growthRecordBytes // one batch, as KIP-74 has it
			start := time.Now()
			if _, err := conn.Write(format.AppendRequest(nil, req, 0)); err != nil {
				return err
			}
			var err error
			if buf, err = readFrame(in, buf); err != nil {
				return err
			}
			counted.addMany(1, len(buf), time.Since(start))
		}
		return nil
	})
	return counted.stats(), err
}

// partitions is the time of an append of one batch, to each of more and more partitions in turn.
func partitions(t *testing.T, rivals [2]rival) {
	for _, count := range []int32{1, 1000, 5000} {
		client := connectTo(t, rivals[0])
		topic := topicName("partitions")
		makeTopic(t, client, topic, count, nil)
		if _, err := appendInTurn(t.Context(), client, topic, count, int(count)); err != nil { // each has a file with something in it
			t.Fatal(err)
		}
		warmMemory(t, rivals[0])
		before := rivals[0].cpu(t)
		s, err := appendInTurn(t.Context(), client, topic, count, max(growthOperations, int(count)))
		if err != nil {
			t.Fatal(err)
		}
		printGrowth(fmt.Sprintf("append of %d KB, %d partitions", growthRecordBytes*growthBatchRecords/1000, count), s, rivals[0].cpu(t).since(before))
		if err := deleteTopic(t.Context(), client, topic); err != nil {
			t.Fatal(err)
		}
		rivals[0].removed(t, topic)
	}
}

func appendInTurn(ctx context.Context, client *kgo.Client, topic string, count int32, appends int) (Stats, error) {
	cfg := RawConfig{Topic: topic, RecordBytes: growthRecordBytes, BatchRecords: growthBatchRecords, Acks: 1, Codec: "none"}
	batch, err := rawBatch(cfg)
	if err != nil {
		return Stats{}, err
	}
	addrs, err := leaders(ctx, client, topic)
	if err != nil {
		return Stats{}, err
	}
	conn, err := net.Dial("tcp", addrs[0])
	if err != nil {
		return Stats{}, err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	counted := newTally()
	var buf []byte
	for i := range appends {
		frame := produceFrame(cfg, int32(i)%count, batch)
		start := time.Now()
		if _, err := conn.Write(frame); err != nil {
			return Stats{}, err
		}
		if buf, err = readFrame(in, buf); err != nil {
			return Stats{}, err
		}
		if err := answeredCode(buf); err != nil {
			return Stats{}, err
		}
		counted.addMany(1, len(batch), time.Since(start))
	}
	return counted.stats(), nil
}

func answeredCode(frame []byte) error {
	resp := kmsg.NewPtrProduceResponse()
	resp.SetVersion(rawProduceVersion)
	if err := resp.ReadFrom(frame[5:]); err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

func printGrowth(name string, s Stats, spent cpu) {
	fmt.Printf("| %s | p50 µs, p99 µs, broker CPU µs each | %d | %d | %.0f |\n", name, s.Quantile(.5).Microseconds(), s.Quantile(.99).Microseconds(),
		float64(spent.total().Microseconds())/float64(s.Records))
}

func topicName(of string) string { return of + "-" + strconv.FormatInt(time.Now().UnixNano(), 36) }

func ptr[T any](v T) *T { return &v }

func connectTo(t *testing.T, r rival) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func makeTopic(t *testing.T, client *kgo.Client, topic string, partitions int32, configs map[string]*string) {
	t.Helper()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), partitions, 1, configs, topic); err != nil {
		t.Fatal(err)
	}
	if err := waitForLeaders(t.Context(), client, topic); err != nil {
		t.Fatal(err)
	}
}
