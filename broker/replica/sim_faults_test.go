package replica_test

import (
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
)

// faults are what is wrong at the moment.
type faults struct {
	lossy   bool
	cuts    map[[2]int32]bool // from, to
	noStore map[int32]bool
	frozen  int
	over    bool
}

func (f *faults) any() bool {
	return f.lossy || len(f.cuts) > 0 || len(f.noStore) > 0 || f.frozen > 0
}

// fault is one thing that goes wrong, or that an operator does.
type fault struct {
	weight int
	run    func(*world, *node)
}

func allFaults() []fault {
	return []fault{
		{12, (*world).kill},
		{12, (*world).powerCut},
		{4, (*world).powerCuts},
		{6, (*world).shutDown},
		{8, (*world).freeze},
		{8, (*world).cutLink},
		{6, (*world).isolate},
		{6, (*world).cutStore},
		{6, (*world).lose},
		{4, func(w *world, n *node) { w.store.expire(n, n.client) }},
		{6, (*world).elect},
		{4, (*world).reassign},
		{5, (*world).remake},
		{5, (*world).deleteRecords},
		{3, (*world).setThrottle},
		{2, func(w *world, _ *node) { w.pause(simRecovery + time.Second) }},
	}
}

// mischief has one fault after the other.
func (w *world) mischief(until time.Time) {
	if w.now.After(until) {
		w.heal()
		return
	}
	if wait := w.quiet.Sub(w.now); wait > 0 {
		w.after(wait, nil, func() { w.mischief(until) })
		return
	}
	list := w.menu
	total := 0
	for _, f := range list {
		total += f.weight
	}
	at := w.rng.IntN(total)
	for _, f := range list {
		if at -= f.weight; at < 0 {
			w.calm = w.now
			f.run(w, pick(w, w.nodes))
			break
		}
	}
	d := w.between(5*time.Millisecond, 600*time.Millisecond)
	if w.chance(15) {
		d = w.between(time.Second, 4*time.Second)
	}
	w.after(d, nil, func() { w.mischief(until) })
}

// mood is what else is particular to a run.
type mood struct {
	// slowISR is how long a request for other in-sync replicas may take to arrive.
	slowISR time.Duration
	// strike is how often, in percent, something happens to a leader right after
	// its partition has changed.
	strike int
	// syncs: logs are synced and checkpointed often.
	syncs bool
}

// strikeSoon has something happen to the leader of a partition that has changed.
func (w *world) strikeSoon(st cluster.Partition) {
	if st.Leader < 1 || w.faults.over || !w.chance(w.mood.strike) {
		return
	}
	n := w.nodes[st.Leader-1]
	do := pick(w, []func(*world, *node){(*world).kill, (*world).kill, (*world).powerCut, (*world).isolate, (*world).cutLink, (*world).freeze})
	w.after(w.between(0, 40*time.Millisecond), nil, func() {
		if !w.faults.over {
			w.calm = w.now
			do(w, n)
		}
	})
}

// choose makes the faults of a run some of all, with weights of its own: what
// only shows where nothing else interferes, or often, is met by some run.
func (w *world) choose() {
	for total := 0; total == 0; {
		w.menu = allFaults()
		w.mood = mood{}
		if w.chance(40) {
			w.mood.slowISR = w.between(0, 2*time.Second)
		}
		if w.chance(40) {
			w.mood.strike = w.rng.IntN(50)
		}
		w.mood.syncs = w.chance(30)
		for i := range w.menu {
			w.menu[i].weight *= w.rng.IntN(4)
			if w.chance(30) {
				w.menu[i].weight = 0
			}
			total += w.menu[i].weight
		}
	}
}

// pause has nothing go wrong for a while.
func (w *world) pause(d time.Duration) { w.quiet = w.now.Add(d) }

// heal ends all faults and starts all that is down.
func (w *world) heal() {
	w.tracef("all faults end")
	w.faults.over = true
	w.faults.lossy, w.faults.cuts = false, map[[2]int32]bool{}
	for _, n := range w.nodes {
		w.reconnect(n)
		w.restart(n, 0)
	}
	w.calm = w.now
}

