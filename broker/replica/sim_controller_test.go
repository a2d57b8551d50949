package replica_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
)

// store is the cluster store, with what the simulation knows of its content.
type store struct {
	w      *world
	memory *cluster.Memory
	// stored is what the state nodes say, as an image without brokers.
	stored *cluster.Image
	// registered are the brokers by id as they registered, and told what they
	// have told of their last stop that no controller has decided on.
	registered map[int32]registration
	told       map[int32]registration
	controller *node // who holds the office
	officeLife int
	epoch      int32
	watchers   []func()
}

type registration struct {
	epoch         int64
	boot          int
	unclean, lost bool
}

// undecided says that there is something that no controller has decided on.
func (r registration) undecided() bool { return r.unclean || r.lost }

func newStore(w *world) *store {
	s := &store{w: w, memory: cluster.NewMemory(), registered: map[int32]registration{}, told: map[int32]registration{}}
	s.stored = cluster.NewImage("sim", nil)
	var ops []cluster.Op
	for _, path := range []string{"/brokers", "/brokers/ids", "/brokers/topics", "/config", "/config/topics", "/admin", "/admin/delete_topics"} {
		ops = append(ops, cluster.Create(path, nil))
	}
	ops = append(ops, cluster.Create("/controller_epoch", []byte("0")))
	if err := s.memory.Open().Txn(context.Background(), ops...); err != nil {
		w.fail("prepare the store: %v", err)
	}
	return s
}

// changed tells those who watch the members and the office, after a while each.
func (s *store) changed() {
	for _, fn := range s.watchers {
		fn()
	}
}

// expire ends a session of a node: its registration and its office go.
func (s *store) expire(n *node, client *cluster.MemoryClient) {
	if n.client != client || client == nil {
		return // it has had another one since
	}
	s.w.tracef("session of %d expires", n.id)
	n.client = nil
	if err := client.Close(); err != nil {
		s.w.fail("close a session: %v", err)
	}
	delete(s.registered, n.id)
	if s.controller == n {
		s.controller = nil
	}
	s.changed()
}

// reach does something at the store for a node, after the way there, and gives
// the outcome back after the way back. Without a way, or when it takes too long,
// the outcome is ErrUncertain.
func (s *store) reach(n *node, do func(*cluster.MemoryClient) error, done func(error)) {
	w, open := s.w, true
	finish := func(err error) {
		if open {
			open = false
			done(err)
		}
	}
	w.after(time.Second, n, func() { finish(cluster.ErrUncertain) })
	client := n.client
	// The store serves it even if the node is dead by then.
	w.after(w.between(time.Millisecond, 6*time.Millisecond), nil, func() {
		if w.faults.noStore[n.id] {
			return
		}
		err := cluster.ErrSessionEnded
		if client != nil && n.client == client {
			err = do(client)
		}
		w.after(w.between(time.Millisecond, 6*time.Millisecond), n, func() {
			if !w.faults.noStore[n.id] {
				finish(err)
			}
		})
	})
}

// controller is a reign of the controller on one node.
type controller struct {
	w       *world
	n       *node
	epoch   int32
	version int32 // of /controller_epoch
	image   *cluster.Image
	tasks   []task
	busy    bool
	left    bool
	seq     int64
	pushers map[int32]*pusher
}

// task is one decision.
type task struct {
	decide func(*cluster.Image) (*cluster.Image, error)
	// ops are written beside what the decision changes.
	ops  func() []cluster.Op
	done func(*cluster.Image, error)
	// byLeader: a partition's leader asks.
	byLeader bool
}

