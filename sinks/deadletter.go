package sinks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// letter is a record that cannot be stored.
type letter struct {
	record *kgo.Record
	stage  string
	kind   string // of the reason: a counter's label
	reason string
}

// reasonBytesMax bounds the text of a dead letter's reason.
const reasonBytesMax = 1024

// deadLetters sends records that cannot be stored to the dead-letter topic, and returns when they are acknowledged by all in-sync replicas. They
// arrive at least once: the key names the origin, so that they can be counted by it. Safe for concurrent use.
type deadLetters struct {
	log    *slog.Logger
	admin  *kadm.Client
	client *kgo.Client
	topic  string

	mu     sync.Mutex // guards what follows
	exists bool
	report letterReport
}

func newDeadLetters(log *slog.Logger, admin *kadm.Client, client *kgo.Client, topic string) *deadLetters {
	return &deadLetters{log: log, admin: admin, client: client, topic: topic, report: letterReport{known: map[string]bool{}, counts: map[string]int64{}}}
}

// letterReport is what the log says of dead letters: the first of each kind, and then a summary every letterReportInterval.
type letterReport struct {
	known  map[string]bool
	counts map[string]int64 // by kind, since the last summary; those logged one by one are not in it
	last   letter
	at     time.Time // of the last summary, or of the first letter
}

// letterReportInterval is how often the log has a summary of dead letters.
const letterReportInterval = time.Minute

// sentNow has the log say what was sent.
func (d *deadLetters) sentNow(letters []letter, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &d.report
	if r.at.IsZero() {
		r.at = now
	}
	for _, l := range letters {
		if !r.known[l.kind] {
			r.known[l.kind] = true
			d.log.Warn("a record cannot be stored and went to the dead-letter topic; more of its kind are summed up every "+letterReportInterval.String(),
				"dead_letter_topic", d.topic, "kind", l.kind, "reason", l.reason, "origin", l.origin())
			continue
		}
		r.counts[l.kind]++
		r.last = l
	}
	d.summarize(now)
}

// tick has the log say what was sent since the last summary, if that is due.
func (d *deadLetters) tick(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.summarize(now)
}

// flush is tick at the end of a run.
func (d *deadLetters) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.summarize(d.report.at.Add(letterReportInterval))
}

// summarize is called with mu held.
func (d *deadLetters) summarize(now time.Time) {
	r := &d.report
	if len(r.counts) == 0 || now.Sub(r.at) < letterReportInterval {
		return
	}
	counts := make([]any, 0, len(r.counts))
	for _, kind := range slices.Sorted(maps.Keys(r.counts)) {
		counts = append(counts, slog.Int64(kind, r.counts[kind]))
	}
	d.log.Warn("more records cannot be stored and went to the dead-letter topic", "dead_letter_topic", d.topic, slog.Group("records", counts...),
		"last_reason", r.last.reason, "last_origin", r.last.origin())
	clear(r.counts)
	r.last, r.at = letter{}, now
}

// origin is where the record came from; the dead letter's key has the topic's ID in place of its name.
func (l letter) origin() string {
	return l.record.Topic + "/" + strconv.Itoa(int(l.record.Partition)) + "/" + strconv.FormatInt(l.record.Offset, 10)
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
	var fresh []letter
	for _, l := range letters {
		if !b.sent[l.record.Offset] {
			records, fresh = append(records, d.record(l, b.claim.TopicID)), append(fresh, l)
		}
	}
	if len(records) == 0 {
		return nil
	}
	if err := d.ensureTopic(ctx); err != nil {
		return err
	}
	if err := d.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		if errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition) {
			d.forgetTopic()
		}
		return err
	}
	if b.sent == nil {
		b.sent = make(map[int64]bool, len(letters))
	}
	for _, l := range letters {
		b.sent[l.record.Offset] = true
	}
	d.sentNow(fresh, time.Now())
	return nil
}

// record is the original with headers that say what was wrong and where it came from.
func (d *deadLetters) record(l letter, id TopicID) *kgo.Record {
	r := l.record
	partition, offset := strconv.Itoa(int(r.Partition)), strconv.FormatInt(r.Offset, 10)
	header := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
	headers := append(r.Headers[:len(r.Headers):len(r.Headers)],
		header(headerReason, l.reason[:min(len(l.reason), reasonBytesMax)]),
		header(headerKind, l.kind),
		header(headerStage, l.stage),
		header(headerTopic, r.Topic),
		header(headerTopicID, id.String()),
		header(headerPartition, partition),
		header(headerOffset, offset),
		header(headerTimestamp, strconv.FormatInt(r.Timestamp.UnixMilli(), 10)),
	)
	if r.Key != nil {
		headers = append(headers, kgo.RecordHeader{Key: headerKey, Value: r.Key})
	}
	return &kgo.Record{
		Topic:   d.topic,
		Key:     []byte(id.String() + "/" + partition + "/" + offset),
		Value:   r.Value,
		Headers: headers,
	}
}

// forgetTopic has the next letter make the topic again: it was deleted, and the client would not take a new one of its name.
func (d *deadLetters) forgetTopic() {
	d.client.PurgeTopicsFromProducing(d.topic)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.exists = false
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
