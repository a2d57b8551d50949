package cluster

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"
)

// heldPusher reaches brokers whose picture is meta. While armed, the next push
// to broker 2 that has topics is taken, and its answer waits and is lost.
type heldPusher struct {
	meta  map[int32]*Metadata
	armed atomic.Bool
	taken chan struct{}
	lose  chan struct{}
}

func (p *heldPusher) Push(_ context.Context, to Broker, u *Update) ([]TopicPartition, error) {
	if err := p.meta[to.ID].Receive(u); err != nil {
		return nil, err
	}
	if to.ID == 2 && len(u.Topics) > 0 && p.armed.CompareAndSwap(true, false) {
		close(p.taken)
		<-p.lose
		return nil, errors.New("the answer is lost")
	}
	return nil, nil
}

// A broker that took an update whose answer was lost is not left with a topic
// that was deleted meanwhile: what it has is not known, so it gets everything.
func TestLostAnswerOfAPush(t *testing.T) {
	m := threeBrokers(t)
	p := &heldPusher{meta: map[int32]*Metadata{2: NewMetadata(), 3: NewMetadata()}, taken: make(chan struct{}), lose: make(chan struct{})}
	s := m.Open()
	txn(t, s, Set(controllerEpochPath, []byte("1"), 0))
	session, _ := s.Session(t.Context())
	c := NewController(slog.New(slog.DiscardHandler), s, NewMetadata(), p, ControllerConfig{BrokerID: 1, RetryBackoff: time.Millisecond})
	t.Cleanup(c.LeaveOffice)
	if err := c.TakeOffice(t.Context(), Office{Epoch: 1, EpochVersion: 1, Session: session}); err != nil {
		t.Fatal(err)
	}
	create := func(name string) {
		t.Helper()
		if done := c.CreateTopics(t.Context(), []NewTopic{topicOf(name, 3)}, false); done[0].Err != nil {
			t.Fatal(done[0].Err)
		}
	}
	create("stays")
	p.armed.Store(true)
	create("goes") // known to broker 2, which the controller does not know
	<-p.taken
	deleted := make(chan error, 1)
	go func() { deleted <- c.DeleteTopics(t.Context(), []string{"goes"})[0] }()
	for c.meta.Image().Topic("goes") != nil { // the deletion is decided
		gone := make(chan struct{}, 1)
		c.meta.Subscribe(func(_, im *Image) {
			if im.Topic("goes") == nil {
				select {
				case gone <- struct{}{}:
				default:
				}
			}
		})
		<-gone
	}
	select {
	case err := <-deleted:
		t.Fatalf("the deletion did not wait for broker 2: %v", err)
	default:
	}
	close(p.lose)
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	for id, meta := range p.meta {
		if im := meta.Image(); im.Topic("goes") != nil || im.Topic("stays") == nil {
			t.Errorf("broker %d knows %v", id, im.Topics())
		}
	}
}

// A broker that does not answer holds up neither the others nor, for long, who
// asked for a change.
func TestSilentBrokerHoldsUpNobody(t *testing.T) {
	m := threeBrokers(t)
	p := &heldPusher{meta: map[int32]*Metadata{2: NewMetadata(), 3: NewMetadata()}, taken: make(chan struct{}), lose: make(chan struct{})}
	p.armed.Store(true)
	s := m.Open()
	txn(t, s, Set(controllerEpochPath, []byte("1"), 0))
	session, _ := s.Session(t.Context())
	c := NewController(slog.New(slog.DiscardHandler), s, NewMetadata(), p, ControllerConfig{BrokerID: 1, RetryBackoff: time.Millisecond})
	t.Cleanup(c.LeaveOffice)
	t.Cleanup(func() { close(p.lose) })
	if err := c.TakeOffice(t.Context(), Office{Epoch: 1, EpochVersion: 1, Session: session}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"taken", "t"} {
		if done := c.CreateTopics(t.Context(), []NewTopic{topicOf(name, 3)}, false); done[0].Err != nil {
			t.Fatal(done[0].Err)
		}
	}
	<-p.taken
	if p.meta[3].Image().Topic("t") == nil || c.meta.Image().Topic("t") == nil {
		t.Error("a broker that is well does not know the topic")
	}
	if p.meta[2].Image().Topic("t") != nil {
		t.Error("the silent broker knows it")
	}
}

// What a broker takes, and what it refuses for being late.
func TestMetadataRefusesWhatIsLate(t *testing.T) {
	old := NewImage("c", []Broker{{ID: 1}}).WithBrokers([]Broker{{ID: 1}}, 1, 5)
	topic := &Topic{Name: "t", ID: TopicID{1}, Partitions: []Partition{{Leader: 1, Replicas: []int32{1}, ISR: []int32{1}, PartitionEpoch: 3}}}
	with := old.With(topic)
	numbered := func(u *Update, seq int64) *Update { u.Seq = seq; return u }
	m := NewMetadata()
	if err := m.Receive(numbered(Diff(old, with), 1)); !errors.Is(err, ErrStaleUpdate) {
		t.Errorf("a difference to nothing: %v", err)
	}
	if err := m.Receive(numbered(Diff(nil, with), 4)); err != nil {
		t.Fatal(err)
	}
	if err := m.Receive(numbered(Diff(with, old), 4)); !errors.Is(err, ErrStaleUpdate) {
		t.Errorf("a late copy: %v", err)
	}
	former := with.WithBrokers(with.Brokers, 2, 4)
	if err := m.Receive(numbered(Diff(nil, former), 9)); !errors.Is(err, ErrStaleControllerEpoch) {
		t.Errorf("a former controller: %v", err)
	}
	newer := with.WithBrokers(with.Brokers, 2, 6)
	if err := m.Receive(numbered(Diff(with, newer), 1)); !errors.Is(err, ErrStaleUpdate) {
		t.Errorf("the first of a reign is not a full one: %v", err)
	}
	// A full one of the next reign, with an older state of the partition, which stays.
	behind := topic.cloned()
	behind.Partitions[0].PartitionEpoch, behind.Partitions[0].Leader = 2, NoLeader
	if err := m.Receive(numbered(Diff(nil, newer.With(behind)), 1)); err != nil {
		t.Fatal(err)
	}
	if p, _ := m.Image().Partition("t", 0); p.Leader != 1 || m.Image().ControllerEpoch != 6 {
		t.Errorf("%+v in epoch %d", p, m.Image().ControllerEpoch)
	}
	if m.Image().Topic("t") != m.Image().TopicByID(TopicID{1}) {
		t.Error("the indexes differ")
	}
}
