package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/bench"
)

func newBench() *cobra.Command {
	t := &target{}
	cmd := &cobra.Command{Use: "bench", Short: "Load a broker and measure it, this one or any Kafka"}
	cmd.PersistentFlags().StringVar(&t.brokers, "brokers", defaultBrokers, "brokers to load, host:port, comma-separated")
	cmd.AddCommand(newBenchProduce(t), newBenchConsume(t))
	return cmd
}

func newBenchProduce(t *target) *cobra.Command {
	var (
		cfg         bench.ProduceConfig
		acks, codec string
		payload     string
		linger      time.Duration
		partitions  int32
		replicas    int16
		raw         bool
		batch       int
	)
	cmd := &cobra.Command{
		Use: "produce", Short: "Produce numbered records and time their acknowledgements", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := produceOptions(acks, codec, linger)
			if err != nil {
				return errUsage{err}
			}
			cfg.Payload = bench.Payload(payload)
			client, err := t.connect(cmd, bench.ProduceOptions(opts...)...)
			if err != nil {
				return err
			}
			defer client.Close()
			if err := bench.EnsureTopic(cmd.Context(), client, cfg.Topic, partitions, replicas); err != nil {
				return err
			}
			produce := func() (bench.Stats, error) {
				return bench.Produce(cmd.Context(), client, cfg, progress(cmd, "acknowledged"))
			}
			if raw {
				produce = func() (bench.Stats, error) {
					return bench.RawProduce(cmd.Context(), client, rawConfig(cfg, acks, codec, batch), progress(cmd, "acknowledged"))
				}
			}
			stats, err := produce()
			stats.Print(cmd.OutOrStdout(), "acknowledged")
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Topic, "topic", "bench", "topic; made if it is not there")
	f.Int64Var(&cfg.Records, "records", 0, "stop after so many records")
	f.DurationVar(&cfg.Duration, "duration", 10*time.Second, "stop after so long; 0 means no limit")
	f.IntVar(&cfg.RecordBytes, "record-bytes", 100, "size of each value in bytes")
	f.Int64Var(&cfg.Rate, "rate", 0, "records per second; 0 means as fast as it goes")
	f.StringVar(&payload, "payload", string(bench.PayloadLog), "log (compresses like one) or random")
	f.StringVar(&acks, "acks", "all", "all, 1 or 0")
	f.StringVar(&codec, "compression", "none", "none, gzip, snappy, lz4 or zstd")
	f.DurationVar(&linger, "linger", 0, "how long a batch waits for more records")
	f.Int32Var(&partitions, "partitions", 4, "partitions of a topic that is made")
	f.Int16Var(&replicas, "replicas", -1, "replication factor of a topic that is made; -1 takes the broker's default")
	f.BoolVar(&raw, "raw", false, "send one prepared batch again and again, which takes the client's own cost out; needs --duration, and acks all or 1")
	f.IntVar(&batch, "batch-records", 0, "with --raw: records in each batch; 0 means as many as make 1 MB")
	return cmd
}

func rawConfig(cfg bench.ProduceConfig, acks, codec string, batch int) bench.RawConfig {
	raw := bench.RawConfig{Topic: cfg.Topic, Duration: cfg.Duration, Records: cfg.Records, Rate: cfg.Rate, RecordBytes: cfg.RecordBytes,
		BatchRecords: batch, Acks: 1, Codec: codec, Payload: cfg.Payload}
	if acks == "all" {
		raw.Acks = -1
	}
	return raw
}

func produceOptions(acks, codec string, linger time.Duration) ([]kgo.Opt, error) {
	opts := []kgo.Opt{kgo.ProducerLinger(linger)}
	switch acks {
	case "all":
		opts = append(opts, kgo.RequiredAcks(kgo.AllISRAcks()))
	case "1":
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	case "0":
		opts = append(opts, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	default:
		return nil, fmt.Errorf("--acks %q: use all, 1 or 0", acks)
	}
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	c, ok := codecs[codec]
	if !ok {
		return nil, fmt.Errorf("--compression %q: use none, gzip, snappy, lz4 or zstd", codec)
	}
	return append(opts, kgo.ProducerBatchCompression(c)), nil
}

func newBenchConsume(t *target) *cobra.Command {
	var (
		cfg   bench.ConsumeConfig
		topic string
		group string
		tail  bool
		raw   bool
	)
	cmd := &cobra.Command{
		Use: "consume", Short: "Consume a topic and time its records end to end", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if topic == "" {
				return errUsage{errors.New("--topic is empty: name the topic to read")}
			}
			offset := kgo.NewOffset().AtStart()
			if tail {
				offset = kgo.NewOffset().AtEnd()
			}
			opts := []kgo.Opt{kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(offset)}
			if raw {
				opts = nil // the connections are the load's own
			}
			if group != "" {
				opts = append(opts, kgo.ConsumerGroup(group))
			}
			client, err := t.connect(cmd, opts...)
			if err != nil {
				return err
			}
			defer client.Close()
			if err := topicExists(cmd.Context(), client, topic); err != nil {
				return err
			}
			if raw {
				stats, err := bench.RawConsume(cmd.Context(), client, topic, cfg.Duration, progress(cmd, "fetched"))
				stats.Print(cmd.OutOrStdout(), "fetched")
				return err
			}
			stats, err := bench.Consume(cmd.Context(), client, cfg, progress(cmd, "consumed"))
			stats.Print(cmd.OutOrStdout(), "consumed")
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&topic, "topic", "bench", "topic to read")
	f.StringVar(&group, "group", "", "read as a member of this group instead of alone")
	f.BoolVar(&tail, "tail", false, "start at the end instead of the beginning")
	f.BoolVar(&raw, "raw", false, "discard what is fetched without decoding it, from the start again and again; needs --duration")
	f.Int64Var(&cfg.Records, "records", 0, "stop after so many records; 0 means no limit")
	f.DurationVar(&cfg.Duration, "duration", 0, "stop after so long; 0 means no limit")
	f.DurationVar(&cfg.Idle, "idle", 3*time.Second, "stop when nothing has come for so long; 0 means wait")
	return cmd
}

// topicExists refuses a topic that is not there, which a consumer would wait for.
func topicExists(ctx context.Context, client *kgo.Client, topic string) error {
	found, err := kadm.NewClient(client).ListTopics(ctx, topic)
	if err != nil {
		return fmt.Errorf("ask for topic %s: %w", topic, err)
	}
	if err := found[topic].Err; err != nil {
		return fmt.Errorf("read topic %s: %w; `sluice topics list` shows the topics there are, and --topic names one of them", topic, err)
	}
	return nil
}

// progress prints what happened since its last call, once a second.
func progress(cmd *cobra.Command, verb string) func(bench.Stats) {
	var last bench.Stats
	return func(s bench.Stats) {
		step := bench.Stats{Records: s.Records - last.Records, Bytes: s.Bytes - last.Bytes, Elapsed: s.Elapsed - last.Elapsed}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s %d records: %.0f records/s, %.1f MB/s, p99 %.2f ms\n", verb, s.Records, step.RecordsPerSecond(),
			step.MegabytesPerSecond(), float64(s.Quantile(.99).Microseconds())/1e3)
		last = s
	}
}
