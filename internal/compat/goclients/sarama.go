package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

func saramaParts() map[string]part {
	return map[string]part{"codecs": saramaCodecs, "idempotence": saramaIdempotence, "admin": saramaAdmin,
		"group": saramaGroup, "delete-records": saramaDeleteRecords}
}

func saramaConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Producer.Return.Successes = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	return c
}

func saramaProduce(addr, topic string, cfg *sarama.Config, vs [][]byte) error {
	p, err := sarama.NewSyncProducer([]string{addr}, cfg)
	if err != nil {
		return err
	}
	defer p.Close()
	msgs := make([]*sarama.ProducerMessage, len(vs))
	for i, v := range vs {
		msgs[i] = &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(v), Key: sarama.StringEncoder("k"),
			Headers: []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("1")}}}
	}
	if err := p.SendMessages(msgs); err != nil {
		return fmt.Errorf("produce to %s: %w", topic, err)
	}
	for i, m := range msgs {
		if m.Offset != int64(i) {
			return fmt.Errorf("%s: message %d got offset %d", topic, i, m.Offset)
		}
	}
	return nil
}

func saramaConsume(ctx context.Context, addr, topic string, n int) ([]*sarama.ConsumerMessage, error) {
	c, err := sarama.NewConsumer([]string{addr}, saramaConfig())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	pc, err := c.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	defer pc.Close()
	var got []*sarama.ConsumerMessage
	for len(got) < n {
		select {
		case m := <-pc.Messages():
			got = append(got, m)
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %d of %d messages: %w", topic, len(got), n, ctx.Err())
		}
	}
	return got, nil
}

func saramaCodecs(ctx context.Context, addr string) error {
	for _, codec := range []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD} {
		cfg := saramaConfig()
		cfg.Producer.Compression = codec
		if err := saramaRoundTrip(ctx, addr, "sarama-"+codec.String(), cfg); err != nil {
			return err
		}
	}
	return nil
}

func saramaRoundTrip(ctx context.Context, addr, topic string, cfg *sarama.Config) error {
	vs := values(topic, 2000)
	if err := saramaProduce(addr, topic, cfg, vs); err != nil {
		return err
	}
	got, err := saramaConsume(ctx, addr, topic, len(vs))
	if err != nil {
		return err
	}
	for i, m := range got {
		if !bytes.Equal(m.Value, vs[i]) || string(m.Key) != "k" || len(m.Headers) != 1 || string(m.Headers[0].Value) != "1" {
			return fmt.Errorf("%s: message %d is %q=%q with headers %v", topic, i, m.Key, m.Value, m.Headers)
		}
	}
	return nil
}

func saramaIdempotence(ctx context.Context, addr string) error {
	cfg := saramaConfig()
	cfg.Producer.Idempotent = true
	cfg.Net.MaxOpenRequests = 1
	return saramaRoundTrip(ctx, addr, "sarama-idempotent", cfg)
}

func saramaAdmin(ctx context.Context, addr string) error {
	a, err := sarama.NewClusterAdmin([]string{addr}, saramaConfig())
	if err != nil {
		return err
	}
	defer a.Close()
	retention := "3600000"
	detail := &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention}}
	if err := a.CreateTopic("sarama-admin", detail, false); err != nil {
		return err
	}
	if err := a.CreateTopic("sarama-admin", detail, false); !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return fmt.Errorf("a topic created twice: %w", err)
	}
	if err := a.CreatePartitions("sarama-admin", 3, nil, false); err != nil {
		return err
	}
	err = retry(ctx, func() error {
		topics, err := a.ListTopics()
		if err != nil {
			return err
		}
		if got := topics["sarama-admin"]; got.NumPartitions != 3 || got.ConfigEntries["retention.ms"] == nil || *got.ConfigEntries["retention.ms"] != retention {
			return fmt.Errorf("the topic is listed as %+v", got)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, _, err := a.DescribeCluster(); err != nil {
		return err
	}
	return a.DeleteTopic("sarama-admin")
}

// saramaReader is a member of a group: it hands on what it reads, and commits
// when it leaves. (sarama commits on the connection of its fetches, so a commit
// waits while the last fetch does.)
type saramaReader struct{ got chan *sarama.ConsumerMessage }

func (saramaReader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (saramaReader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r saramaReader) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	for m := range c.Messages() {
		s.MarkMessage(m, "")
		r.got <- m
	}
	s.Commit()
	return nil
}

func saramaGroup(ctx context.Context, addr string) error {
	first := values("first", 200)
	if err := saramaProduce(addr, "sarama-group", saramaConfig(), first); err != nil {
		return err
	}
	got, err := saramaReadGroup(ctx, addr, len(first))
	if err != nil {
		return err
	}
	if err := checkOnce("sarama group", got, first); err != nil {
		return err
	}
	p, err := sarama.NewSyncProducer([]string{addr}, saramaConfig())
	if err != nil {
		return err
	}
	defer p.Close()
	if _, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: "sarama-group", Value: sarama.StringEncoder("after")}); err != nil {
		return err
	}
	if got, err = saramaReadGroup(ctx, addr, 1); err != nil {
		return err
	}
	return checkOnce("sarama group after a commit", got, [][]byte{[]byte("after")})
}

// saramaReadGroup is a member until it has read n messages.
func saramaReadGroup(ctx context.Context, addr string, n int) ([][]byte, error) {
	g, err := sarama.NewConsumerGroup([]string{addr}, "sarama-readers", saramaConfig())
	if err != nil {
		return nil, err
	}
	defer g.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := saramaReader{got: make(chan *sarama.ConsumerMessage, n)}
	ended := make(chan error, 1)
	go func() { ended <- g.Consume(ctx, []string{"sarama-group"}, r) }()
	var got [][]byte
	for len(got) < n {
		select {
		case m := <-r.got:
			got = append(got, m.Value)
		case err := <-ended:
			return nil, fmt.Errorf("the group ended after %d of %d messages: %w", len(got), n, err)
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d messages: %w", len(got), n, ctx.Err())
		}
	}
	cancel()
	return got, <-ended
}

func saramaDeleteRecords(ctx context.Context, addr string) error {
	const topic = "sarama-delete"
	if err := saramaProduce(addr, topic, saramaConfig(), values("d", 10)); err != nil {
		return err
	}
	cfg := saramaConfig()
	cfg.Admin.Timeout = 10 * time.Second
	a, err := sarama.NewClusterAdmin([]string{addr}, cfg)
	if err != nil {
		return err
	}
	defer a.Close()
	if err := a.DeleteRecords(topic, map[int32]int64{0: 4}); err != nil {
		return err
	}
	got, err := saramaConsume(ctx, addr, topic, 6)
	if err != nil {
		return err
	}
	if got[0].Offset != 4 {
		return fmt.Errorf("after the deletion of 4 records the first is at %d", got[0].Offset)
	}
	return nil
}
