package sinks

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recreate deletes the topic and makes it again under its name.
func (r *rig) recreate(partitions int32) {
	r.Helper()
	r.deleteTopic()
	r.createTopic(partitions)
}

// createTopic makes the topic again; its records come from a new client, which has no memory of the former one.
func (r *rig) createTopic(partitions int32) {
	r.Helper()
	r.await("the topic to be made again", func() bool {
		_, err := r.admin.CreateTopic(r.Context(), partitions, 1, nil, r.topic)
		return err == nil
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(r.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(client.Close)
	r.client = client
}

func (r *rig) deleteTopic() {
	r.Helper()
	if _, err := r.admin.DeleteTopic(r.Context(), r.topic); err != nil {
		r.Fatal(err)
	}
}

// TestTopicMadeAgain: its offsets are those of the topic before it, whose rows the destination has.
func TestTopicMadeAgain(t *testing.T) {
	for _, group := range []string{"kept", "deleted"} {
		t.Run(group, func(t *testing.T) {
			r := newRig(t, 2, "")
			r.produce("first", 1000, 2)
			sink := newMemSink(true)
			r.once(sink)
			r.recreate(2)
			if group == "deleted" {
				if _, err := r.admin.DeleteGroups(t.Context(), r.pipe.Sinks[0].Group()); err != nil {
					t.Fatal(err)
				}
			}
			r.produce("second", 1200, 2)
			w := r.once(sink)
			r.verify(sink, "first", 1000)
			r.verify(sink, "second", 1200)
			if a := w.Account(); a.Stored != 1200 || a.Found != 0 {
				t.Errorf("account %+v", a)
			}
		})
	}
}

// TestRowsOfUnknownOriginHoldThePartition: a destination that does not know topics by their ID has rows, and nothing says whether they are of this topic. None
// of its records may be taken for stored; when the rows are out of the way the partition goes on.
func TestRowsOfUnknownOriginHoldThePartition(t *testing.T) {
	r := newRig(t, 1, "")
	r.produce("first", 1000, 1)
	sink := newMemSink(true)
	sink.blind = true
	r.once(sink)
	if again := r.once(sink); again.Account().Consumed != 0 { // the group's note vouches for the rows
		t.Errorf("%+v", again.Account())
	}
	r.recreate(1)
	r.produce("second", 1200, 1)
	for range 2 { // a second start must not take the first one's claim for a voucher
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := r.worker(sink, Config{Once: true}).Run(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "say which topic they are of") || !strings.Contains(err.Error(), "up to offset 999") {
			t.Fatalf("%v", err)
		}
	}
	if n := sink.total(); n != 1000 {
		t.Errorf("%d rows", n)
	}
	w := r.start(sink, Config{BackoffMax: 100 * time.Millisecond})
	r.await("a reason", func() bool {
		err := w.Ready()
		return err != nil && strings.Contains(err.Error(), "say which topic they are of")
	})
	sink.mu.Lock()
	clear(sink.rows)
	sink.mu.Unlock()
	r.await("the rows", func() bool { return sink.total() == 2200 && w.Ready() == nil })
	r.stop(w)
	r.verify(sink, "second", 1200)
}

// TestTopicDeletedWhileRunning: the worker waits for it, goes on when it is made again, says what is lost, and ends when it is told to.
func TestTopicDeletedWhileRunning(t *testing.T) {
	r := newRig(t, 2, "")
	r.produce("first", 1000, 2)
	sink := newMemSink(true)
	var text logText
	w := r.startLogged(&text, sink, Config{DrainTimeout: 2 * time.Second})
	r.await("the first rows", func() bool { return sink.total() == 1000 })
	r.deleteTopic()
	r.await("the worker to notice", func() bool {
		err := w.Ready()
		return err != nil && strings.Contains(err.Error(), "topic")
	})
	r.createTopic(2)
	r.produce("second", 600, 2)
	r.await("the rows of the new topic", func() bool { return sink.total() == 1600 && w.Ready() == nil })
	r.verify(sink, "second", 600)
	r.deleteTopic()
	r.await("the worker to notice again", func() bool { return w.Ready() != nil })
	began := time.Now()
	r.stop(w)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the worker took %s to end", took)
	}
	if n := len(text.lines("UNKNOWN_TOPIC")); n > 8 {
		t.Errorf("%d lines of the error:\n%s", n, strings.Join(text.lines("UNKNOWN_TOPIC"), ""))
	}
	if n := len(text.lines("")); n > 60 {
		t.Errorf("%d lines in all", n)
	}
	if lost := w.Account().Lost; lost != 0 {
		t.Errorf("%d lost", lost)
	}
}

// TestRecordsDeletedWithTheTopicAreCounted holds a destination shut while the topic is deleted.
func TestRecordsDeletedWithTheTopicAreCounted(t *testing.T) {
	r := newRig(t, 1, "")
	r.produce("first", 1000, 1)
	sink := newMemSink(true)
	sink.fail = func(*Batch, bool) error { return errors.New("shut") }
	w := r.start(sink, Config{DrainTimeout: time.Second})
	r.await("a failed write", func() bool { err := w.Ready(); return err != nil && strings.Contains(err.Error(), "shut") })
	r.deleteTopic()
	r.await("the loss to be counted", func() bool { return w.Account().Lost == 1000 })
	r.stop(w)
}

func (r *rig) startLogged(text *logText, sink Sink, cfg Config) *running {
	r.log = slog.New(slog.NewTextHandler(text, nil))
	return r.start(sink, cfg)
}
