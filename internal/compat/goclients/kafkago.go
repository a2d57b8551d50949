package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
)

func kafkaGoParts() map[string]part {
	return map[string]part{"codecs": kafkaGoCodecs, "admin": kafkaGoAdmin, "group": kafkaGoGroup}
}

func kafkaGoWrite(ctx context.Context, addr, topic string, codec compress.Compression, vs [][]byte) error {
	if err := kafkaGoCreate(ctx, addr, topic); err != nil {
		return err
	}
	w := &kafka.Writer{Addr: kafka.TCP(addr), Topic: topic, RequiredAcks: kafka.RequireAll, Compression: codec,
		BatchTimeout: 5 * time.Millisecond}
	defer w.Close()
	msgs := make([]kafka.Message, len(vs))
	for i, v := range vs {
		msgs[i] = kafka.Message{Key: []byte("k"), Value: v, Headers: []kafka.Header{{Key: "h", Value: []byte("1")}}}
	}
	if err := w.WriteMessages(ctx, msgs...); err != nil {
		return fmt.Errorf("write to %s: %w", topic, err)
	}
	return nil
}

// kafkaGoCreate makes a topic, if there is none, and waits for its leader.
func kafkaGoCreate(ctx context.Context, addr, topic string) error {
	c := &kafka.Client{Addr: kafka.TCP(addr), Timeout: 10 * time.Second}
	created, err := c.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}}})
	if err != nil {
		return err
	}
	if err := created.Errors[topic]; err != nil && !errors.Is(err, kafka.TopicAlreadyExists) {
		return err
	}
	return retry(ctx, func() error {
		meta, err := c.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if err != nil {
			return err
		}
		if t := meta.Topics[0]; t.Error != nil || len(t.Partitions) != 1 || t.Partitions[0].Error != nil {
			return fmt.Errorf("topic %s is not there yet: %w", topic, t.Error)
		}
		return nil
	})
}

func kafkaGoCodecs(ctx context.Context, addr string) error {
	for name, codec := range map[string]compress.Compression{"none": compress.None, "gzip": compress.Gzip, "snappy": compress.Snappy, "lz4": compress.Lz4, "zstd": compress.Zstd} {
		topic := "kafka-go-" + name
		vs := values(name, 2000)
		if err := kafkaGoWrite(ctx, addr, topic, codec, vs); err != nil {
			return err
		}
		r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{addr}, Topic: topic, MaxWait: 100 * time.Millisecond})
		err := kafkaGoCompare(ctx, r, vs)
		r.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
	}
	return nil
}

func kafkaGoCompare(ctx context.Context, r *kafka.Reader, want [][]byte) error {
	for i, v := range want {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return fmt.Errorf("read message %d: %w", i, err)
		}
		if !bytes.Equal(m.Value, v) || string(m.Key) != "k" || m.Offset != int64(i) || len(m.Headers) != 1 {
			return fmt.Errorf("message %d is %q=%q at %d with headers %v", i, m.Key, m.Value, m.Offset, m.Headers)
		}
	}
	return nil
}

func kafkaGoAdmin(ctx context.Context, addr string) error {
	const topic = "kafka-go-admin"
	c := &kafka.Client{Addr: kafka.TCP(addr), Timeout: 10 * time.Second}
	created, err := c.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 2, ReplicationFactor: 1,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "3600000"}}}}})
	if err != nil {
		return err
	}
	if err := created.Errors[topic]; err != nil {
		return err
	}
	meta, err := c.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	if len(meta.Topics) != 1 || len(meta.Topics[0].Partitions) != 2 {
		return fmt.Errorf("metadata: %+v", meta.Topics)
	}
	configs, err := c.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"retention.ms"}}}})
	if err != nil {
		return err
	}
	if len(configs.Resources) != 1 || len(configs.Resources[0].ConfigEntries) != 1 || configs.Resources[0].ConfigEntries[0].ConfigValue != "3600000" {
		return fmt.Errorf("configs: %+v", configs.Resources)
	}
	offsets, err := c.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {kafka.FirstOffsetOf(0), kafka.LastOffsetOf(1)}}})
	if err != nil {
		return err
	}
	if len(offsets.Topics[topic]) != 2 {
		return fmt.Errorf("offsets: %+v", offsets.Topics)
	}
	deleted, err := c.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	return deleted.Errors[topic]
}

func kafkaGoGroup(ctx context.Context, addr string) error {
	const topic = "kafka-go-group"
	first := values("first", 200)
	if err := kafkaGoWrite(ctx, addr, topic, compress.None, first); err != nil {
		return err
	}
	if err := kafkaGoReadGroup(ctx, addr, topic, first); err != nil {
		return err
	}
	after := [][]byte{[]byte("after")}
	if err := kafkaGoWrite(ctx, addr, topic, compress.None, after); err != nil {
		return err
	}
	return kafkaGoReadGroup(ctx, addr, topic, after)
}

// kafkaGoReadGroup is a member of a group until it has read and committed want.
func kafkaGoReadGroup(ctx context.Context, addr, topic string, want [][]byte) error {
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{addr}, GroupID: "kafka-go-readers", Topic: topic,
		StartOffset: kafka.FirstOffset, MaxWait: 100 * time.Millisecond})
	defer r.Close()
	var got [][]byte
	for len(got) < len(want) {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return fmt.Errorf("%d of %d messages of the group: %w", len(got), len(want), err)
		}
		got = append(got, m.Value)
		if len(got) == len(want) {
			if err := r.CommitMessages(ctx, m); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
		}
	}
	return checkOnce("kafka-go group", got, want)
}
