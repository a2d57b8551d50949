package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var modelSeed = flag.Uint64("model.seed", 0, "one seed of the controllers' model test")

// modelBrokers are as many as a partition has replicas at most, and one more.
const modelBrokers = 4

// world is a cluster of brokers, each with a membership and a controller of its
// own, over one store. Everything that is written is checked.
type world struct {
	t     *testing.T
	mem   *Memory
	nodes [modelBrokers + 1]*modelNode // by id
	done  int                          // changes that succeeded

	mu      sync.Mutex // over a transaction and its check; guards what follows
	states  map[string]Partition
	leaders map[string]int32 // by path and leader epoch
	drops   *rand.Rand
	lossy   bool
	changed chan struct{} // one waiting at most
}

// modelNode is a broker. Its parts are nil while it is down.
type modelNode struct {
	id     int32
	client *MemoryClient
	meta   *Metadata
	ctl    *Controller
	member *Member
}

// checkedStore checks what one broker writes.
type checkedStore struct {
	*MemoryClient
	w *world
}

func (s *checkedStore) Txn(ctx context.Context, ops ...Op) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	err := s.MemoryClient.Txn(ctx, ops...)
	s.w.notify()
	if err == nil || errors.Is(err, ErrUncertain) {
		for _, op := range ops {
			s.w.wrote(op)
		}
	}
	return err
}

// wrote checks a write of a partition's state. The caller holds mu.
func (w *world) wrote(op Op) {
	if !strings.HasSuffix(op.Path, "/state") {
		return
	}
	if op.Kind == OpDelete {
		delete(w.states, op.Path)
		for key := range w.leaders {
			if strings.HasPrefix(key, op.Path+" ") {
				delete(w.leaders, key)
			}
		}
		return
	}
	var is Partition
	if err := is.readState(op.Path, op.Data, 0); err != nil {
		w.t.Error(err)
		return
	}
	was, known := w.states[op.Path]
	w.states[op.Path] = is
	if is.Leader != NoLeader && !slices.Contains(is.ISR, is.Leader) {
		w.t.Errorf("%s: the leader %d is not among %v", op.Path, is.Leader, is.ISR)
	}
	if known && (is.LeaderEpoch < was.LeaderEpoch || is.Leader != was.Leader && is.LeaderEpoch == was.LeaderEpoch) {
		w.t.Errorf("%s: from leader %d in epoch %d to leader %d in epoch %d", op.Path, was.Leader, was.LeaderEpoch, is.Leader, is.LeaderEpoch)
	}
	key := fmt.Sprintf("%s %d", op.Path, is.LeaderEpoch)
	if leader, led := w.leaders[key]; led && leader != is.Leader {
		w.t.Errorf("%s: two leaders, %d and %d", key, leader, is.Leader)
	}
	w.leaders[key] = is.Leader
}

// Push implements Pusher for all controllers. Some pushes fail, before they
// reach the broker or after.
func (w *world) Push(_ context.Context, to Broker, u *Update) ([]TopicPartition, error) {
	w.mu.Lock()
	n := w.nodes[to.ID]
	meta, member := n.meta, n.member
	fate := 2
	if w.lossy {
		fate = w.drops.IntN(10)
	}
	w.mu.Unlock()
	if fate == 0 || meta == nil || member.Epoch() != to.Epoch {
		return nil, errors.New("not reached")
	}
	if err := meta.Receive(u); err != nil {
		return nil, err
	}
	if fate == 1 {
		return nil, errors.New("no answer")
	}
	return nil, nil
}

func (w *world) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// await waits until something holds, looking again after each change.
func (w *world) await(what string, done func() error) {
	w.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		err := done()
		if err == nil {
			return
		}
		select {
		case <-w.changed:
		case <-deadline:
			w.t.Fatalf("not within 30 s: %s: %v", what, err)
		}
	}
}

// start brings a broker up, over a new session.
func (w *world) start(id int32, r Registration) {
	n := &modelNode{id: id, client: w.mem.Open(), meta: NewMetadata()}
	store := &checkedStore{n.client, w}
	log := slog.New(slog.DiscardHandler)
	n.ctl = NewController(log, store, n.meta, w, ControllerConfig{BrokerID: id, RetryBackoff: time.Millisecond})
	n.member = NewMember(log, store, n.ctl, MemberConfig{RetryBackoff: time.Millisecond})
	n.meta.Subscribe(n.member.Seen)
	n.meta.Subscribe(func(old, im *Image) { w.checkImage(n, old, im) })
	w.mu.Lock()
	w.nodes[id] = n
	w.mu.Unlock()
	r.ClusterID, r.DirectoryID, r.BootID = "c", fmt.Sprintf("dir-%d", id), "boot"
	r.Broker = Broker{ID: id, Host: "h", Port: 1}
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	if err := n.member.Join(ctx, r); err != nil {
		w.t.Fatalf("broker %d: %v", id, err)
	}
}