// stand has a node try for the office if that is vacant.
func (n *node) stand() {
	s, w := n.w.store, n.w
	if s.controller == n && s.officeLife == n.life && n.ctl == nil && n.client != nil {
		n.reign(s.epoch, s.epoch) // it had won, and the answer was lost
		return
	}
	if s.controller != nil || n.client == nil {
		return
	}
	var epoch, version int32
	s.reach(n, func(c *cluster.MemoryClient) error {
		ctx := context.Background()
		data, stat, err := c.Get(ctx, "/controller_epoch")
		if err != nil {
			return err
		}
		last, err := strconv.Atoi(string(data))
		if err != nil {
			return err
		}
		session, err := c.Session(ctx)
		if err != nil {
			return err
		}
		epoch, version = int32(last)+1, stat.Version+1
		err = c.Txn(ctx,
			cluster.CreateEphemeral("/controller", []byte(strconv.Itoa(int(n.id)))).In(session),
			cluster.Set("/controller_epoch", []byte(strconv.Itoa(int(epoch))), stat.Version))
		if err == nil {
			s.controller, s.officeLife, s.epoch = n, n.life, epoch
			w.tracef("controller %d in epoch %d", n.id, epoch)
		}
		return err
	}, func(err error) {
		switch {
		case err == nil:
			n.reign(epoch, version)
		case s.controller == nil || s.controller == n:
			w.after(300*time.Millisecond, n, n.stand)
		}
	})
}

func (n *node) reign(epoch, version int32) {
	if n.ctl != nil {
		n.ctl.leave()
	}
	c := &controller{w: n.w, n: n, epoch: epoch, version: version, pushers: map[int32]*pusher{}}
	n.ctl = c
	c.busy = true
	c.w.store.reach(n, func(client *cluster.MemoryClient) error {
		c.image = c.load(client)
		return nil
	}, func(err error) {
		if c.left {
			return
		}
		if err != nil {
			c.resign()
			return
		}
		c.busy = false
		c.membersChanged()
	})
}

// load reads the states, and takes as members only those that an earlier
// controller has decided on: the others come.
func (c *controller) load(client *cluster.MemoryClient) *cluster.Image {
	im := c.w.store.read(client)
	var brokers []cluster.Broker
	for _, id := range c.w.ids() {
		if r, ok := c.w.store.registered[id]; ok && !c.w.store.told[id].undecided() {
			brokers = append(brokers, cluster.Broker{ID: id, Epoch: r.epoch, Clean: true})
		}
	}
	return im.WithBrokers(brokers, c.n.id, c.epoch)
}

// read reads what the nodes say, and checks that it is what was decided.
func (s *store) read(client *cluster.MemoryClient) *cluster.Image {
	for _, t := range s.stored.Topics() {
		for i, p := range t.Partitions {
			data, stat, err := client.Get(context.Background(), fmt.Sprintf("/brokers/topics/%s/partitions/%d/state", t.Name, i))
			if err != nil {
				s.w.fail("state of %s-%d: %v", t.Name, i, err)
				continue
			}
			var n struct {
				Leader      int32   `json:"leader"`
				LeaderEpoch int32   `json:"leader_epoch"`
				ISR         []int32 `json:"isr"`
			}
			if err := json.Unmarshal(data, &n); err != nil {
				s.w.fail("state of %s-%d: %v", t.Name, i, err)
			}
			if n.Leader != p.Leader || n.LeaderEpoch != p.LeaderEpoch || !slices.Equal(n.ISR, p.ISR) || stat.Version != p.PartitionEpoch {
				s.w.fail("state of %s-%d is %s in version %d, and %+v was decided", t.Name, i, data, stat.Version, p)
			}
		}
	}
	return s.stored
}

// membersChanged looks at who is registered.
func (c *controller) membersChanged() {
	var brokers []cluster.Broker
	lost := map[int32]bool{}
	c.submit(task{decide: func(im *cluster.Image) (*cluster.Image, error) {
		for _, id := range c.w.ids() {
			if r, ok := c.w.store.registered[id]; ok {
				brokers = append(brokers, cluster.Broker{ID: id, Epoch: r.epoch, Clean: !r.unclean, Lost: r.lost})
				lost[id] = r.lost && !c.w.broken.lostMayLead
			}
		}
		return cluster.WithLive(im, brokers, func(id int32) bool { return lost[id] }, c.unclean), nil
	}})
}