// restart starts a node again after a while.
func (w *world) restart(n *node, d time.Duration) {
	life := n.life
	w.after(d, nil, func() {
		if !n.up && n.life == life {
			w.calm = w.now
			n.start()
		}
	})
}

func (w *world) kill(n *node) {
	if n.up {
		n.stop(false)
		w.restart(n, w.between(10*time.Millisecond, 5*time.Second))
	}
}

func (w *world) powerCut(n *node) {
	if !w.mayLosePower(n) {
		return
	}
	was := n.up
	for _, t := range w.check.topics {
		t.hit[n.id] = t.hit[n.id] || was || !n.clean
	}
	client := n.client
	n.losePower()
	if w.chance(40) {
		w.after(w.between(0, time.Second), nil, func() { w.store.expire(n, client) })
	}
	if was {
		w.restart(n, w.between(10*time.Millisecond, 5*time.Second))
	}
}

// powerCuts is one of several machines.
func (w *world) powerCuts(*node) {
	for _, n := range w.nodes {
		if w.chance(60) {
			w.powerCut(n)
		}
	}
}

// mayLosePower keeps to the documented limit: of those in sync, one keeps what it
// has, or the only one has had the time to sync.
func (w *world) mayLosePower(n *node) bool {
	if n.clean && !n.up {
		return true
	}
	for _, topic := range w.store.stored.Topics() {
		t, st := w.check.topics[topic.ID], topic.Partitions[0]
		for i, isr := range t.mayBeInSync(st) {
			if !slices.Contains(isr, n.id) {
				continue
			}
			spared := slices.ContainsFunc(isr, func(id int32) bool { return id != n.id && !t.hit[id] })
			alone := len(isr) == 1 && (i > 0 || w.hasSynced(n, t))
			if !spared && !alone {
				return false
			}
		}
	}
	return true
}

// hasSynced says that the only one in sync has known of it for long enough.
func (w *world) hasSynced(n *node, t *checked) bool {
	since, ok := n.aloneSince[t.id]
	known := n.up && ok && w.now.Sub(since) > 2*simFlushMax && w.now.Sub(n.frozen) > 2*simFlushMax
	return t.soleBy || known
}

// shutDown stops a node as an operator does: its leaderships go first.
func (w *world) shutDown(n *node) {
	if !n.up || n.stopping || n.image == nil || n.image.ControllerID < 1 || w.now.Before(n.frozen) {
		return
	}
	to, id, epoch := w.nodes[n.image.ControllerID-1], n.id, n.epoch
	stop := func() {
		if n.up {
			n.stop(true)
			w.restart(n, w.between(10*time.Millisecond, 3*time.Second))
		}
	}
	w.call(n, to, 2*time.Second, func(answer func(func())) {
		c := to.ctl
		if c == nil || c.image == nil {
			return
		}
		c.submit(task{decide: func(im *cluster.Image) (*cluster.Image, error) {
			if b, ok := im.Broker(id); !ok || b.Epoch != epoch {
				return nil, cluster.ErrStaleBrokerEpoch
			}
			next, _ := cluster.ShutDown(im, id)
			return next, nil
		}, done: func(*cluster.Image, error) { answer(stop) }})
	}, stop)
}

// freeze is a SIGSTOP, and a SIGCONT later.
func (w *world) freeze(n *node) {
	if !n.up || w.now.Before(n.frozen) {
		return
	}
	d := w.between(50*time.Millisecond, 6*time.Second)
	n.frozen = w.now.Add(d)
	w.faults.frozen++
	client := n.client
	w.tracef("node %d freezes for %v", n.id, d)
	if d > simSession {
		w.after(simSession, nil, func() { w.store.expire(n, client) })
	}
	w.after(d, nil, func() {
		w.faults.frozen--
		w.calm = w.now
		if n.up {
			n.watch()
		}
	})
}

func (w *world) cutLink(n *node) {
	other := pick(w, w.nodes)
	w.cutWays([][2]int32{{n.id, other.id}, {other.id, n.id}}[:1+w.rng.IntN(2)])
}

func (w *world) isolate(n *node) {
	var ways [][2]int32
	for _, other := range w.nodes {
		ways = append(ways, [2]int32{n.id, other.id}, [2]int32{other.id, n.id})
	}
	w.cutWays(ways)
	if w.chance(50) {
		w.cutStore(n)
	}
}

