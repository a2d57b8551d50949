package sinks

import (
	"context"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/pipelines"
)

// replay runs one over the rig's topic.
func (r *rig) replay(sink Sink, cfg ReplayConfig, store func(*Replay) error) Replayed {
	r.Helper()
	result, err := r.worker(sink, Config{}).Replay(r.Context(), cfg, store)
	if err != nil {
		r.Fatal(err)
	}
	return result
}

// TestReplayOfARange: into the same destination it changes nothing, into an empty one it fills it, and what the group has not passed is left to it.
func TestReplayOfARange(t *testing.T) {
	r := newRig(t, 3, "")
	r.produce("a", 3000, 3)
	sink := newMemSink(false)
	r.once(sink)
	r.produce("b", 30, 3)
	whole := func(x *Replay) error { return x.Range(t.Context(), nil, nil) }
	if got := r.replay(sink, ReplayConfig{}, whole); got.Found != 3000 || got.Stored != 0 || got.InHand != 30 || got.Records != 3030 {
		t.Errorf("%+v", got)
	}
	r.verify(sink, "a", 3000)
	delete(sink.rows[1], 7) // as if an operator had removed a row
	for row := range sink.ids {
		if row.partition == 1 && row.offset == 7 {
			delete(sink.ids, row)
		}
	}
	if got := r.replay(sink, ReplayConfig{DryRun: true}, whole); got.Stored != 1 || sink.rows[1][7] != 0 {
		t.Errorf("%+v", got)
	}
	if got := r.replay(sink, ReplayConfig{}, whole); got.Stored != 1 || sink.rows[1][7] != 1 {
		t.Errorf("%+v", got)
	}
	other := newMemSink(false)
	part := func(x *Replay) error { return x.Range(t.Context(), map[int32]int64{1: 100}, map[int32]int64{1: 200}) }
	if got := r.replay(other, ReplayConfig{Elsewhere: true}, part); got.Stored != 100 || len(other.rows[1]) != 100 || other.rows[1][100] != 1 || other.rows[1][199] != 1 {
		t.Errorf("%+v", got)
	}
}

// TestReplayOfDeadLetters stores them under the offsets that they had, each once however often the letter was written and the replay is run.
func TestReplayOfDeadLetters(t *testing.T) {
	r := newRig(t, 1, "errors: {dead_letter_share: 100%}\n")
	for i := range 20 {
		value := fmt.Sprintf("a-%d", i)
		if i%5 == 0 {
			value = "bad"
		}
		record := &kgo.Record{Topic: r.topic, Value: []byte(value), Key: []byte("k"), Headers: []kgo.RecordHeader{{Key: "host", Value: []byte("h")}}}
		if err := r.client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	sink := newMemSink(false)
	r.once(sink)
	var letters []Letter
	if err := ReadLetters(t.Context(), r.client, r.topic+"-dlq", func(l Letter) error { letters = append(letters, l); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(letters) != 4 || letters[1].Record.Offset != 5 || string(letters[1].Record.Value) != "bad" || string(letters[1].Record.Key) != "k" ||
		len(letters[1].Record.Headers) != 1 || letters[1].Kind != "range" || letters[1].Record.Timestamp.After(letters[1].At) {
		t.Fatalf("%+v", letters)
	}
	// Written twice, as after a crash between the letter and the commit.
	again := (&deadLetters{topic: r.topic + "-dlq"}).record(letter{record: letters[0].Record, stage: "columns", kind: "range", reason: "again"}, letters[0].TopicID)
	if err := r.client.ProduceSync(t.Context(), again).FirstErr(); err != nil {
		t.Fatal(err)
	}
	all := func(x *Replay) error { return x.Letters(t.Context(), func(*Letter) bool { return true }) }
	if got := r.replay(sink, ReplayConfig{}, all); got.Records != 4 || got.Stored != 0 || got.Rejected["range"] != 4 || got.Example == "" {
		t.Errorf("%+v", got)
	}
	mended := takesAll{sink}
	for i, stored := range []int64{4, 0} {
		if got := r.replay(mended, ReplayConfig{}, all); got.Records != 4 || got.Stored != stored || got.Found != 4-stored {
			t.Errorf("replay %d: %+v", i, got)
		}
	}
	for offset := range int64(20) {
		if n := sink.rows[0][offset]; n != 1 {
			t.Errorf("offset %d is stored %d times", offset, n)
		}
	}
}

// takesAll is a destination whose schema was mended: nothing is bad any more.
type takesAll struct{ *memSink }

func (s takesAll) NewBlock() (Block, error) { return &takingBlock{}, nil }

func (s takesAll) Write(ctx context.Context, b *Batch) error {
	plain := *b
	plain.Block = &b.Block.(*takingBlock).memBlock
	return s.memSink.Write(ctx, &plain)
}

type takingBlock struct{ memBlock }

func (b *takingBlock) Append(e *pipelines.Event) error {
	b.offsets = append(b.offsets, e.Meta.Offset)
	b.values = append(b.values, fmt.Sprintf("%s-%d", e.Raw, e.Meta.Offset))
	return nil
}
