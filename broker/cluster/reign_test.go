package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// failingDisks is a pusher to brokers of which some cannot serve what is on a
// failed disk.
type failingDisks struct {
	mu      sync.Mutex
	offline map[int32][]TopicPartition
}

func (p *failingDisks) set(broker int32, offline ...TopicPartition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offline[broker] = offline
}

func (p *failingDisks) Push(_ context.Context, to Broker, _ *Update) ([]TopicPartition, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offline[to.ID], nil
}

// awaitPartition waits until the controller's broker knows a state.
func awaitPartition(t *testing.T, c *Controller, tp TopicPartition, want string) {
	t.Helper()
	awaitImage(t, c, func(im *Image) bool {
		p, _ := im.Partition(tp.Topic, tp.Partition)
		return fmt.Sprintf("leader %d epoch %d isr %s offline %s", p.Leader, p.LeaderEpoch, joinIDs(p.ISR), joinIDs(p.Offline)) == want
	})
}

// awaitImage waits until the image of the controller's broker is as wanted.
func awaitImage(t *testing.T, c *Controller, wanted func(*Image) bool) {
	t.Helper()
	changed := make(chan struct{}, 1)
	c.meta.Subscribe(func(_, _ *Image) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	deadline := time.After(30 * time.Second)
	for {
		if wanted(c.meta.Image()) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			p, _ := c.meta.Image().Partition(c.meta.Image().Topics()[0].Name, 0)
			t.Fatalf("it stays at %s", describePartition(0, p))
		}
	}
}

// assignedTopic makes a topic of one partition.
func assignedTopic(t *testing.T, c *Controller, name string, replicas ...int32) TopicPartition {
	t.Helper()
	asked := NewTopic{Name: name, Partitions: -1, ReplicationFactor: -1, Assignment: map[int32][]int32{0: replicas}}
	if done := c.CreateTopics(t.Context(), []NewTopic{asked}, false); done[0].Err != nil {
		t.Fatal(done[0].Err)
	}
	return TopicPartition{name, 0}
}

// A broker's note of a failed disk makes the controller ask it what it serves,
// and what it does not is led by others; the same when the disk is back.
func TestFailedDiskOfALiveBroker(t *testing.T) {
	m := threeBrokers(t)
	disks := &failingDisks{offline: map[int32][]TopicPartition{}}
	c := reigningWith(t, m.Open(), disks, ControllerConfig{BrokerID: 1})
	pair, alone := assignedTopic(t, c, "pair", 2, 1), assignedTopic(t, c, "alone", 2)
	other := m.Open()
	report := func() {
		t.Helper()
		if err := ReportDisk(t.Context(), other, 2, 7); err != nil {
			t.Fatal(err)
		}
	}
	disks.set(2, pair, alone)
	report()
	awaitPartition(t, c, pair, "leader 1 epoch 1 isr 1 offline 2")
	awaitPartition(t, c, alone, "leader -1 epoch 1 isr 2 offline 2")
	disks.set(2)
	report()
	awaitPartition(t, c, pair, "leader 1 epoch 1 isr 1 offline ")
	awaitPartition(t, c, alone, "leader 2 epoch 2 isr 2 offline ")
}

// A setting that allows unclean elections has them held where one is needed.
func TestUncleanElectionBySetting(t *testing.T) {
	m := threeBrokers(t)
	s := m.Open()
	c := reigningOn(t, s, 1)
	tp := assignedTopic(t, c, "t", 3, 2)
	image := func() *Image { return c.meta.Image() }
	b, _ := image().Broker(3)
	shrink := AlterPartition{TopicPartition: tp, TopicID: image().Topic("t").ID, ISR: []InSyncReplica{{3, b.Epoch}}}
	if done := c.AlterPartitions(t.Context(), 3, b.Epoch, []AlterPartition{shrink}); done[0].Err != nil {
		t.Fatal(done[0].Err)
	}
	txn(t, s, Delete(brokerPath(3), AnyVersion))
	awaitPartition(t, c, tp, "leader -1 epoch 1 isr 3 offline ")
	allowed := "true"
	changes := []ConfigChange{{Name: uncleanElectionConfig, Op: OpSetConfig, Value: &allowed}}
	if err := c.AlterConfigs(t.Context(), []ConfigAlteration{{Kind: KindTopic, Name: "t", Changes: changes}}, false)[0]; err != nil {
		t.Fatal(err)
	}
	awaitPartition(t, c, tp, "leader 2 epoch 2 isr 2 offline ")
}

// Leaders go back by themselves to the preferred replicas once these are in sync.
func TestLeadersGoBackByThemselves(t *testing.T) {
	m := threeBrokers(t)
	s := m.Open()
	c := reigningWith(t, s, takesAll{}, ControllerConfig{BrokerID: 1, BalanceInterval: time.Millisecond, ImbalancePercent: 10})
	tp := assignedTopic(t, c, "t", 3, 2)
	txn(t, s, Delete(brokerPath(3), AnyVersion))
	awaitImage(t, c, func(im *Image) bool { return im.Topic("t").Partitions[0].Leader == 2 })
	ask := func(isr ...int32) {
		t.Helper()
		im := c.meta.Image()
		p := im.Topic("t").Partitions[0]
		a := AlterPartition{TopicPartition: tp, TopicID: im.Topic("t").ID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
		for _, id := range isr {
			a.ISR = append(a.ISR, InSyncReplica{id, UnknownBrokerEpoch})
		}
		b, _ := im.Broker(2)
		if done := c.AlterPartitions(t.Context(), 2, b.Epoch, []AlterPartition{a}); done[0].Err != nil {
			t.Fatal(done[0].Err)
		}
	}
	ask(2)
	awaitImage(t, c, func(im *Image) bool { return len(im.Topic("t").Partitions[0].ISR) == 1 })
	txn(t, s, CreateEphemeral(brokerPath(3), newBrokerNode(Registration{Broker: Broker{ID: 3, Host: "h", Port: 1}}, time.UnixMilli(0))))
	awaitImage(t, c, func(im *Image) bool { return len(im.Brokers) == 3 })
	ask(2, 3)
	awaitImage(t, c, func(im *Image) bool { return im.Topic("t").Partitions[0].Leader == 3 })
}
