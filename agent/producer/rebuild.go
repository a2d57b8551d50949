package producer

import (
	"fmt"
	"slices"

	"github.com/sluice-io/sluice/internal/record"
)

// Refused is a record that the brokers refused for itself. Its fields are copies.
type Refused struct {
	Mark    Mark
	Known   bool // that Mark is
	Key     []byte
	Value   []byte
	Headers []Header
	Err     error
}

// rebuilder makes batches out of others. Not safe for concurrent use.
type rebuilder struct {
	builder      record.Builder
	decompressor *record.Decompressor
}

// fill gives a piece's batch its bytes: the old one's under another identity, or those of some of its records.
func (r *rebuilder) fill(p piece, old record.Batch) error {
	b := p.batch
	if p.from == 0 && p.to == int(old.Count()) && len(p.drop) == 0 {
		b.Data = slices.Clone(old)
	} else if err := r.pick(p, old); err != nil {
		return fmt.Errorf("make a batch of records %d to %d of another: %w", p.from, p.to, err)
	}
	b.Data.SetProducer(b.Producer, b.Epoch, b.BaseSequence)
	b.Size = len(b.Data)
	return nil
}

// pick builds a batch of some records.
func (r *rebuilder) pick(p piece, old record.Batch) error {
	r.builder.Reset()
	i := -1
	err := old.Each(r.decompress(), func(rec *record.Record) error {
		if i++; i >= p.from && i < p.to && !slices.Contains(p.drop, i) {
			r.builder.Append(rec.Timestamp, rec.Key, rec.Value, rec.Headers)
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.batch.Data, err = r.builder.Build(record.BuildOptions{Codec: old.Codec()}, nil)
	return err
}

// refused are the records that a piece drops.
func (r *rebuilder) refused(p piece, old record.Batch) (out []Refused, err error) {
	i := -1
	err = old.Each(r.decompress(), func(rec *record.Record) error {
		if i++; !slices.Contains(p.drop, i) {
			return nil
		}
		x := Refused{Key: slices.Clone(rec.Key), Value: slices.Clone(rec.Value), Err: p.of.flight.refusal.err}
		if i < len(p.of.Marks) {
			x.Mark, x.Known = p.of.Marks[i], true
		} else if n := p.of.Records; n > 0 {
			x.Mark.Bytes = int32(p.of.SourceBytes / int64(n))
		}
		for _, h := range rec.Headers {
			x.Headers = append(x.Headers, Header{Key: string([]byte(h.Key)), Value: slices.Clone(h.Value)})
		}
		out = append(out, x)
		return nil
	})
	return out, err
}

func (r *rebuilder) decompress() *record.Decompressor {
	if r.decompressor == nil {
		r.decompressor = record.NewDecompressor(0)
	}
	return r.decompressor
}
