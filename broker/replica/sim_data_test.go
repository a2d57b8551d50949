package replica_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

// fetcherLoop drives one fetcher as a goroutine of the real broker does.
type fetcherLoop struct {
	n      *node
	leader *node
	f      *replica.Fetcher
	open   bool
}

// pump asks if nothing is under way.
func (l *fetcherLoop) pump() {
	n := l.n
	if l.open || !n.settled() {
		return
	}
	req, notBefore := l.f.Next(n.w.now)
	if req == nil {
		if !notBefore.IsZero() {
			n.w.at(notBefore, n, l.pump)
		}
		return
	}
	l.open = true
	asked := l.wire(req)
	n.w.call(n, l.leader, simFetchExpiry, func(answer func(func())) {
		l.leader.serveFetch(asked, func(resp *replica.FetchResponse) {
			answer(func() { l.end(req, resp, nil) })
		})
	}, func() { l.end(req, nil, errExpired) })
}

var errExpired = errors.New("no answer in time")

func (l *fetcherLoop) end(req *replica.FetchRequest, resp *replica.FetchResponse, err error) {
	l.open = false
	l.f.Answer(req, resp, err, l.n.w.now)
	if l.n.w.broken.markBeyondLog && err == nil {
		l.forceMarks(req, resp)
	}
	l.pump()
}

// forceMarks follows the leader's high watermark beyond the own log.
func (l *fetcherLoop) forceMarks(req *replica.FetchRequest, resp *replica.FetchResponse) {
	for i := range resp.Partitions {
		for j := range req.Partitions {
			if p := req.Partitions[j].Partition; p.TopicID() == resp.Partitions[i].TopicID && l.n.parts[p.TopicID()] == p {
				p.ForceHighWatermark(resp.Partitions[i].HighWatermark)
			}
		}
	}
}

// fetchAsked is a fetch as it travels.
type fetchAsked struct {
	parts []fetchAskedPart
}

type fetchAskedPart struct {
	id       cluster.TopicID
	maxBytes int
	replica.FollowerFetch
}

func (l *fetcherLoop) wire(req *replica.FetchRequest) *fetchAsked {
	out := &fetchAsked{}
	for _, q := range req.Partitions {
		part := fetchAskedPart{q.Partition.TopicID(), q.MaxBytes, replica.FollowerFetch{
			Replica: l.n.id, BrokerEpoch: l.n.epoch, LeaderEpoch: q.LeaderEpoch,
			Offset: q.Offset, LastEpoch: q.LastEpoch, LogStart: q.LogStart,
		}}
		if l.n.w.broken.truncateToMark {
			part.LastEpoch = -1
		}
		if l.n.w.broken.noBrokerEpoch {
			part.BrokerEpoch = 1
		}
		out.parts = append(out.parts, part)
	}
	return out
}

// parkedFetch waits for records.
type parkedFetch struct {
	n      *node
	asked  *fetchAsked
	answer func(*replica.FetchResponse)
	waits  map[*replica.Wait]*replica.Partition
	over   bool
}

// serveFetch is a follower's fetch at its leader.
func (n *node) serveFetch(asked *fetchAsked, answer func(*replica.FetchResponse)) {
	resp, told := n.read(asked, true)
	if told {
		answer(resp)
		return
	}
	f := &parkedFetch{n: n, asked: asked, answer: answer, waits: map[*replica.Wait]*replica.Partition{}}
	n.w.after(simFetchWait, n, f.end)
	for _, q := range asked.parts {
		p := n.parts[q.id]
		w := &replica.Wait{Waiter: f, Mark: replica.LogEnd, Offset: q.Offset + 1}
		f.waits[w] = p
		if !p.Await(w) {
			f.Fire(w, nil)
		}
	}
}

// Fire implements replica.Waiter.
func (f *parkedFetch) Fire(*replica.Wait, error) { f.n.w.after(0, f.n, f.end) }

func (f *parkedFetch) end() {
	if f.over {
		return
	}
	f.over = true
	for w, p := range f.waits {
		p.Forget(w)
	}
	resp, _ := f.n.read(f.asked, false)
	f.answer(resp)
}

// read answers what there is; told says that there is something to tell. arrived
// is for a request that has just come, which tells how far the follower is.
func (n *node) read(asked *fetchAsked, arrived bool) (resp *replica.FetchResponse, told bool) {
	resp = &replica.FetchResponse{}
	for _, q := range asked.parts {
		out := replica.FetchedPartition{TopicID: q.id, HighWatermark: -1, LogStart: -1}
		if p := n.parts[q.id]; p == nil {
			out.Err = replica.ErrNotLeader
		} else {
			n.readPart(p, &q, arrived, &out)
		}
		told = told || out.Err != nil || out.Diverging != nil || len(out.Records) > 0
		resp.Partitions = append(resp.Partitions, out)
	}
	return resp, told
}