func (w *world) cutWays(ways [][2]int32) {
	w.tracef("cut %v", ways)
	for _, way := range ways {
		w.faults.cuts[way] = true
	}
	w.after(w.between(100*time.Millisecond, 6*time.Second), nil, func() {
		for _, way := range ways {
			delete(w.faults.cuts, way)
		}
		w.calm = w.now
	})
}

func (w *world) cutStore(n *node) {
	if w.faults.noStore[n.id] {
		return
	}
	w.tracef("node %d loses the store", n.id)
	w.faults.noStore[n.id] = true
	client := n.client
	d := w.between(100*time.Millisecond, 6*time.Second)
	if d > simSession {
		w.after(simSession, nil, func() {
			if w.faults.noStore[n.id] {
				w.store.expire(n, client)
			}
		})
	}
	w.after(d, nil, func() { w.reconnect(n) })
}

func (w *world) reconnect(n *node) {
	if w.faults.noStore[n.id] {
		delete(w.faults.noStore, n.id)
		w.calm = w.now
		if n.up {
			n.watch()
		}
	}
}

func (w *world) lose(*node) {
	if w.faults.lossy {
		return
	}
	w.tracef("the network is bad")
	w.faults.lossy = true
	w.after(w.between(500*time.Millisecond, 3*time.Second), nil, func() {
		w.faults.lossy = false
		w.calm = w.now.Add(2 * time.Second) // what is late is still on its way
	})
}

// office is the controller, if one is there and at work.
func (w *world) office() *controller {
	if n := w.store.controller; n != nil && n.up && n.ctl != nil && n.ctl.image != nil {
		return n.ctl
	}
	return nil
}

// elect gives the preferred replica the lead again, or another one in sync.
func (w *world) elect(*node) {
	c := w.office()
	if c == nil {
		return
	}
	c.submit(task{decide: func(im *cluster.Image) (*cluster.Image, error) {
		return cluster.BalanceLeaders(im, 0), nil
	}})
}

// reassign moves a partition to other nodes.
func (w *world) reassign(*node) {
	c, topics := w.office(), w.store.stored.Topics()
	if c == nil || len(topics) == 0 || len(w.nodes) == 3 && w.chance(70) {
		return
	}
	t := pick(w, topics)
	target := w.replicas()
	c.submit(task{decide: func(im *cluster.Image) (*cluster.Image, error) {
		tp := cluster.TopicPartition{Topic: t.Name}
		if w.chance(20) {
			return cluster.CancelReassignment(im, tp)
		}
		return cluster.StartReassignment(im, tp, target)
	}})
}

// replicas is a random choice of nodes.
func (w *world) replicas() []int32 {
	ids := w.ids()
	w.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids[:min(len(ids), 2+w.rng.IntN(2))]
}

func (w *world) ids() []int32 {
	ids := make([]int32, len(w.nodes))
	for i := range ids {
		ids[i] = int32(i + 1)
	}
	return ids
}

// remake deletes a topic and makes it again, or makes one.
func (w *world) remake(*node) {
	c := w.office()
	if c == nil {
		return
	}
	const name = "temp"
	if w.store.stored.Topic(name) != nil {
		c.deleteTopic(name)
	}
	if w.chance(80) {
		w.newTopic(c, name, nil)
	}
}

// deleteRecords deletes up to somewhere below the high watermark.
func (w *world) deleteRecords(n *node) {
	for _, t := range w.store.stored.Topics() {
		p := n.parts[t.ID]
		if !n.up || w.now.Before(n.frozen) || p == nil || p.Err() != nil || w.topicConfig(t.ID)["cleanup.policy"] != "delete" {
			continue
		}
		start, hw := p.Log().StartOffset(), p.HighWatermark()
		n.must(p.Log().SetStartOffset(start + w.rng.Int64N(hw-start+1)))
	}
}

func (w *world) setThrottle(n *node) {
	if !n.up {
		return
	}
	throttle := n.throttle
	throttle.SetRate(int64(100 + w.rng.IntN(5000)))
	w.after(2*time.Second, nil, func() { throttle.SetRate(0) })
}
