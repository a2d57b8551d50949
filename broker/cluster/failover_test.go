package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// dyingStore fails after some transactions, as the store of a killed broker does.
type dyingStore struct {
	*MemoryClient
	left atomic.Int64
}

func newDyingStore(m *Memory) *dyingStore {
	s := &dyingStore{MemoryClient: m.Open()}
	s.left.Store(1 << 30)
	return s
}

func (s *dyingStore) Txn(ctx context.Context, ops ...Op) error {
	if s.left.Add(-1) < 0 {
		return errKilled
	}
	return s.MemoryClient.Txn(ctx, ops...)
}

// takesAll is a pusher to brokers that take everything.
type takesAll struct{}

func (takesAll) Push(context.Context, Broker, *Update) ([]TopicPartition, error) { return nil, nil }

// reigningOn returns a controller that has just been elected.
func reigningOn(t *testing.T, s Store, id int32) *Controller {
	t.Helper()
	return reigningWith(t, s, takesAll{}, ControllerConfig{BrokerID: id})
}

// reigningWith is reigningOn with a pusher and a configuration of its own.
func reigningWith(t *testing.T, s Store, p Pusher, cfg ControllerConfig) *Controller {
	t.Helper()
	data, stat, err := s.Get(t.Context(), controllerEpochPath)
	if err != nil {
		t.Fatal(err)
	}
	epoch, err := strconv.Atoi(string(data))
	if err != nil {
		t.Fatal(err)
	}
	txn(t, s, Set(controllerEpochPath, []byte(strconv.Itoa(epoch+1)), stat.Version))
	session, err := s.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg.RetryBackoff = time.Millisecond
	c := NewController(slog.New(slog.DiscardHandler), s, NewMetadata(), p, cfg)
	t.Cleanup(c.LeaveOffice)
	if err := c.TakeOffice(t.Context(), Office{Epoch: int32(epoch + 1), EpochVersion: stat.Version + 1, Session: session}); err != nil {
		t.Fatal(err)
	}
	return c
}

// threeBrokers returns a store with brokers 1 to 3, which stay whatever happens
// to controllers.
func threeBrokers(t *testing.T) *Memory {
	t.Helper()
	m := NewMemory()
	s := m.Open()
	if err := prepareTree(t.Context(), s, "c"); err != nil {
		t.Fatal(err)
	}
	for id := int32(1); id <= 3; id++ {
		txn(t, s, CreateEphemeral(brokerPath(id), newBrokerNode(Registration{Broker: Broker{ID: id, Host: "h", Port: 1}}, time.UnixMilli(0))))
	}
	return m
}

// askForISR lets the leaders of a topic ask for all its replicas to be in sync but
// those that a reassignment ends.
func askForISR(t *testing.T, c *Controller, topic string) error {
	r, err := c.enter(t.Context())
	if err != nil {
		return err
	}
	im := r.image
	c.leave()
	asked := map[int32][]AlterPartition{}
	for i, p := range im.Topic(topic).Partitions {
		a := AlterPartition{TopicPartition: TopicPartition{topic, int32(i)}, TopicID: im.Topic(topic).ID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
		for _, id := range difference(p.Replicas, p.Leaving()) {
			a.ISR = append(a.ISR, InSyncReplica{id, UnknownBrokerEpoch})
		}
		asked[p.Leader] = append(asked[p.Leader], a)
	}
	for leader, of := range asked {
		b, _ := im.Broker(leader)
		for _, done := range c.AlterPartitions(t.Context(), leader, b.Epoch, of) {
			if done.Err != nil {
				return done.Err
			}
		}
	}
	return nil
}

// A reassignment of many partitions, whose controller is killed after any of its
// transactions, is ended by the next one.
func TestReassignmentOutlivesItsController(t *testing.T) {
	const partitions = 600 // two transactions a step
	for kill := 0; ; kill++ {
		m := threeBrokers(t)
		dying := newDyingStore(m)
		c := reigningOn(t, dying, 1)
		assigned := map[int32][]int32{}
		var asked []Reassignment
		for i := range int32(partitions) {
			assigned[i] = []int32{1, 2}
			asked = append(asked, Reassignment{TopicPartition{"t", i}, []int32{3, 2}})
		}
		if done := c.CreateTopics(t.Context(), []NewTopic{{Name: "t", Partitions: -1, ReplicationFactor: -1, Assignment: assigned}}, false); done[0].Err != nil {
			t.Fatal(done[0].Err)
		}
		dying.left.Store(int64(kill))
		err := c.AlterReassignments(t.Context(), asked, false)[0]
		for range 2 { // the new ones come, and then the old ones go
			if err == nil {
				err = askForISR(t, c, "t")
			}
		}
		whole := err == nil && dying.left.Load() > 0
		next := reigningOn(t, m.Open(), 2)
		if err := next.AlterReassignments(t.Context(), asked, false)[0]; err != nil { // a client tries again
			t.Fatalf("killed after %d: %v", kill, err)
		}
		for range 2 {
			if err := askForISR(t, next, "t"); err != nil {
				t.Fatalf("killed after %d: %v", kill, err)
			}
		}
		r, err := next.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		im := r.image
		next.leave()
		for i, p := range im.Topic("t").Partitions {
			if p.Reassigning() || joinIDs(p.Replicas) != "3,2" || len(difference(p.ISR, p.Replicas)) > 0 || p.Leader != 3 && p.Leader != 2 {
				t.Fatalf("killed after %d: %s", kill, describePartition(i, p))
			}
		}
		c.LeaveOffice()
		next.LeaveOffice()
		if whole {
			if kill < 7 {
				t.Errorf("it took only %d transactions", kill)
			}
			return
		}
		if kill > 60 {
			t.Fatal("it never ends")
		}
	}
}

// What a change that failed half way left in the store is completed soon, and not
// only with the next change.
func TestHalfAChangeIsCompletedSoon(t *testing.T) {
	const partitions = 600 // several transactions
	m := threeBrokers(t)
	s := newDyingStore(m)
	c := reigningOn(t, s, 1)
	changed := make(chan struct{}, 1)
	c.meta.Subscribe(func(_, im *Image) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	s.left.Store(1)
	done := c.CreateTopics(t.Context(), []NewTopic{{Name: "t", Partitions: partitions, ReplicationFactor: 3}}, false)
	if !errors.Is(done[0].Err, errKilled) {
		t.Fatal(done[0].Err)
	}
	s.left.Store(1 << 30)
	for deadline := time.After(30 * time.Second); c.meta.Image().Topic("t") == nil; {
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("the topic is not made whole")
		}
	}
	topic := c.meta.Image().Topic("t")
	if len(topic.Partitions) != partitions || topic.ID == (TopicID{}) {
		t.Errorf("%d partitions", len(topic.Partitions))
	}
	for i, p := range topic.Partitions {
		if p.Leader == NoLeader || len(p.ISR) != 3 {
			t.Fatal(describePartition(i, p))
		}
	}
}

// content is all that a store has, as text.
func (m *Memory) content() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for _, path := range sortedKeys(m.tree.nodes) {
		n := m.tree.nodes[path]
		fmt.Fprintf(&b, "%s %q %+v\n", path, n.data, n.stat)
	}
	return b.String()
}