func (n *node) readPart(p *replica.Partition, q *fetchAskedPart, arrived bool, out *replica.FetchedPartition) {
	if arrived {
		out.Diverging, out.Err = p.FollowerFetch(q.FollowerFetch, n.w.now)
	}
	if out.Err == nil && out.Diverging == nil {
		region, err := p.ReadForFollower(q.FollowerFetch, q.maxBytes, true)
		if out.Err = err; err == nil && region.Len > 0 {
			out.Records = make([]byte, region.Len)
			_, err := region.File.ReadAt(out.Records, region.Pos)
			n.must(err)
		}
		region.Release()
	}
	if out.Err == nil || out.Diverging != nil || errors.Is(out.Err, commitlog.ErrOffsetOutOfRange) {
		out.HighWatermark, out.LogStart = p.HighWatermark(), p.Log().StartOffset()
	}
}

// client is a producer to one topic: it sends its batches in order, a few at a time,
// and each until it is acknowledged. With acks=all it is idempotent.
type client struct {
	w      *world
	topic  string
	id     cluster.TopicID
	pid    int64
	acks   int // 1, or -1 for all
	next   int32
	made   int // batches
	open   []*produced
	values []uint64
	// settled: its first batch is acknowledged.
	settled bool
	// silent: it sends nothing new.
	silent bool
}

// produced is a batch that is not acknowledged yet.
type produced struct {
	number   int
	sequence int32
	records  []simRecord
	refused  error // the last answer
}

type simRecord struct {
	key   int
	value uint64
}

const (
	simInFlight     = 3
	simProduceTimes = 400 * time.Millisecond
)

// run sends a new batch now and then.
func (c *client) run() {
	if !c.silent && (len(c.open) == 0 || c.made-c.open[0].number < c.inFlight()) {
		b := &produced{number: c.made, sequence: c.next}
		c.made++
		for range 1 + c.w.rng.IntN(3) {
			c.w.check.values++
			b.records = append(b.records, simRecord{c.w.rng.IntN(5), c.w.check.values})
			c.values = append(c.values, c.w.check.values)
		}
		c.next += int32(len(b.records))
		c.open = append(c.open, b)
		c.send(b)
	}
	c.w.after(c.w.between(10*time.Millisecond, 120*time.Millisecond), nil, c.run)
}

// send sends a batch to whom a node that it happens to ask takes for the leader.
func (c *client) send(b *produced) {
	w := c.w
	var to *node
	if n := pick(w, w.nodes); n.up && n.image != nil {
		if t := n.image.TopicByID(c.id); t != nil && t.Partitions[0].Leader > 0 {
			to = w.nodes[t.Partitions[0].Leader-1]
		}
	}
	again := func() {
		w.after(w.between(20*time.Millisecond, 100*time.Millisecond), nil, func() {
			if slices.Contains(c.open, b) {
				c.send(b)
			}
		})
	}
	if to == nil {
		again()
		return
	}
	data := c.build(b)
	w.call(nil, to, simProduceTimes, func(answer func(func())) {
		to.produce(c, b, data, func(err error) {
			answer(func() {
				if b.refused = err; err == nil {
					c.acknowledged(b)
				} else {
					again()
				}
			})
		})
	}, again)
}

func (c *client) acknowledged(b *produced) {
	c.settled = true
	c.open = slices.DeleteFunc(c.open, func(o *produced) bool { return o == b })
}

// inFlight is how many batches may be under way from the oldest that is open on:
// no more than a leader remembers of a producer. The first of an identity goes
// alone, since a leader takes any sequence of a producer that it does not know; so
// do all where records are deleted, and producers forgotten with them.
func (c *client) inFlight() int {
	if c.settled && c.w.keeps(c.id) {
		return simInFlight
	}
	return 1
}

func (c *client) build(b *produced) record.Batch {
	var builder record.Builder
	for _, r := range b.records {
		builder.Append(c.w.now.UnixMilli(), fmt.Appendf(nil, "k%d", r.key), fmt.Appendf(nil, "%d", r.value), nil)
	}
	var opt record.BuildOptions
	if c.acks == -1 {
		opt = record.BuildOptions{Idempotent: true, ProducerID: c.pid, BaseSequence: b.sequence}
	}
	out, err := builder.Build(opt, nil)
	if err != nil {
		c.w.fail("build: %v", err)
	}
	return out
}

// produceWait answers a produce with acks=all.
type produceWait struct {
	replica.Wait
	fire func(error)
}

func (p *produceWait) Fire(_ *replica.Wait, err error) { p.fire(err) }

// produce is a request at the leader.
func (n *node) produce(c *client, b *produced, data record.Batch, answer func(error)) {
	p := n.parts[c.id]
	if p == nil {
		answer(replica.ErrNotLeader)
		return
	}
	minISR := 0
	if c.acks == -1 {
		minISR = p.Config().MinInSync
	}
	batch := append(record.Batch(nil), data...) // it may come twice
	done, err := p.Append(batch, minISR, n.w.now)
	if err != nil {
		answer(err)
		return
	}
	if c.acks != -1 || n.w.broken.ackEarly {
		if c.acks == -1 {
			n.w.check.acknowledged(c, b, done.First)
		}
		answer(nil)
		return
	}
	w := &produceWait{Wait: replica.Wait{Offset: done.Last + 1, MinISR: minISR}}
	w.Waiter = w
	w.fire = func(err error) {
		if err == nil {
			n.w.check.acknowledged(c, b, done.First)
		}
		answer(err)
	}
	if armed, err := p.AwaitCommit(&w.Wait, done.Epoch); !armed {
		w.fire(err)
	}
}
