package producer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// flight is what a chunk carries while it is with the Kafka producer. It is
// reused with the chunk, so that a line costs no allocation on our side.
type flight struct {
	producer *Kafka
	order    uint64
	records  []kgo.Record
	headers  []kgo.RecordHeader // backing of records' headers
	errs     []error            // by record; allocated at the first failure
	cursor   int                // where the last failed record was
	left     atomic.Int32       // records not answered
	failures atomic.Int32
	promise  func(*kgo.Record, error)
}

// Send takes the chunk over. Not to be called after Close.
func (k *Kafka) Send(c *Chunk) {
	if len(c.Records) == 0 {
		c.Done()
		return
	}
	c.prepare(k)
	k.mu.Lock()
	k.sent++
	c.flight.order = k.sent
	if k.held {
		k.queue = append(k.queue, c)
		k.mu.Unlock()
		return
	}
	k.flying++
	// Under the lock, so that two chunks cannot pass each other. The client
	// never blocks here: its own limits are lifted.
	c.produce(k)
	k.mu.Unlock()
}

// prepare lays out the client's records.
func (c *Chunk) prepare(k *Kafka) {
	f := &c.flight
	if f.promise == nil {
		f.promise = c.answered
	}
	f.producer = k
	f.errs = f.errs[:0]
	f.failures.Store(0)
	if cap(f.records) < len(c.Records) {
		f.records = make([]kgo.Record, len(c.Records))
	}
	f.records = f.records[:len(c.Records)]
	f.headers = f.headers[:0]
	var last *Header
	var shared []kgo.RecordHeader
	for i := range c.Records {
		r := &c.Records[i]
		r.Err = nil
		if len(r.Headers) == 0 {
			shared, last = nil, nil
		} else if last != &r.Headers[0] {
			shared, last = f.layHeaders(r.Headers), &r.Headers[0]
		}
		f.records[i] = kgo.Record{
			Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value,
			Headers: shared, Timestamp: c.Timestamp,
		}
	}
}

// layHeaders copies headers once for all records that share them.
func (f *flight) layHeaders(headers []Header) []kgo.RecordHeader {
	start := len(f.headers)
	for _, h := range headers {
		f.headers = append(f.headers, kgo.RecordHeader(h))
	}
	return f.headers[start:len(f.headers):len(f.headers)]
}

func (c *Chunk) produce(k *Kafka) {
	f := &c.flight
	f.left.Store(int32(len(f.records)))
	for i := range f.records {
		k.client.Produce(context.Background(), &f.records[i], f.promise)
	}
}

// answered is called by the client for every record, one at a time.
func (c *Chunk) answered(r *kgo.Record, err error) {
	f := &c.flight
	if err != nil {
		f.fail(r, err)
	}
	if f.left.Add(-1) == 0 {
		f.producer.landed(c)
	}
}

// fail notes a record's error. Only one answer is given at a time, so errs
// needs no lock; landed reads it after the last one.
func (f *flight) fail(r *kgo.Record, err error) {
	if len(f.errs) == 0 {
		f.errs = append(f.errs, make([]error, len(f.records))...)
	}
	// Answers mostly come in order, so the record is near the one before.
	for range f.records {
		f.cursor++
		if f.cursor >= len(f.records) {
			f.cursor = 0
		}
		if &f.records[f.cursor] == r {
			f.errs[f.cursor] = err
			break
		}
	}
	if f.failures.Add(1) == 1 {
		f.producer.hold()
	}
}

// landed is called when every record of a chunk has its answer.
func (k *Kafka) landed(c *Chunk) {
	good := c.flight.failures.Load() == 0
	if good {
		c.Done()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.flying--
	if !good {
		k.failed = append(k.failed, c)
	}
	if k.held && k.flying == 0 && k.ctx.Err() == nil {
		k.mended.Add(1)
		go k.mend()
	}
}

// hold stops sending until mend has run. It is called before the last answer
// of the failing chunk, so flying is not zero yet.
func (k *Kafka) hold() {
	k.mu.Lock()
	k.held = true
	k.mu.Unlock()
}

// complain logs trouble once a minute and tells OnError.
func (k *Kafka) complain(err error, waiting int) {
	if k.cfg.OnError != nil {
		k.cfg.OnError(err)
	}
	k.mu.Lock()
	due := time.Since(k.said) >= sayAgainAfter
	if due {
		k.said = time.Now()
	}
	k.mu.Unlock()
	if due {
		k.log.Error("the brokers do not take lines; they are kept and sent again", "error", err, "records", waiting)
	}
}
