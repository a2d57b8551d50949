package sinks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Replay stores records of a topic, or dead letters, once more and outside the group. Each batch is read back first and only what is absent is stored, so
// a replay of what is stored changes nothing. What the group has not passed is left to it: it could come to store the same record at the same time. Not safe for
// concurrent use.
type Replay struct {
	w         *Worker
	client    *kgo.Client
	topicID   TopicID
	committed map[int32]int64 // of the group; nil where the group does not write to this destination
	result    Replayed
}

// Replayed is what became of the records of a replay.
type Replayed struct {
	Records  int64            `json:"records"`
	Stored   int64            `json:"stored"`
	Found    int64            `json:"found"`          // were stored already
	InHand   int64            `json:"left_to_worker"` // the group has not passed them
	Dropped  int64            `json:"dropped"`        // by a stage
	Rejected map[string]int64 `json:"rejected"`       // by reason: cannot be stored
	Example  string           `json:"example,omitempty"`
}

// ReplayConfig is what a replay can be told.
type ReplayConfig struct {
	// Elsewhere says that the destination is not the one that the group writes to, so nothing has to be left to the group.
	Elsewhere bool
	// DryRun reads back and encodes, and stores nothing.
	DryRun bool
}

// replayAttempts is how often a batch is tried before a replay gives up: unlike a worker's, its end is a person's to see.
const replayAttempts = 8

// Replay checks the destination and runs store with a replay that is ready. The worker must not have been started; it is closed in the end.
func (w *Worker) Replay(ctx context.Context, cfg ReplayConfig, store func(*Replay) error) (Replayed, error) {
	client, err := kgo.NewClient(w.options...)
	if err != nil {
		return Replayed{}, err
	}
	defer client.Close()
	defer w.sink.Close()
	w.admin = kadm.NewClient(client)
	r := &Replay{w: w, client: client, result: Replayed{Rejected: map[string]int64{}}}
	if cfg.DryRun {
		w.sink = dryRun{w.sink}
	}
	if r.topicID, _, err = w.topicID(ctx); err != nil {
		return r.result, err
	}
	if _, err := w.check(ctx); err != nil {
		return r.result, fmt.Errorf("the destination cannot take rows: %w", err)
	}
	if !cfg.Elsewhere {
		if r.committed, err = r.commits(ctx); err != nil {
			return r.result, err
		}
	}
	return r.result, store(r)
}

// dryRun is a destination that is asked, and not written to.
type dryRun struct{ Sink }

func (dryRun) Write(context.Context, *Batch) error { return nil }

// commits are what the group has passed, in the topic that is there now.
func (r *Replay) commits(ctx context.Context) (map[int32]int64, error) {
	offsets, err := r.w.admin.FetchOffsets(ctx, r.w.spec.Group())
	if err != nil {
		return nil, fmt.Errorf("read the commits of group %s: %w", r.w.spec.Group(), err)
	}
	out := map[int32]int64{}
	for p, c := range offsets[r.w.pipe.Topic.Name] {
		if note, ok := ParseCommitNote(c.Metadata); c.Err == nil && (!ok || note.TopicID == r.topicID) {
			out[p] = c.At
		}
	}
	return out, nil
}

// Range stores the records of the partitions in from, up to those in to; nil is all.
func (r *Replay) Range(ctx context.Context, from, to map[int32]int64) error {
	held := map[int32]records{}
	var bytes int64
	err := readRange(ctx, r.client, r.w.pipe.Topic.Name, from, to, func(p int32, fetched []*kgo.Record) error {
		of := held[p]
		for _, x := range newRuns(fetched) {
			of.add(x)
			bytes += x.bytes
		}
		held[p] = of
		if full := r.w.spec.Batch.Rows; of.n < full && bytes < r.w.recordMemory() {
			return nil
		}
		bytes = 0
		return r.storeAll(ctx, held)
	})
	return errors.Join(err, r.storeAll(ctx, held))
}

func (r *Replay) storeAll(ctx context.Context, held map[int32]records) error {
	for _, p := range slices.Sorted(maps.Keys(held)) {
		if err := r.store(ctx, r.topicID, p, held[p]); err != nil {
			return err
		}
		delete(held, p)
	}
	return nil
}

