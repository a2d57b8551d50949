package replica_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

// checker knows what must hold, and looks after every step.
type checker struct {
	w      *world
	values uint64 // handed out
	topics map[cluster.TopicID]*checked
}

// checked is what is known of one partition.
type checked struct {
	id     cluster.TopicID
	name   string
	config map[string]string
	// committed are the records by offset that some replica's high watermark has
	// passed: all replicas must have the same there.
	committed []checkedRecord
	// acked are the values of acks=all by offset.
	acked map[int64]uint64
	// keys are the newest committed offsets by key.
	keys map[string]int64
	// leaders are the nodes that led, by epoch.
	leaders map[int32]int32
	// marks are what the replicas were seen with.
	marks map[markOf]*mark
	// highest is the largest high watermark of a leader, by epoch.
	highest map[int32]int64
	// deleteTo is up to where records may be gone from the start.
	deleteTo int64
	// hit are the nodes that lost power and have not been found in sync since.
	hit map[int32]bool
	// asks are the changes of those in sync that were asked for, since they may be
	// written as long as the partition epoch is theirs.
	asks []cluster.AlterPartition
	// soleBy says that the only one in sync has itself asked to be so: then it has
	// synced before.
	soleBy bool
}

type checkedRecord struct {
	value uint64 // 0: not known
	epoch int32
	key   string
}

type markOf struct {
	node int32
	life int
}

// mark is up to where a replica was checked, and its last high watermark as a
// leader.
type mark struct {
	to    int64
	epoch int32
	led   int64
}

func (c *checker) made(id cluster.TopicID, name string, config map[string]string) {
	c.topics[id] = &checked{
		id: id, name: name, config: config,
		acked: map[int64]uint64{}, keys: map[string]int64{}, leaders: map[int32]int32{},
		marks: map[markOf]*mark{}, highest: map[int32]int64{}, hit: map[int32]bool{},
	}
}

func (w *world) topicConfig(id cluster.TopicID) map[string]string {
	if t := w.check.topics[id]; t != nil {
		return t.config
	}
	return nil
}

// keeps says that no record of a topic is ever deleted.
func (w *world) keeps(id cluster.TopicID) bool {
	policy := w.topicConfig(id)["cleanup.policy"]
	return policy == ""
}

// decided checks what a controller has written.
func (c *checker) decided(was, is *cluster.Topic, byLeader bool) {
	t, p := c.topics[is.ID], is.Partitions[0]
	c.w.tracef("%s: leader %d in epoch %d, ISR %v in epoch %d, replicas %v", is.Name, p.Leader, p.LeaderEpoch, p.ISR, p.PartitionEpoch, p.Replicas)
	if p.Leader != cluster.NoLeader && !slices.Contains(p.ISR, p.Leader) {
		c.w.fail("%s: leader %d is not among the in-sync replicas %v", is.Name, p.Leader, p.ISR)
	}
	var before cluster.Partition
	if was != nil {
		before = was.Partitions[0]
	}
	c.w.strikeSoon(p)
	t.soleBy = len(p.ISR) == 1 && byLeader
	t.asks = slices.DeleteFunc(t.asks, func(a cluster.AlterPartition) bool { return a.PartitionEpoch < p.PartitionEpoch })
	for id := range t.hit {
		joined := !slices.Contains(before.ISR, id) || len(p.ISR) == 1
		if slices.Contains(p.ISR, id) && joined && c.w.store.told[id].boot == c.w.nodes[id-1].boot {
			delete(t.hit, id)
		}
	}
}

// mayBeInSync are those in sync, and those that may be without anybody deciding
// anew: what leaders have asked for is on its way.
func (t *checked) mayBeInSync(st cluster.Partition) [][]int32 {
	out := [][]int32{st.ISR}
	for _, ask := range t.asks {
		if ask.PartitionEpoch != st.PartitionEpoch || ask.LeaderEpoch != st.LeaderEpoch {
			continue
		}
		var isr []int32
		for _, r := range ask.ISR {
			isr = append(isr, r.ID)
		}
		out = append(out, isr)
	}
	return out
}

// acknowledged notes a batch that a leader has acknowledged with acks=all.
func (c *checker) acknowledged(cl *client, b *produced, first int64) {
	t := c.topics[cl.id]
	for i, r := range b.records {
		offset := first + int64(i)
		if old := t.acked[offset]; old != 0 && old != r.value {
			c.w.fail("%s: offset %d was acknowledged for %d and for %d", t.name, offset, old, r.value)
		}
		t.acked[offset] = r.value
	}
}

// leads is called before a node takes the lead.
func (c *checker) leads(n *node, p *replica.Partition, st cluster.Partition) {
	t := c.topics[p.TopicID()]
	if by, ok := t.leaders[st.LeaderEpoch]; ok && by != n.id {
		c.w.fail("%s: nodes %d and %d lead in epoch %d", t.name, by, n.id, st.LeaderEpoch)
	}
	t.leaders[st.LeaderEpoch] = n.id
}

