package sinks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// letter is a record that cannot be stored.
type letter struct {
	record *kgo.Record
	stage  string
	reason string
}

// reasonBytesMax bounds the text of a dead letter's reason.
const reasonBytesMax = 1024

// deadLetters sends records that cannot be stored to the dead-letter topic, and returns when they are acknowledged by all in-sync replicas. They
// arrive at least once: the key names the origin, so that they can be counted by it. Safe for concurrent use.
type deadLetters struct {
	admin  *kadm.Client
	client *kgo.Client
	topic  string

	mu     sync.Mutex // guards exists
	exists bool
}

func newDeadLetters(admin *kadm.Client, client *kgo.Client, topic string) *deadLetters {
	return &deadLetters{admin: admin, client: client, topic: topic}
}

// deadLetterTopic is the pipeline's, or PIPELINE-dlq: what cannot be stored is never lost for want of a setting.
func (w *Worker) deadLetterTopic() string {
	if w.pipe.Errors.DeadLetter != "" {
		return w.pipe.Errors.DeadLetter
	}
	return w.pipe.Name + "-dlq"
}

// send produces the letters that this worker has not yet sent for the batch.
func (d *deadLetters) send(ctx context.Context, b *batch, letters []letter) error {
	var records []*kgo.Record
	for _, l := range letters {
		if !b.sent[l.record.Offset] {
			records = append(records, d.record(l))
		}
	}
	if len(records) == 0 {
		return nil
	}
	if err := d.ensureTopic(ctx); err != nil {
		return err
	}
	if err := d.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	if b.sent == nil {
		b.sent = make(map[int64]bool, len(letters))
	}
	for _, l := range letters {
		b.sent[l.record.Offset] = true
	}
	return nil
}

// record is the original with headers that say what was wrong and where it came from.
func (d *deadLetters) record(l letter) *kgo.Record {
	r := l.record
	partition, offset := strconv.Itoa(int(r.Partition)), strconv.FormatInt(r.Offset, 10)
	headers := append(r.Headers[:len(r.Headers):len(r.Headers)],
		kgo.RecordHeader{Key: "dlq_reason", Value: []byte(l.reason[:min(len(l.reason), reasonBytesMax)])},
		kgo.RecordHeader{Key: "dlq_stage", Value: []byte(l.stage)},
		kgo.RecordHeader{Key: "dlq_topic", Value: []byte(r.Topic)},
		kgo.RecordHeader{Key: "dlq_partition", Value: []byte(partition)},
		kgo.RecordHeader{Key: "dlq_offset", Value: []byte(offset)},
	)
	if r.Key != nil {
		headers = append(headers, kgo.RecordHeader{Key: "dlq_key", Value: r.Key})
	}
	return &kgo.Record{
		Topic:   d.topic,
		Key:     []byte(r.Topic + "/" + partition + "/" + offset),
		Value:   r.Value,
		Headers: headers,
	}
}

// ensureTopic makes the dead-letter topic, with the broker's defaults, unless it is there.
func (d *deadLetters) ensureTopic(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.exists {
		return nil
	}
	_, err := d.admin.CreateTopic(ctx, -1, -1, nil, d.topic)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s: %w", d.topic, err)
	}
	d.exists = true
	return nil
}
