package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	partitions      = 4
	producers       = 2                     // each writes to all partitions
	produceInterval = 20 * time.Millisecond // of a producer, to a partition
	unackedMax      = 64                    // records of a producer for a partition
	groupMembers    = 2
	groupPollMax    = 500 // records between two commits

	// Clients notice a hung broker by these, well within what a fault may last.
	requestTimeout = time.Second
	dialTimeout    = time.Second
	metadataMinAge = 50 * time.Millisecond
	retryBackoff   = 20 * time.Millisecond
)

// workload is the clients of one topic: producers, one reader of everything and
// a consumer group.
type workload struct {
	*history
	seeds  []string
	cancel context.CancelFunc
	wg     sync.WaitGroup
	stop   chan struct{} // closed: producers send nothing more
	sent   sync.WaitGroup
	ctx    context.Context
}

func clientOptions(seeds []string, more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.DialTimeout(dialTimeout),
		kgo.RequestTimeoutOverhead(requestTimeout),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.AlwaysRetryEOF(), // a broker may die between a request and its answer
		kgo.RetryBackoffFn(func(int) time.Duration { return retryBackoff }),
	}, more...)
}

// startWorkload runs clients on an existing topic until end is called.
func startWorkload(t *testing.T, seeds []string, topic string) *workload {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &workload{history: newHistory(topic, partitions), seeds: seeds, cancel: cancel, stop: make(chan struct{}), ctx: ctx}
	for p := range producers {
		w.produce(t, p)
	}
	w.read(t)
	for m := range groupMembers {
		w.member(t, fmt.Sprintf("member-%d", m))
	}
	t.Cleanup(w.end)
	return w
}

// end stops all clients, whatever they have under way. It may be called twice.
func (w *workload) end() {
	w.cancel()
	w.wg.Wait()
}

// drain stops the producers and waits until all that they sent is acknowledged.
func (w *workload) drain(limit time.Duration) error {
	close(w.stop)
	done := make(chan struct{})
	go func() {
		w.sent.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("topic %s: records are unacknowledged %s after the last was sent", w.topic, limit)
	}
}

func (w *workload) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(clientOptions(w.seeds, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// produce starts an idempotent producer that never gives a record up.
func (w *workload) produce(t *testing.T, producer int) {
	c := w.client(t,
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
		kgo.ProduceRequestTimeout(2*requestTimeout),
		kgo.UnknownTopicRetries(-1),
		kgo.StopProducerOnDataLossDetected())
	var all sync.WaitGroup
	for p := range partitions {
		all.Add(1)
		w.sent.Add(1)
		go func() {
			defer all.Done()
			w.produceTo(c, producer, p)
		}()
	}
	w.wg.Go(func() {
		all.Wait()
		<-w.ctx.Done()
		c.Close()
	})
}

func (w *workload) produceTo(c *kgo.Client, producer, partition int) {
	defer w.sent.Done()
	unacked := make(chan struct{}, unackedMax)
	tick := time.NewTicker(produceInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.stop:
			w.awaitAll(unacked)
			return
		case <-w.ctx.Done():
			return
		}
		select {
		case unacked <- struct{}{}:
			w.produceOne(c, producer, partition, func() { <-unacked })
		default: // the partition does not take records now
		}
	}
}

// awaitAll waits until nothing is unacknowledged.
func (w *workload) awaitAll(unacked chan struct{}) {
	for range cap(unacked) {
		select {
		case unacked <- struct{}{}:
		case <-w.ctx.Done():
			return
		}
	}
}

func (w *workload) produceOne(c *kgo.Client, producer, partition int, done func()) {
	v, sent := w.send(partition, producer), time.Now()
	record := &kgo.Record{Topic: w.topic, Partition: int32(partition), Value: []byte(v.String())}
	c.Produce(w.ctx, record, func(r *kgo.Record, err error) {
		defer done()
		switch {
		case err == nil:
			w.acknowledged(partition, ack{entry{r.Offset, v}, sent, time.Now()})
		case w.ctx.Err() == nil:
			w.complain("producer %d: record %s of partition %d was given up: %v", producer, v, partition, err)
		}
	})
}

// read starts a consumer that follows all partitions from their start.
func (w *workload) read(t *testing.T) {
	c := w.client(t, kgo.ConsumeTopics(w.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(requestTimeout/2))
	w.wg.Go(func() {
		defer c.Close()
		for asked := time.Now(); ; asked = time.Now() {
			fetches := c.PollFetches(w.ctx)
			if w.ctx.Err() != nil {
				return
			}
			w.note("the reader", asked, fetches)
		}
	})
}

// note keeps what a consumer got, and complains of lost data that the client
// itself noticed.
func (w *workload) note(who string, asked time.Time, fetches kgo.Fetches) {
	at := time.Now()
	fetches.EachError(func(_ string, partition int32, err error) {
		var lost *kgo.ErrDataLoss
		if errors.As(err, &lost) || errors.Is(err, kerr.OffsetOutOfRange) {
			w.complain("%s: partition %d: %v", who, partition, err)
		}
	})
	fetches.EachRecord(func(r *kgo.Record) {
		v, err := parseValue(r.Value)
		if err != nil {
			w.complain("%s: partition %d, offset %d: %v", who, r.Partition, r.Offset, err)
			return
		}
		w.saw(who, int(r.Partition), sight{entry{r.Offset, v}, asked, at})
	})
}

// member starts a member of the consumer group, which commits after each poll.
func (w *workload) member(t *testing.T, name string) {
	m := &member{name: name, w: w, next: map[int32]int64{}, least: map[int32]int64{}}
	c := w.client(t, kgo.ConsumeTopics(w.topic), kgo.ConsumerGroup(w.topic+"-group"), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(requestTimeout/2),
		kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond), kgo.RebalanceTimeout(6*time.Second),
		kgo.BlockRebalanceOnPoll(), kgo.OnPartitionsAssigned(m.assigned))
	w.wg.Go(func() {
		defer c.CloseAllowingRebalance()
		for {
			asked := time.Now()
			fetches := c.PollRecords(w.ctx, groupPollMax)
			if w.ctx.Err() != nil {
				return
			}
			w.note(name, asked, fetches)
			m.got(fetches)
			m.commit(c)
			c.AllowRebalance()
		}
	})
}

// member is what one member of the group knows. mu guards next and least.
type member struct {
	name string
	w    *workload

	mu    sync.Mutex
	next  map[int32]int64 // the offset that must come next, by partition
	least map[int32]int64 // after an assignment: what the group had committed before it
}

func (m *member) assigned(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, partition := range assigned[m.w.topic] {
		delete(m.next, partition)
		m.least[partition] = m.w.committed(int(partition))
	}
}

// got checks that records come without holes, that a new owner starts where the
// group has committed or at what was committed later, never before, and that it
// skips nothing.
func (m *member) got(fetches kgo.Fetches) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fetches.EachRecord(func(r *kgo.Record) {
		want, goesOn := m.next[r.Partition]
		switch reached := m.w.groupReached(int(r.Partition)); {
		case goesOn && r.Offset != want:
			m.w.complain("%s: partition %d: offset %d came after %d", m.name, r.Partition, r.Offset, want-1)
		case !goesOn && r.Offset < m.least[r.Partition]:
			m.w.complain("%s: partition %d: begins at offset %d, %d is committed", m.name, r.Partition, r.Offset, m.least[r.Partition])
		case !goesOn && r.Offset > reached:
			m.w.complain("%s: partition %d: begins at offset %d, the group has read to %d", m.name, r.Partition, r.Offset, reached)
		}
		m.next[r.Partition] = r.Offset + 1
		m.w.groupReaches(int(r.Partition), r.Offset+1)
	})
}