// led is called after it: all that was acknowledged must be there.
func (c *checker) led(n *node, p *replica.Partition, st cluster.Partition) {
	if now := c.stored(p.TopicID()); now == nil || now.LeaderEpoch != st.LeaderEpoch {
		return // it is a leader of the past
	}
	c.hasAcknowledged(n, p)
}

func (c *checker) hasAcknowledged(n *node, p *replica.Partition) {
	t := c.topics[p.TopicID()]
	have := c.read(n, p, p.Log().StartOffset(), p.Log().EndOffset())
	for _, offset := range slices.Sorted(maps.Keys(t.acked)) {
		value := t.acked[offset]
		got, ok := have[offset]
		switch {
		case offset < p.Log().StartOffset():
		case ok && got.value == value:
		case !ok && t.compacted(offset):
		default:
			c.w.fail("%s: node %d leads without the acknowledged record %d at offset %d (it has %v, log %d to %d)",
				t.name, n.id, value, offset, got.value, p.Log().StartOffset(), p.Log().EndOffset())
			return
		}
	}
}

// compacted says whether a record may be gone because a newer one of its key is
// committed.
func (t *checked) compacted(offset int64) bool {
	if t.config["cleanup.policy"] != "compact" || offset >= int64(len(t.committed)) {
		return false
	}
	return t.keys[t.committed[offset].key] > offset
}

func (c *checker) stored(id cluster.TopicID) *cluster.Partition {
	if t := c.w.store.stored.TopicByID(id); t != nil {
		return &t.Partitions[0]
	}
	return nil
}

// read reads the records of a range from a replica.
func (c *checker) read(n *node, p *replica.Partition, from, to int64) map[int64]checkedRecord {
	out := map[int64]checkedRecord{}
	for at := from; at < to; {
		region, err := p.Log().Read(at, 1<<20, to, true)
		if err != nil {
			c.w.fail("node %d: %v", n.id, err)
			return out
		}
		if region.Len == 0 {
			break
		}
		buf := make([]byte, region.Len)
		_, err = region.File.ReadAt(buf, region.Pos)
		region.Release()
		if err != nil {
			c.w.fail("node %d: %v", n.id, err)
			return out
		}
		for len(buf) > 0 {
			b, rest, err := record.Next(buf)
			if err != nil {
				c.w.fail("node %d: %v", n.id, err)
				return out
			}
			c.records(n, b, out)
			at, buf = b.LastOffset()+1, rest
		}
	}
	return out
}

func (c *checker) records(n *node, b record.Batch, out map[int64]checkedRecord) {
	err := b.Each(nil, func(r *record.Record) error {
		value, err := strconv.ParseUint(string(r.Value), 10, 64)
		out[r.Offset] = checkedRecord{value, b.LeaderEpoch(), string(r.Key)}
		return err
	})
	if err != nil {
		c.w.fail("node %d: %v", n.id, err)
	}
}

// step looks at what a step of a node can have changed, or one of the world.
func (c *checker) step(of *node) {
	for _, n := range c.w.nodes {
		if n.up && (of == nil || of == n) {
			n.each(func(p *replica.Partition) { c.replica(n, p) })
		}
	}
	for _, t := range c.w.store.stored.Topics() {
		c.leader(t)
	}
}

// replica checks one replica's marks, and what they have passed since.
func (c *checker) replica(n *node, p *replica.Partition) {
	t := c.topics[p.TopicID()]
	key := markOf{n.id, n.life}
	m := t.marks[key]
	if m == nil {
		m = &mark{epoch: -1}
		t.marks[key] = m
	}
	hw, start, end := p.HighWatermark(), p.Log().StartOffset(), p.Log().EndOffset()
	if hw > end || hw < start {
		c.w.fail("%s: node %d has high watermark %d and log %d to %d", t.name, n.id, hw, start, end)
		return
	}
	if t.config["cleanup.policy"] != "delete" && start > t.deleteTo {
		c.w.fail("%s: node %d starts at %d, and records were deleted up to %d", t.name, n.id, start, t.deleteTo)
	}
	c.leading(n, p, t, m)
	m.to = min(max(m.to, start), hw)
	if hw > m.to {
		c.passed(n, p, t, m.to, hw)
		m.to = hw
	}
}

// leading checks a leader's high watermark.
func (c *checker) leading(n *node, p *replica.Partition, t *checked, m *mark) {
	epoch, start, ok := p.Leads()
	if !ok {
		m.epoch = -1
		return
	}
	hw := p.HighWatermark()
	if m.epoch == epoch && hw < m.led {
		c.w.fail("%s: the high watermark of leader %d fell from %d to %d in epoch %d", t.name, n.id, m.led, hw, epoch)
	}
	if m.epoch == epoch && m.led == hw {
		return
	}
	m.epoch, m.led = epoch, hw
	listable, err := p.ListableEnd()
	if (err == nil) != (hw >= start) || err == nil && listable != hw {
		c.w.fail("%s: leader %d lists %d, %v with high watermark %d and its epoch's start %d", t.name, n.id, listable, err, hw, start)
	}
	if now := c.stored(t.id); now == nil || now.LeaderEpoch != epoch || err != nil {
		return
	}
	for e, h := range t.highest {
		if e < epoch && h > listable {
			c.w.fail("%s: leader %d of epoch %d lists %d, and %d was listed in epoch %d", t.name, n.id, epoch, listable, h, e)
		}
	}
	t.highest[epoch] = max(t.highest[epoch], listable)
}

