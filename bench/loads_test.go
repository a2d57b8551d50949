package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

// loads are those that run on both brokers.
func loads() []load {
	list := []load{}
	for _, size := range []int{100, 1024} {
		for _, acks := range []int16{1, -1} {
			for _, codec := range []string{"none", "lz4"} {
				list = append(list, franzLoad(size, acks, codec))
			}
		}
	}
	for _, size := range []int{100, 1024} {
		for _, acks := range []int16{1, -1} {
			list = append(list, rawLoad(size, acks, "none"))
		}
	}
	return append(list, rawLoad(100, -1, "lz4"), rawFetchLoad(), kcatLoad(100, "none"), kcatLoad(100, "lz4"), kcatLoad(1024, "none"),
		pacedLoad(), rawPacedLoad())
}

func loadName(client string, size int, acks int16, codec string) string {
	return fmt.Sprintf("%s produce %d B acks=%s %s", client, size, map[int16]string{1: "1", -1: "all"}[acks], codec)
}

// most is how many records of a size a load may produce, compressed or not.
func most(size int) int64 { return int64(loadBytes / (size + 10)) }

func rawLoad(size int, acks int16, codec string) load {
	return load{name: loadName("raw", size, acks, codec), run: func(ctx context.Context, w *work) (s sample, err error) {
		s.stats, err = RawProduce(ctx, w.client, RawConfig{Topic: w.topic, Duration: *loadFor, Records: most(size), RecordBytes: size, Acks: acks, Codec: codec}, nil)
		return s, err
	}}
}

func franzLoad(size int, acks int16, codec string) load {
	options := map[int16][]kgo.Opt{-1: nil, 1: {kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()}}[acks]
	if codec == "lz4" {
		options = append(options, kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	}
	return load{name: loadName("franz-go", size, acks, codec), options: options, run: func(ctx context.Context, w *work) (s sample, err error) {
		s.stats, err = Produce(ctx, w.client, ProduceConfig{Topic: w.topic, Duration: *loadFor, Records: most(size), RecordBytes: size}, nil)
		s.stats.Latency = nil // the depth of the client's own queue, no more
		return s, err
	}}
}

// rawFetchBytesFilled is what there is to fetch, again and again.
const rawFetchBytesFilled = 400_000_000

func rawFetchLoad() load {
	fill := func(ctx context.Context, w *work) error {
		cfg := RawConfig{Topic: w.topic, Duration: time.Minute, Records: rawFetchBytesFilled / 110, RecordBytes: 100, Acks: 1, Codec: "none"}
		_, err := RawProduce(ctx, w.client, cfg, nil)
		return err
	}
	return load{name: "raw fetch 100 B", prepare: fill, run: func(ctx context.Context, w *work) (s sample, err error) {
		s.stats, err = RawConsume(ctx, w.client, w.topic, *loadFor, nil)
		return s, err
	}}
}

// kcatLoad has librdkafka send the lines of a file.
func kcatLoad(size int, codec string) load {
	return load{name: loadName("librdkafka (kcat)", size, -1, codec), run: func(ctx context.Context, w *work) (s sample, err error) {
		lines := min(most(size), 3_000_000)
		file, err := linesFile(w, int(lines), size)
		if err != nil {
			return s, err
		}
		cmd := exec.CommandContext(ctx, testenv.Kcat(w.t), "-P", "-b", w.rival.addr, "-t", w.topic, "-l", file, "-z", codec,
			"-X", "acks=all", "-X", "queue.buffering.max.messages=1000000", "-X", "linger.ms=5")
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return s, fmt.Errorf("kcat: %w: %s", err, out)
		}
		s.stats = Stats{Records: lines, Bytes: lines * int64(size), Elapsed: time.Since(start)}
		return s, nil
	}}
}

// linesFile makes a file of lines of one size, once for a size.
func linesFile(w *work, lines, size int) (string, error) {
	path := filepath.Join(filepath.Dir(filepath.Dir(w.t.TempDir())), "lines-"+strconv.Itoa(size))
	if info, err := os.Stat(path); err == nil && info.Size() == int64(lines*(size+1)) {
		return path, nil
	}
	values, err := payloads(PayloadLog, payloadVariants, size)
	if err != nil {
		return "", err
	}
	text := make([]byte, 0, lines*(size+1))
	for i := range lines {
		text = append(append(text, values[i%len(values)]...), '\n')
	}
	return path, os.WriteFile(path, text, 0o644)
}

// The rate at which latency is measured, with records of 1 KiB.
const pacedRate = 5000

// pacedLoad is a producer without a linger, and a consumer that reads what it writes.
func pacedLoad() load {
	return load{name: "5,000/s of 1 KiB, acks=all, linger 0, with a consumer", options: []kgo.Opt{kgo.ProducerLinger(0)}, run: runPaced}
}

func runPaced(ctx context.Context, w *work) (s sample, err error) {
	consumer, err := kgo.NewClient(kgo.SeedBrokers(w.rival.addr), kgo.ConsumeTopics(w.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return s, err
	}
	defer consumer.Close()
	var wg sync.WaitGroup
	var consumeErr error
	wg.Go(func() { s.consumed, consumeErr = Consume(ctx, consumer, ConsumeConfig{Duration: *loadFor}, nil) })
	s.stats, err = Produce(ctx, w.client, ProduceConfig{Topic: w.topic, Duration: *loadFor, RecordBytes: 1024, Rate: pacedRate}, nil)
	wg.Wait()
	if err == nil {
		err = consumeErr
	}
	return s, err
}

// rawPacedLoad sends one record a request, on a connection for each partition; its client costs little beside the broker.
func rawPacedLoad() load {
	return load{name: "5,000/s of 1 KiB, acks=all, raw, a request each", run: func(ctx context.Context, w *work) (s sample, err error) {
		s.stats, err = RawProduce(ctx, w.client, pacedConfig(w.topic), nil)
		return s, err
	}}
}

func pacedConfig(topic string) RawConfig {
	return RawConfig{Topic: topic, Duration: *loadFor, RecordBytes: 1024, BatchRecords: 1, InFlight: 64, Rate: pacedRate, Acks: -1, Codec: "none"}
}