// checkImage checks what a broker is told.
func (w *world) checkImage(n *modelNode, old, im *Image) {
	if old != nil && im.ControllerEpoch < old.ControllerEpoch {
		w.t.Errorf("broker %d goes back to controller epoch %d", n.id, im.ControllerEpoch)
	}
	DiffTopics(old, im, func(was, is *Topic) {
		if was == nil || is == nil || was.ID != is.ID {
			return
		}
		for i := range was.Partitions {
			a, b := was.Partitions[i], is.Partitions[i]
			if b.LeaderEpoch < a.LeaderEpoch || b.PartitionEpoch < a.PartitionEpoch {
				w.t.Errorf("broker %d: %s-%d goes back from %s to %s", n.id, is.Name, i, describePartition(i, a), describePartition(i, b))
			}
		}
	})
	w.notify()
}

// crash ends a broker as a kill does whose session ends at once.
func (w *world) crash(id int32) {
	w.mu.Lock()
	n := w.nodes[id]
	w.nodes[id] = &modelNode{id: id}
	w.mu.Unlock()
	_ = n.client.Close()
	_ = n.member.Leave(w.t.Context()) // ends its goroutines; the store is closed to it
}

func (w *world) up() []*modelNode {
	var out []*modelNode
	for _, n := range w.nodes[1:] {
		if n.member != nil {
			out = append(out, n)
		}
	}
	return out
}

// Random events on a cluster of four brokers whose controllers come and go. What
// is written is checked at once; in the end all is made whole, and every broker
// knows what the store has.
func TestControllersUnderRandomEvents(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if *modelSeed != 0 {
		seeds = []uint64{*modelSeed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("model.seed=%d", seed), func(t *testing.T) { runModel(t, seed) })
	}
}

func runModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		t: t, mem: NewMemory(), states: map[string]Partition{}, leaders: map[string]int32{},
		drops: rand.New(rand.NewPCG(seed, 2)), lossy: true, changed: make(chan struct{}, 1),
	}
	for id := int32(1); id <= modelBrokers; id++ {
		w.nodes[id] = &modelNode{id: id}
	}
	for id := int32(1); id <= modelBrokers; id++ {
		w.start(id, Registration{Clean: true})
	}
	t.Cleanup(func() {
		for _, n := range w.up() {
			w.crash(n.id)
		}
	})
	for range 150 {
		w.event(rng)
		if t.Failed() {
			return
		}
	}
	w.mu.Lock()
	w.lossy = false
	w.mu.Unlock()
	for _, n := range w.nodes[1:] {
		if n.member == nil {
			w.start(n.id, Registration{})
		} else {
			n.client.SetAway(false)
		}
	}
	w.await("the cluster is whole", w.whole)
	if w.done < 25 {
		t.Errorf("only %d changes were made", w.done)
	}
	t.Logf("%d changes, controller epoch %d", w.done, w.nodes[1].meta.Image().ControllerEpoch)
}

// event lets one thing happen.
func (w *world) event(rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Second)
	defer cancel()
	up := w.up()
	n := up[rng.IntN(len(up))]
	name := fmt.Sprintf("t%d", rng.IntN(4))
	tp := TopicPartition{name, rng.Int32N(3)}
	switch rng.IntN(20) {
	case 0:
		if len(up) > 1 {
			w.crash(n.id)
		}
	case 1, 2:
		for _, down := range w.nodes[1:] {
			if down.member == nil {
				w.start(down.id, Registration{Clean: rng.IntN(2) == 0, Lost: rng.IntN(3) == 0})
				break
			}
		}
	case 3:
		n.client.Expire()
	case 4:
		n.client.LoseAnswers(rng.IntN(3))
	case 5, 6, 7:
		w.inOffice(func(c *Controller) error {
			return c.CreateTopics(ctx, []NewTopic{{Name: name, Partitions: 3, ReplicationFactor: int16(1 + rng.IntN(len(up)))}}, false)[0].Err
		})
	case 8, 9:
		w.inOffice(func(c *Controller) error { return c.DeleteTopics(ctx, []string{name})[0] })
	case 10:
		w.inOffice(func(c *Controller) error {
			return c.CreatePartitions(ctx, []NewPartitions{{Topic: name, Total: 3 + rng.Int32N(4)}}, false)[0]
		})
	case 11:
		if len(up) == 1 {
			return
		}
		w.inOffice(func(c *Controller) error {
			_, err := c.ControlledShutdown(ctx, n.id, n.member.Epoch())
			return err
		})
		w.crash(n.id) // stopped, whatever the answer
	case 12:
		w.inOffice(func(c *Controller) error {
			_, err := c.ElectLeaders(ctx, ElectionKind(rng.IntN(2)), nil)
			return err
		})
	case 13, 14:
		target := randomIDs(rng, 1+rng.IntN(3))
		if rng.IntN(3) == 0 {
			target = nil // cancel
		}
		w.inOffice(func(c *Controller) error {
			return c.AlterReassignments(ctx, []Reassignment{{tp, target}}, true)[0]
		})
	default:
		w.alterISR(ctx, rng, n)
	}
}