// Letters stores the dead letters that want accepts, each origin once.
func (r *Replay) Letters(ctx context.Context, want func(*Letter) bool) error {
	type place struct {
		topic     TopicID
		partition int32
	}
	found := map[place]map[int64]*kgo.Record{}
	err := ReadLetters(ctx, r.client, r.w.deadLetterTopic(), func(l Letter) error {
		if !l.OfRecord() || l.Topic != r.w.pipe.Topic.Name || !want(&l) {
			return nil
		}
		at := place{l.TopicID, l.Record.Partition}
		if at.topic == (TopicID{}) {
			at.topic = r.topicID
		}
		if found[at] == nil {
			found[at] = map[int64]*kgo.Record{}
		}
		found[at][l.Record.Offset] = l.Record
		return nil
	})
	if err != nil {
		return err
	}
	for at, byOffset := range found {
		var letters []*kgo.Record
		for _, offset := range slices.Sorted(maps.Keys(byOffset)) {
			letters = append(letters, byOffset[offset])
		}
		for chunk := range slices.Chunk(letters, max(r.w.spec.Batch.Rows, 1)) {
			var rs records
			for _, x := range newRuns(chunk) {
				rs.add(x)
			}
			if err := r.store(ctx, at.topic, at.partition, rs); err != nil {
				return err
			}
		}
	}
	return nil
}

// store stores what is absent of the records, which ascend and are of one partition.
func (r *Replay) store(ctx context.Context, topic TopicID, partition int32, rs records) error {
	r.result.Records += int64(rs.data())
	if r.committed != nil && topic == r.topicID {
		all := rs.data()
		rs = rs.cut(rs.through(r.committed[partition] - 1))
		r.result.InHand += int64(all - rs.data())
	}
	if rs.data() == 0 {
		return nil
	}
	b := &batch{records: rs, repeat: true, claim: Claim{
		Pipeline: r.w.pipe.Name, Sink: r.w.spec.Name, Topic: r.w.pipe.Topic.Name, TopicID: topic, Partition: partition,
		Lo: rs.runs[0].records[0].offset, Hi: rs.last().offset, Epoch: -1,
	}}
	for attempt := 1; ; attempt++ {
		t, err := r.try(ctx, b)
		if err == nil {
			r.count(&t)
			return nil
		}
		err = fmt.Errorf("partition %d, offsets %d to %d: %w", partition, b.claim.Lo, b.claim.Hi, err)
		if attempt == replayAttempts || ctx.Err() != nil {
			return err
		}
		r.w.log.Warn("the destination does not take the batch; trying again", "attempt", attempt, "error", err)
		if err := sleep(ctx, r.w.backoff(attempt)); err != nil {
			return err
		}
	}
}

func (r *Replay) try(ctx context.Context, b *batch) (t tally, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.w.cfg.WriteDeadline)
	defer cancel()
	stored, err := r.w.sink.Stored(ctx, b.claim)
	if err != nil {
		return t, fmt.Errorf("read back what is stored: %w", err)
	}
	e, err := r.w.encoders.get()
	if err != nil {
		return t, err
	}
	defer r.w.encoders.put(e)
	t = e.encode(b, stored.Present)
	_, err = r.w.write(ctx, e, b, stored.Present, t.stored)
	if errors.Is(err, ErrSchemaChanged) {
		if _, err := r.w.check(ctx); err != nil {
			return t, err
		}
		r.w.encoders.renew()
	}
	return t, err
}

func (r *Replay) count(t *tally) {
	r.result.Stored += t.stored
	r.result.Found += t.found
	for _, n := range t.dropped {
		r.result.Dropped += n
	}
	for reason, n := range t.rejected {
		r.result.Rejected[reason] += n
	}
	if len(t.letters) > 0 && r.result.Example == "" {
		l := t.letters[0]
		r.result.Example = fmt.Sprintf("%s: %s: %s", l.origin(), l.stage, l.reason)
	}
}

// OffsetsAt are the first offsets at or after a time, in each partition of the topic: the end where no record is as late.
func (r *Replay) OffsetsAt(ctx context.Context, at time.Time) (map[int32]int64, error) {
	topic := r.w.pipe.Topic.Name
	listed, err := r.w.admin.ListOffsetsAfterMilli(ctx, at.UnixMilli(), topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("look for the offsets at %s: %w", at.Format(time.RFC3339), err)
	}
	out := map[int32]int64{}
	for p, o := range listed[topic] {
		out[p] = o.Offset
	}
	return out, nil
}

// Partitions are those of the topic.
func (r *Replay) Partitions(ctx context.Context) ([]int32, error) {
	_, n, err := r.w.topicID(ctx)
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out, err
}
