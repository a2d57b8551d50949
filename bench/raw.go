package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/record"
)

// The raw load takes the client's cost out of a measurement: it builds one batch, sends those bytes again and again on a connection for each
// partition, and discards what it fetches without looking at a record. What remains on the other side is the broker's own cost.

const (
	rawProduceVersion = 9  // the first flexible one
	rawFetchVersion   = 12 // likewise, the last with topic names
	rawReadBuffer     = 1 << 20
	rawFetchBytes     = 8 << 20 // asked for in one fetch
	rawFetchWait      = 500 * time.Millisecond
)

// RawConfig says how to load a topic with prepared batches.
type RawConfig struct {
	Topic        string
	Duration     time.Duration // required
	Records      int64         // stop after so many, if that comes first; 0 means no limit
	Rate         int64         // records per second; 0 means as fast as it goes
	RecordBytes  int           // value size, at least 20
	BatchRecords int           // records in each batch; 0 means as many as make 1 MB of values
	InFlight     int           // requests under way on each connection; 0 means 4
	Acks         int16         // 1 or -1
	Codec        string        // none, gzip, snappy, lz4, zstd
	Payload      Payload       // "" means PayloadLog
}

// RawProduce sends prepared batches to every partition of a topic that exists. Latency is a request's.
func RawProduce(ctx context.Context, client *kgo.Client, cfg RawConfig, progress func(Stats)) (Stats, error) {
	if cfg.Duration <= 0 || cfg.RecordBytes < stampBytes {
		return Stats{}, fmt.Errorf("a raw load needs a duration and records of at least %d bytes", stampBytes)
	}
	if cfg.BatchRecords == 0 {
		cfg.BatchRecords = max(1_000_000/(cfg.RecordBytes+10), 1)
	}
	if cfg.InFlight == 0 {
		cfg.InFlight = 4
	}
	batch, err := rawBatch(cfg)
	if err != nil {
		return Stats{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration)
	defer cancel()
	t := newTally()
	stop := t.report(progress)
	defer stop()
	err = onEachPartition(ctx, client, cfg.Topic, func(ctx context.Context, conn net.Conn, partition int32, count int) error {
		return rawProducePartition(ctx, conn, cfg.share(count), produceFrame(cfg, partition, batch), t)
	})
	return t.stats(), err
}

// share is a partition's part of the load.
func (cfg RawConfig) share(partitions int) RawConfig {
	cfg.Rate /= int64(partitions)
	if cfg.Records > 0 {
		cfg.Records = max(cfg.Records/int64(partitions), 1)
	}
	return cfg
}

func rawBatch(cfg RawConfig) ([]byte, error) {
	kind := cfg.Payload
	if kind == "" {
		kind = PayloadLog
	}
	values, err := payloads(kind, payloadVariants, cfg.RecordBytes)
	if err != nil {
		return nil, err
	}
	codec, err := record.ParseCodec(cfg.Codec)
	if err != nil {
		return nil, err
	}
	var b record.Builder
	now := time.Now()
	for i := range cfg.BatchRecords {
		value := values[i%len(values)]
		stamp(value, now)
		b.Append(now.UnixMilli(), nil, value, nil)
	}
	return b.Build(record.BuildOptions{Codec: codec}, nil)
}

// produceFrame is a whole request; its correlation id stands at frame[8:12].
func produceFrame(cfg RawConfig, partition int32, batch []byte) []byte {
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, batch
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic, topic.Partitions = cfg.Topic, append(topic.Partitions, p)
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis, req.Topics = cfg.Acks, 30_000, append(req.Topics, topic)
	req.SetVersion(rawProduceVersion)
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("sluice-raw")).AppendRequest(nil, req, 0)
}

func rawProducePartition(ctx context.Context, conn net.Conn, cfg RawConfig, frame []byte, t *tally) error {
	slots := make(chan time.Time, cfg.InFlight) // when each request under way was sent
	answered := make(chan error, 1)
	go func() { answered <- readProduceAnswers(conn, cfg, slots, t) }()
	pace := newBatchPace(cfg)
	for id := uint32(0); ctx.Err() == nil && (cfg.Records == 0 || int64(id)*int64(cfg.BatchRecords) < cfg.Records); id++ {
		if !pace.wait(ctx) {
			break
		}
		select {
		case slots <- time.Now():
		case err := <-answered:
			return err
		}
		binary.BigEndian.PutUint32(frame[8:], id)
		if _, err := conn.Write(frame); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	close(slots)
	return <-answered
}

// batchPace is the times at which a connection sends its batches: evenly spread, and no batch is left out when one was late.
type batchPace struct {
	every time.Duration // 0: as fast as it goes
	next  time.Time
}

func newBatchPace(cfg RawConfig) *batchPace {
	p := &batchPace{next: time.Now()}
	if cfg.Rate > 0 {
		p.every = time.Second * time.Duration(cfg.BatchRecords) / time.Duration(cfg.Rate)
	}
	return p
}

// wait blocks until the next batch may go; false means that ctx ended.
func (p *batchPace) wait(ctx context.Context) bool {
	if p.every == 0 {
		return true
	}
	p.next = p.next.Add(p.every)
	time.Sleep(time.Until(p.next))
	return ctx.Err() == nil
}

func readProduceAnswers(conn net.Conn, cfg RawConfig, slots <-chan time.Time, t *tally) error {
	in := bufio.NewReaderSize(conn, rawReadBuffer)
	var buf []byte
	for sent := range slots {
		var err error
		if buf, err = readFrame(in, buf); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		resp := kmsg.NewPtrProduceResponse()
		resp.SetVersion(rawProduceVersion)
		if err := resp.ReadFrom(buf[5:]); err != nil { // behind the correlation id and the header's tags
			return fmt.Errorf("decode the answer: %w", err)
		}
		if err := kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode); err != nil {
			return err
		}
		t.addMany(cfg.BatchRecords, cfg.BatchRecords*cfg.RecordBytes, time.Since(sent))
	}
	return nil
}