func randomIDs(rng *rand.Rand, n int) []int32 {
	out := []int32{}
	for _, i := range rng.Perm(modelBrokers)[:n] {
		out = append(out, int32(i+1))
	}
	return out
}

// inOffice calls fn with the controller that is in office, if one is. It may
// lose the office meanwhile.
func (w *world) inOffice(fn func(*Controller) error) {
	for _, n := range w.up() {
		err := fn(n.ctl)
		if err == nil {
			w.done++
		}
		if !errors.Is(err, ErrNotController) {
			return
		}
	}
}

// alterISR lets a broker ask for other in-sync replicas of all that it leads,
// as it knows them.
func (w *world) alterISR(ctx context.Context, rng *rand.Rand, n *modelNode) {
	im := n.meta.Image()
	var asked []AlterPartition
	for _, t := range im.Topics() {
		for i, p := range t.Partitions {
			if p.Leader != n.id {
				continue
			}
			a := AlterPartition{TopicPartition: TopicPartition{t.Name, int32(i)}, TopicID: t.ID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
			for _, id := range difference(p.Replicas, p.Leaving()) {
				if b, ok := im.Broker(id); id == n.id || ok && rng.IntN(4) > 0 {
					a.ISR = append(a.ISR, InSyncReplica{id, b.Epoch})
				}
			}
			asked = append(asked, a)
		}
	}
	w.inOffice(func(c *Controller) error {
		out := c.AlterPartitions(ctx, n.id, n.member.Epoch(), asked)
		for _, r := range out {
			if r.Err != nil && errors.Is(r.Err, ErrNotController) {
				return r.Err
			}
		}
		return nil
	})
}

// whole says what is not yet as it is to be in the end.
func (w *world) whole() error {
	client := w.mem.Open()
	defer client.Close()
	reader := NewController(slog.New(slog.DiscardHandler), client, NewMetadata(), nil, ControllerConfig{})
	stored, deleting, err := reader.load(w.t.Context(), "c", nil)
	if err != nil || len(deleting) > 0 {
		return fmt.Errorf("still being deleted: %v, %w", deleting, err)
	}
	for _, n := range w.nodes[1:] {
		if err := sameAsStored(n.meta.Image(), stored); err != nil {
			return fmt.Errorf("broker %d: %w", n.id, err)
		}
	}
	return nil
}

func sameAsStored(im, stored *Image) error {
	if im == nil {
		return errors.New("it knows nothing")
	}
	if len(im.Brokers) != modelBrokers || im.TopicCount() != stored.TopicCount() {
		return fmt.Errorf("it knows %d brokers and %d of %d topics", len(im.Brokers), im.TopicCount(), stored.TopicCount())
	}
	for _, want := range stored.Topics() {
		t := im.Topic(want.Name)
		if t == nil || t.ID != want.ID || len(t.Partitions) != len(want.Partitions) {
			return fmt.Errorf("topic %s is %+v", want.Name, t)
		}
		for i, p := range want.Partitions {
			switch {
			case !t.Partitions[i].Equal(p):
				return fmt.Errorf("%s-%d is %s, not %s", t.Name, i, describePartition(i, t.Partitions[i]), describePartition(i, p))
			case p.Leader == NoLeader && len(p.ISR) > 0:
				return fmt.Errorf("%s-%d has no leader: %s", t.Name, i, describePartition(i, p))
			case !im.continued(p).Equal(p):
				return fmt.Errorf("%s-%d is not moved: %s", t.Name, i, describePartition(i, p))
			}
		}
	}
	return nil
}