// passed compares what a high watermark has passed with what others had there.
func (c *checker) passed(n *node, p *replica.Partition, t *checked, from, to int64) {
	have := c.read(n, p, from, to)
	if need := int(to) - len(t.committed); need > 0 {
		t.committed = append(t.committed, make([]checkedRecord, need)...)
	}
	for offset := from; offset < to; offset++ {
		got, ok := have[offset]
		switch known := t.committed[offset]; {
		case !ok: // compacted, or below the start within a batch
		case known.value == 0:
			t.committed[offset] = got
			t.keys[got.key] = max(t.keys[got.key], offset)
		case known != got:
			c.w.fail("%s: at offset %d node %d has %d of epoch %d below its high watermark %d, and another replica had %d of epoch %d",
				t.name, offset, n.id, got.value, got.epoch, to, known.value, known.epoch)
			return
		}
	}
}

// leader checks that a partition has a leader if one of those in sync is there and
// nothing has been wrong for a while.
func (c *checker) leader(t *cluster.Topic) {
	w, st := c.w, &t.Partitions[0]
	if w.now.Sub(w.calm) < simRecovery || w.faults.any() {
		return
	}
	if st.Leader != cluster.NoLeader {
		if n := w.nodes[st.Leader-1]; n.up && n.parts[t.ID] != nil && n.parts[t.ID].Check(st.LeaderEpoch) == nil {
			return
		}
	}
	for _, id := range st.ISR {
		if n := w.nodes[id-1]; n.up && !n.stopping {
			w.fail("%s: node %d is in sync and alive, and the leader is %d for %v", t.Name, id, st.Leader, w.now.Sub(w.calm))
		}
	}
}

// removed is for a replica that is no more.
func (c *checker) removed(n *node, p *replica.Partition) {
	delete(c.topics[p.TopicID()].marks, markOf{n.id, n.life})
}

// settled says what is missing for everything to be as if nothing had happened.
func (c *checker) settled() error {
	for _, n := range c.w.nodes {
		if !n.up {
			return fmt.Errorf("node %d is down", n.id)
		}
	}
	for _, cl := range c.w.clients {
		if len(cl.open) > 0 && c.w.store.stored.TopicByID(cl.id) != nil {
			return fmt.Errorf("%d batches of the producer to %s are not acknowledged: %v", len(cl.open), cl.topic, cl.open[0].refused)
		}
	}
	for _, t := range c.w.store.stored.Topics() {
		st := t.Partitions[0]
		if len(st.ISR) < len(st.Replicas) || st.Reassigning() {
			return fmt.Errorf("%s has replicas %v and in sync %v", t.Name, st.Replicas, st.ISR)
		}
		lead := c.w.nodes[st.Leader-1].parts[t.ID]
		for _, id := range st.Replicas {
			p := c.w.nodes[id-1].parts[t.ID]
			if p == nil || p.HighWatermark() != lead.Log().EndOffset() || p.Log().EndOffset() != lead.Log().EndOffset() {
				return fmt.Errorf("%s: node %d has not caught up", t.Name, id)
			}
		}
	}
	return nil
}

// final compares all replicas once everything has settled.
func (c *checker) final() {
	for _, t := range c.w.store.stored.Topics() {
		for _, id := range t.Partitions[0].Replicas {
			n := c.w.nodes[id-1]
			p := n.parts[t.ID]
			c.hasAcknowledged(n, p)
			c.passed(n, p, c.topics[t.ID], p.Log().StartOffset(), p.Log().EndOffset())
			if c.w.keeps(t.ID) {
				c.exactlyOnce(n, p)
			}
		}
	}
}

// exactlyOnce checks that what an idempotent producer sent is there in order and once.
func (c *checker) exactlyOnce(n *node, p *replica.Partition) {
	have := c.read(n, p, 0, p.Log().EndOffset())
	for _, cl := range c.w.clients {
		if cl.id != p.TopicID() || cl.acks != -1 {
			continue
		}
		var got []uint64
		for _, offset := range slices.Sorted(maps.Keys(have)) {
			if _, ok := slices.BinarySearch(cl.values, have[offset].value); ok {
				got = append(got, have[offset].value)
			}
		}
		if !slices.Equal(got, cl.values) {
			c.w.fail("%s: node %d has %v of producer %d, which sent %v", p.Topic(), n.id, got, cl.pid, cl.values)
		}
	}
}