// commit commits what the member has got, and notes what was acknowledged. A
// commit that a rebalance or a dead coordinator refuses is no fault: the next
// owner reads again.
func (m *member) commit(c *kgo.Client) {
	ctx, cancel := context.WithTimeout(m.w.ctx, 2*requestTimeout)
	defer cancel()
	asked := time.Now()
	c.CommitOffsetsSync(ctx, c.UncommittedOffsets(), func(_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			return
		}
		offsets := map[int32]int64{}
		for _, topic := range req.Topics {
			for _, p := range topic.Partitions {
				offsets[p.Partition] = p.Offset
			}
		}
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				if p.ErrorCode == 0 {
					m.w.commits(int(p.Partition), offsets[p.Partition], asked)
				}
			}
		}
	})
}

func (h *history) committed(partition int) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.partitions[partition].group.committed
}

// commits notes a commit that was asked for at a time and is acknowledged now. A lower
// one takes a higher one back: a member that had to join anew, and has not yet learned
// which of its partitions another one got meanwhile, commits what it had got of them,
// under the new generation. Where the order of two is not known the lower one counts.
func (h *history) commits(partition int, offset int64, asked time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := &h.partitions[partition].group
	switch {
	case offset < g.committed:
		g.committed, g.takenBack = offset, time.Now()
	case asked.After(g.takenBack):
		g.committed = offset
	}
}

func (h *history) groupReached(partition int) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.partitions[partition].group.next
}

func (h *history) groupReaches(partition int, offset int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := &h.partitions[partition].group
	g.next = max(g.next, offset)
}

// readLog reads a partition from its start to its end offset.
func (w *workload) readLog(ctx context.Context, partition int) ([]entry, error) {
	c, err := kgo.NewClient(clientOptions(w.seeds, kgo.FetchMaxWait(requestTimeout/2),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{w.topic: {int32(partition): kgo.NewOffset().AtStart()}}))...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, w.topic)
	if err != nil {
		return nil, fmt.Errorf("partition %d: end offset: %w", partition, err)
	}
	end, ok := ends.Lookup(w.topic, int32(partition))
	if !ok || end.Err != nil {
		return nil, fmt.Errorf("partition %d: end offset: %w", partition, end.Err)
	}
	var log []entry
	for int64(len(log)) < end.Offset {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			return log, fmt.Errorf("partition %d: %d records of %d came: %w", partition, len(log), end.Offset, ctx.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			v, err := parseValue(r.Value)
			if err != nil {
				w.complain("partition %d, offset %d: %v", partition, r.Offset, err)
			}
			log = append(log, entry{r.Offset, v})
		})
	}
	return log, nil
}