// addMany counts the records of one request.
func (t *tally) addMany(records, bytes int, latency time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
	t.records += int64(records)
	t.bytes += int64(bytes)
	if latency > 0 {
		observe(t.latency, latency)
	}
}

// RawConsume fetches every partition from its start, again and again, and discards the bytes; it counts records by the batches'
// headers. Bytes are those of the batches as they came.
func RawConsume(ctx context.Context, client *kgo.Client, topic string, duration time.Duration, progress func(Stats)) (Stats, error) {
	if duration <= 0 {
		return Stats{}, errors.New("a raw load needs a duration")
	}
	ctx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	t := newTally()
	stop := t.report(progress)
	defer stop()
	err := onEachPartition(ctx, client, topic, func(ctx context.Context, conn net.Conn, partition int32, _ int) error {
		return rawFetchPartition(ctx, conn, topic, partition, true, t)
	})
	return t.stats(), err
}

// rawFetchPartition fetches a partition from its start to its end, again and again if told so.
func rawFetchPartition(ctx context.Context, conn net.Conn, topic string, partition int32, again bool, t *tally) error {
	in := bufio.NewReaderSize(conn, rawReadBuffer)
	format := kmsg.NewRequestFormatter(kmsg.FormatterClientID("sluice-raw"))
	var frame, buf []byte
	for offset := int64(0); ctx.Err() == nil; {
		frame = format.AppendRequest(frame[:0], fetchRequest(topic, partition, offset), 0)
		if _, err := conn.Write(frame); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		var err error
		if buf, err = readFrame(in, buf); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		resp := kmsg.NewPtrFetchResponse()
		resp.SetVersion(rawFetchVersion)
		if err := resp.ReadFrom(buf[5:]); err != nil {
			return fmt.Errorf("decode the answer: %w", err)
		}
		p := resp.Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return err
		}
		next, records := countBatches(p.RecordBatches, offset)
		t.addMany(records, len(p.RecordBatches), 0)
		if offset = next; offset < p.HighWatermark {
			continue
		}
		if !again {
			return nil
		}
		offset = 0 // at once: at the end, the broker would wait for more
	}
	return nil
}

func countBatches(batches []byte, offset int64) (next int64, records int) {
	next = offset
	for len(batches) > 0 {
		b, rest, err := record.Next(batches)
		if err != nil {
			break // a batch that the limit cut short
		}
		next, records = b.LastOffset()+1, records+int(b.Count())
		batches = rest
	}
	return next, records
}

func fetchRequest(topic string, partition int32, offset int64) *kmsg.FetchRequest {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.CurrentLeaderEpoch, p.PartitionMaxBytes = partition, offset, -1, rawFetchBytes
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, p)
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxBytes, req.MinBytes = -1, rawFetchBytes, 1
	req.MaxWaitMillis = int32(rawFetchWait.Milliseconds())
	req.SessionEpoch = -1
	req.Topics = append(req.Topics, t)
	req.SetVersion(rawFetchVersion)
	return req
}

// readFrame reads one answer into buf, which grows to the largest.
func readFrame(in io.Reader, buf []byte) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return buf, err
	}
	n := int(binary.BigEndian.Uint32(size[:]))
	if n < 5 || n > 256<<20 {
		return buf, fmt.Errorf("an answer of %d bytes", n)
	}
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	_, err := io.ReadFull(in, buf)
	return buf, err
}

// onEachPartition opens a connection to the leader of every partition and runs work on all of them side by side. Each
// is told how many there are.
func onEachPartition(ctx context.Context, client *kgo.Client, topic string, work func(ctx context.Context, conn net.Conn, partition int32, count int) error) error {
	leaders, err := leaders(ctx, client, topic)
	if err != nil {
		return fmt.Errorf("ask for the leaders of topic %s: %w", topic, err)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(leaders))
	for partition, addr := range leaders {
		wg.Go(func() {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err != nil {
				errs[partition] = fmt.Errorf("partition %d: %w", partition, err)
				return
			}
			defer conn.Close()
			if err := work(ctx, conn, int32(partition), len(leaders)); err != nil {
				errs[partition] = fmt.Errorf("partition %d: %w", partition, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// leaders are the addresses of the partitions' leaders, by partition. The client's own metadata may be older than the topic, so it is
// asked for anew.
func leaders(ctx context.Context, client *kgo.Client, topic string) ([]string, error) {
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = append(req.Topics, t)
	meta, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(meta.Topics[0].ErrorCode); err != nil {
		return nil, err
	}
	addrs := map[int32]string{}
	for _, b := range meta.Brokers {
		addrs[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	out := make([]string, len(meta.Topics[0].Partitions))
	for _, p := range meta.Topics[0].Partitions {
		out[p.Partition] = addrs[p.Leader]
	}
	return out, nil
}