func (c *controller) unclean(string) bool { return c.w.broken.uncleanElection }

func (c *controller) submit(t task) {
	c.tasks = append(c.tasks, t)
	c.next()
}

// next decides on the next task, writes the decision, and publishes it.
func (c *controller) next() {
	for !c.busy && !c.left && len(c.tasks) > 0 {
		t := c.tasks[0]
		c.tasks = c.tasks[1:]
		im, err := t.decide(c.image)
		var ops []cluster.Op
		if err == nil {
			ops = cluster.StateOps(c.image, im, c.epoch)
			if t.ops != nil {
				ops = append(ops, t.ops()...)
			}
		}
		if len(ops) == 0 {
			if err == nil {
				c.publish(im)
			}
			t.answer(c.image, err)
			continue
		}
		c.busy = true
		c.write(im, ops, t)
	}
}

func (t task) answer(im *cluster.Image, err error) {
	if t.done != nil {
		t.done(im, err)
	}
}

func (c *controller) write(im *cluster.Image, ops []cluster.Op, t task) {
	s := c.w.store
	s.reach(c.n, func(client *cluster.MemoryClient) error {
		err := client.Txn(context.Background(), append(ops, cluster.Check("/controller_epoch", c.version))...)
		if err == nil {
			s.store(im, t.byLeader)
		}
		return err
	}, func(err error) {
		switch {
		case c.left:
		case errors.Is(err, cluster.ErrUncertain):
			// It may be written or not, and whoever reads it all again knows.
			c.resign()
		case err != nil:
			c.resign()
		default:
			c.busy = false
			c.publish(im)
			t.answer(im, nil)
			c.next()
		}
	})
}

// store notes what has been written.
func (s *store) store(im *cluster.Image, byLeader bool) {
	old := s.stored
	s.stored = im.WithBrokers(nil, -1, 0)
	for _, name := range []string{"compacted", "deleted", "plain", "temp"} {
		if was, is := old.Topic(name), s.stored.Topic(name); was != is {
			if is != nil && was != nil && was.ID != is.ID {
				was = nil
			}
			if is != nil {
				s.w.check.decided(was, is, byLeader)
			}
		}
	}
}

// resign gives the office up, and stands for it again like all others.
func (c *controller) resign() {
	c.leave()
	s := c.w.store
	c.w.tracef("controller %d of epoch %d resigns", c.n.id, c.epoch)
	s.reach(c.n, func(client *cluster.MemoryClient) error {
		if s.controller == c.n && s.epoch == c.epoch {
			s.controller = nil
			if err := client.Txn(context.Background(), cluster.Delete("/controller", cluster.AnyVersion)); err != nil {
				return err
			}
			s.changed()
		}
		return nil
	}, func(err error) {
		if err != nil && s.controller == c.n && s.epoch == c.epoch {
			c.w.after(100*time.Millisecond, c.n, c.resign)
		}
	})
}

func (c *controller) leave() {
	c.left = true
	c.tasks = nil
	if c.n.ctl == c {
		c.n.ctl = nil
	}
}

// publish makes an image the decided one and pushes it, and ends reassignments
// whose replicas are all in sync.
func (c *controller) publish(im *cluster.Image) {
	c.image = im
	for _, t := range im.Topics() {
		tp := cluster.TopicPartition{Topic: t.Name}
		if cluster.ContinueReassignment(im, tp) != im {
			c.tasks = append(c.tasks, task{decide: func(im *cluster.Image) (*cluster.Image, error) {
				return cluster.ContinueReassignment(im, tp), nil
			}})
		}
	}
	for _, b := range im.Brokers {
		p := c.pushers[b.ID]
		if p == nil || p.to.Epoch != b.Epoch {
			p = &pusher{c: c, to: b}
			c.pushers[b.ID] = p
		}
		p.wake()
	}
	for id := range c.pushers {
		if _, ok := im.Broker(id); !ok {
			delete(c.pushers, id)
		}
	}
}