// A controller that another one has succeeded, and that does not know it, can
// change nothing by any of its methods.
func TestFormerControllerChangesNothing(t *testing.T) {
	m := threeBrokers(t)
	former := reigningOn(t, m.Open(), 1)
	assigned := map[int32][]int32{0: {1, 2}, 1: {2, 1}}
	if done := former.CreateTopics(t.Context(), []NewTopic{{Name: "t", Partitions: -1, ReplicationFactor: -1, Assignment: assigned}}, false); done[0].Err != nil {
		t.Fatal(done[0].Err)
	}
	value := "5000"
	attempts := map[string]func(c *Controller) error{
		"create": func(c *Controller) error {
			return c.CreateTopics(t.Context(), []NewTopic{topicOf("u", 1)}, false)[0].Err
		},
		"delete": func(c *Controller) error { return c.DeleteTopics(t.Context(), []string{"t"})[0] },
		"grow": func(c *Controller) error {
			return c.CreatePartitions(t.Context(), []NewPartitions{{Topic: "t", Total: 3}}, false)[0]
		},
		"configure": func(c *Controller) error {
			change := ConfigChange{Name: "retention.ms", Op: OpSetConfig, Value: &value}
			return c.AlterConfigs(t.Context(), []ConfigAlteration{{Kind: KindTopic, Name: "t", Changes: []ConfigChange{change}}}, false)[0]
		},
		"reassign": func(c *Controller) error {
			return c.AlterReassignments(t.Context(), []Reassignment{{TopicPartition{"t", 0}, []int32{3, 1}}}, false)[0]
		},
		"isr": func(c *Controller) error {
			im := c.meta.Image()
			b, _ := im.Broker(1)
			a := AlterPartition{TopicPartition: TopicPartition{"t", 0}, TopicID: im.Topic("t").ID, ISR: []InSyncReplica{{1, -1}}}
			return c.AlterPartitions(t.Context(), 1, b.Epoch, []AlterPartition{a})[0].Err
		},
		"shutdown": func(c *Controller) error {
			b, _ := c.meta.Image().Broker(1)
			_, err := c.ControlledShutdown(t.Context(), 1, b.Epoch)
			return err
		},
	}
	for name, attempt := range attempts {
		former := reigningOn(t, m.Open(), 1)
		newest := reigningOn(t, m.Open(), 2)
		before := m.content()
		if err := attempt(former); !errors.Is(err, ErrNotController) {
			t.Errorf("%s: %v", name, err)
		}
		if err := attempt(former); !errors.Is(err, ErrNotController) {
			t.Errorf("%s again: %v", name, err)
		}
		newest.LeaveOffice() // so that nothing else writes
		if m.content() != before {
			t.Errorf("%s: the store has changed", name)
		}
	}
}