// pusher brings one broker the newest image.
type pusher struct {
	c     *controller
	to    cluster.Broker
	acked *cluster.Image // nil: the next update is a full one
	open  bool
}

func (p *pusher) wake() {
	c := p.c
	if p.open || c.left || c.pushers[p.to.ID] != p || p.acked == c.image {
		return
	}
	p.open = true
	im, u := c.image, cluster.Diff(p.acked, c.image)
	c.seq++
	u.Seq = c.seq
	to := c.w.nodes[p.to.ID-1]
	again := func(acked *cluster.Image) {
		p.open, p.acked = false, acked
		p.wake()
	}
	c.w.call(c.n, to, simPushExpiry, func(answer func(func())) {
		err := to.receive(p.to.Epoch, u)
		answer(func() {
			switch {
			case err == nil:
				again(im)
			case errors.Is(err, cluster.ErrStaleUpdate):
				again(nil)
			case errors.Is(err, cluster.ErrStaleControllerEpoch):
				c.leave()
			default:
				p.open = false
				c.w.after(100*time.Millisecond, c.n, p.wake)
			}
		})
	}, func() { again(p.acked) })
}

// alterPartition is a leader's request to whom it takes for the controller.
func (n *node) alterPartition(from int32, brokerEpoch int64, ask cluster.AlterPartition, answer func(cluster.Partition, error)) {
	c := n.ctl
	if c == nil || c.image == nil {
		answer(cluster.Partition{}, cluster.ErrNotController)
		return
	}
	c.submit(task{byLeader: true, decide: func(im *cluster.Image) (*cluster.Image, error) {
		if b, ok := im.Broker(from); !ok || b.Epoch != brokerEpoch && !c.w.broken.noBrokerEpoch {
			return nil, cluster.ErrStaleBrokerEpoch
		}
		if c.w.broken.noBrokerEpoch {
			ask = withoutEpochs(ask)
		}
		return cluster.AlterISR(im, ask)
	}, done: func(im *cluster.Image, err error) {
		st, _ := im.Partition(ask.Topic, ask.Partition)
		answer(st, err)
	}})
}

func withoutEpochs(ask cluster.AlterPartition) cluster.AlterPartition {
	ask.ISR = slices.Clone(ask.ISR)
	for i := range ask.ISR {
		ask.ISR[i].Epoch = cluster.UnknownBrokerEpoch
	}
	return ask
}

// createTopic makes a topic with one partition on some nodes.
func (c *controller) createTopic(name string, id cluster.TopicID, replicas []int32, config map[string]string) {
	c.submit(task{decide: func(im *cluster.Image) (*cluster.Image, error) {
		if im.Topic(name) != nil {
			return im, nil
		}
		var isr []int32
		for _, id := range replicas {
			if _, ok := im.Broker(id); ok {
				isr = append(isr, id)
			}
		}
		if len(isr) == 0 {
			return im, nil
		}
		t := &cluster.Topic{Name: name, ID: id, Config: config, Partitions: []cluster.Partition{{Leader: isr[0], Replicas: replicas, ISR: isr}}}
		return im.With(t), nil
	}})
}

func (c *controller) deleteTopic(name string) {
	gone := false
	c.submit(task{decide: func(im *cluster.Image) (*cluster.Image, error) {
		gone = im.Topic(name) != nil
		return im.Without(name), nil
	}, ops: func() []cluster.Op {
		if !gone {
			return nil
		}
		at := "/brokers/topics/" + name
		var ops []cluster.Op
		for _, path := range []string{at + "/partitions/0/state", at + "/partitions/0", at + "/partitions", at, "/config/topics/" + name} {
			ops = append(ops, cluster.Delete(path, cluster.AnyVersion))
		}
		return ops
	}})
}
