package sinks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// pollRecordsMin and pollRecordsMax bound how many records are taken from the Kafka client at a time.
const (
	pollRecordsMin = 64
	pollRecordsMax = 10_000
)

// errRejoin asks for a new client: the group no longer knows this one.
var errRejoin = errors.New("membership in the group was lost")

// session is the life of one group client. One goroutine, the loop, owns the partitions and everything else without another guard; the
// poller, the writers, the commit and the group's callbacks hand it functions to run. The loop never waits for any of them, so
// a callback that waits for the loop always gets its answer.
type session struct {
	w  *Worker
	cl *kgo.Client

	calls chan func()
	ended chan struct{} // closed when the loop takes no more calls
	doubt chan struct{} // one token: the topic may be gone

	trouble trouble // of fetches; of the poller alone
	refused trouble // of commits; of the commit under way alone

	// Owned by the loop.
	parts      map[int32]*slot
	due        []commitEntry // wait for the commit under way
	committing bool
	writing    int
	inWrites   int64               // memory of the records being written
	ends       map[int32]endOffset // with Once, when known
	settled    map[int32]int64     // with Once: commits of partitions that other members have
	stopping   bool
	gone       bool  // the topic was deleted
	failure    error // ends the session at once
	result     error // what the session ends with when it is drained
	writes     sync.WaitGroup

	former []int32 // partitions of the assignment under way whose commit is of an earlier topic; of the client's callbacks alone

	sizer *fetchSizer
	pacer *pacer
	order []*slot // the partitions, in some order of the moment

	recordBytes int64 // mean memory of the records that came last
	turn        int64 // bytes of a turn; 0: partitions are not fetched in turn, see takeTurns
	waiting     int   // how many wait for their turn
	turnsEnded  int64
	alone       *slot // a replay that is fetched past the memory limit, while all others wait

	held    atomic.Int64  // memory of all records
	limit   atomic.Int64  // of held: the memory for records, or more while writes that fail hold that
	room    chan struct{} // one token: held has gone down, or the poller has something to do
	needed  atomic.Bool   // a replay is fetched past the memory limit
	rewinds atomic.Bool   // partitions wait for the poller to rewind them

	mu       sync.Mutex // guards what follows
	owned    map[int32]*slot
	stopPoll context.CancelFunc // ends the poll in progress
}

// slot is an assigned partition: its decisions, and what of it runs elsewhere.
type slot struct {
	*partition
	paused    bool
	crowded   bool // it holds more than its share of the memory: fetching waits
	inTurn    bool
	turnEnded int64 // counts the ends of turns
	turnBegan time.Time
	fetchEnd  int64 // up to here the log can be fetched, as far as the last fetch knew
	state     State
	since     time.Time // of state
	trouble   error     // of the last write or question, nil when it went well
	share     letterShare
	cancel    context.CancelFunc // of the write in progress
	waiters   []chan struct{}    // closed when the partition is drained
	logStart  int64              // as the last fetch with records had it
	logEnd    int64
	verifyTo  int64 // the destination may hold offsets up to here; used by one write at a time
	verifySet bool  // verifyTo was asked for
}

func newSession(w *Worker) *session {
	s := &session{
		w:       w,
		calls:   make(chan func()),
		ended:   make(chan struct{}),
		doubt:   make(chan struct{}, 1),
		trouble: trouble{},
		refused: trouble{},
		parts:   map[int32]*slot{},
		settled: map[int32]int64{},
		room:    make(chan struct{}, 1),
		owned:   map[int32]*slot{},
		pacer:   newPacer(w.partsPerSecond()),
		sizer:   &fetchSizer{fetched: w.metrics.fetched},
	}
	s.limit.Store(w.recordMemory())
	return s
}

// run joins the group and works until ctx is cancelled, all is done (Once), or the session cannot go on.
func (s *session) run(ctx context.Context) error {
	cl, err := kgo.NewClient(slices.Concat(s.w.options, s.groupOptions())...)
	if err != nil {
		return fmt.Errorf("sink %s: %w", s.w.spec.Group(), err)
	}
	s.cl = cl
	pollCtx, stopPolling := context.WithCancel(context.WithoutCancel(ctx))
	var helpers sync.WaitGroup
	helpers.Go(func() { s.poll(pollCtx) })
	helpers.Go(func() { s.watchTopic(pollCtx) })
	helpers.Go(func() { s.w.watchSchema(pollCtx) })
	helpers.Go(func() { s.watchPassed(pollCtx) })
	if s.w.cfg.Once {
		helpers.Go(func() { s.watchEnds(pollCtx) })
	}
	err = s.loop(ctx)
	stopPolling()
	close(s.ended)
	helpers.Wait()
	s.writes.Wait()
	s.leave()
	s.w.metrics.partitions.Set(0)
	s.w.metrics.openClaims.Set(0)
	return err
}

// leaveTimeout bounds the farewell to a group whose broker may be gone.
const leaveTimeout = 3 * time.Second

// leave tells the group that its partitions are free. A static member stays for its next start.
func (s *session) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	s.cl.AllowRebalance()
	if err := s.cl.LeaveGroupContext(ctx); err != nil {
		s.w.log.Warn("leave the group", "error", err)
	}
	s.cl.CloseAllowingRebalance()
}

// loop runs calls and timers until the session ends.
func (s *session) loop(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var giveUp <-chan time.Time
	stop := ctx.Done()
	for {
		s.advance(time.Now())
		if done, err := s.finished(); done {
			return err
		}
		if s.stopping && giveUp == nil {
			t := time.NewTimer(s.w.cfg.DrainTimeout)
			defer t.Stop()
			giveUp = t.C
		}
		timer.Reset(s.untilWake(time.Now()))
		select {
		case f := <-s.calls:
			f()
		case <-timer.C:
		case <-stop:
			stop = nil
			s.drainAll()
		case <-giveUp:
			if s.gone {
				s.countGone()
			}
			s.abandon()
			return s.result
		}
	}
}

// finished says that the loop can end.
func (s *session) finished() (bool, error) {
	if s.failure != nil {
		s.abandon()
		return true, s.failure
	}
	if !s.stopping {
		done, err := s.onceDone()
		if !done {
			return false, nil
		}
		s.result = err
		s.drainAll()
		s.advance(time.Now())
	}
	for _, p := range s.parts {
		if !p.drained() {
			return false, nil
		}
	}
	if s.committing {
		return false, nil
	}
	if s.gone {
		s.countGone()
	}
	return true, s.result
}

// call has the loop run f and waits until it has. false: the loop has ended and f did not run.
func (s *session) call(f func()) bool {
	done := make(chan struct{})
	select {
	case s.calls <- func() { defer close(done); f() }:
		<-done
		return true
	case <-s.ended:
		return false
	}
}

// advance does all that is due now: for partitions whose oldest record waits longest first, since the limit on parts may not reach all.
func (s *session) advance(now time.Time) {
	open, stopped := 0, 0
	var held int64
	pressed := s.held.Load() > s.w.recordMemory()
	for _, p := range s.inTurn() {
		s.advancePart(p.base.Partition, p, now, pressed)
		held += p.held()
		if p.openClaim {
			open++
		}
		if p.stopped() != nil {
			stopped++
		}
	}
	s.balance(held, now)
	s.setHeld()
	s.startCommit()
	s.w.letters.tick(now)
	s.w.metrics.openClaims.Set(float64(open))
	s.w.metrics.stopped.Set(float64(stopped))
	s.countStates()
}

// inTurn are the partitions, those whose oldest record waits longest first.
func (s *session) inTurn() []*slot {
	s.order = s.order[:0]
	for _, p := range s.parts {
		s.order = append(s.order, p)
	}
	if s.pacer.every > 0 {
		slices.SortFunc(s.order, func(a, b *slot) int { return a.fillingSince.Compare(b.fillingSince) })
	}
	return s.order
}

func (s *session) advancePart(id int32, p *slot, now time.Time, pressed bool) {
	end, ending := s.ends[id]
	p.eager = pressed && p.held() >= s.fairShare()/2 || p.failed != nil || ending && p.next >= end.end || s.turnFull(p)
	for {
		p.turn = s.pacer.ready(now)
		hand := p.hand
		a := p.step(now, s.mayWrite(p))
		if p.hand != nil && p.hand != hand {
			s.endTurn(p)
			if p.hand.records.data() > 0 {
				s.pacer.seal(now)
			}
		}
		if a.do == actNone {
			break
		}
		if a.do == actCommit {
			s.due = append(s.due, commitEntry{id: id, slot: p, action: a})
			continue
		}
		if a.do == actAsk {
			s.startAsk(id, p, a.offset)
			continue
		}
		s.startWrite(p)
	}
	s.pause(id, p)
	s.w.setWaiting(partitionName(id), p.stopped())
	p.note(now)
	if p.drained() {
		for _, waiter := range p.waiters {
			close(waiter)
		}
		p.waiters = nil
	}
}

func partitionName(id int32) string { return fmt.Sprintf("partition %d", id) }

// pause makes the client stop or resume fetching the partition.
func (s *session) pause(id int32, p *slot) {
	full := p.full() || p.crowded || p.waits
	if full == p.paused {
		return
	}
	p.paused = full
	which := map[string][]int32{s.w.pipe.Topic.Name: {id}}
	if full {
		s.cl.PauseFetchPartitions(which)
	} else {
		s.cl.ResumeFetchPartitions(which)
	}
}

func (s *session) setHeld() {
	n := int64(0)
	for _, p := range s.parts {
		n += p.held()
	}
	s.held.Store(n)
	s.w.metrics.heldBytes.Set(float64(n))
	if n <= s.limit.Load() {
		s.wakePoller()
	}
}

// untilWake is how long nothing needs doing unless an event comes.
func (s *session) untilWake(now time.Time) time.Duration {
	d := time.Minute
	for _, p := range s.parts {
		if at, ok := p.wake(); ok {
			d = min(d, at.Sub(now))
		}
		if p.turnless {
			d = min(d, s.pacer.next().Sub(now))
		}
	}
	return max(d, time.Millisecond)
}

// poll hands fetched records to the loop. Between a poll and AllowRebalance the group cannot take a partition away, so the loop never gets
// records of a partition that has meanwhile been lost and given back.
func (s *session) poll(ctx context.Context) {
	recordSize := int64(64 << 10) // a careful guess before the first records
	for ctx.Err() == nil {
		if !s.awaitRoom(ctx) {
			return
		}
		room := (s.limit.Load() - s.held.Load()) / recordSize
		fetches := s.pollOnce(ctx, int(min(max(room, pollRecordsMin), pollRecordsMax)))
		if fetches.IsClientClosed() || ctx.Err() != nil {
			s.cl.AllowRebalance()
			return
		}
		fetched, n, bytes := copyFetched(fetches, s.w.pipe.Topic.Name)
		if n > 0 {
			recordSize = max(bytes/int64(n), 1)
			size := s.sizer.size(s.w.recordMemory()/fetchPart, len(s.cl.DiscoveredBrokers()), s.w.cfg.FetchBytesMax)
			s.cl.UpdateFetchMaxBytes(size, max(size/fetchPartitions, fetchBytesMin))
		}
		if len(fetched) > 0 {
			s.call(func() { s.recordBytes = recordSize; s.took(fetched, time.Now()) })
		}
		fetches.EachError(s.fetchError)
		s.rewind()
		s.cl.AllowRebalance()
		if n == 0 && troubled(fetches) {
			_ = sleep(ctx, s.w.cfg.BackoffMin) // errors come back at once
		}
	}
}

// pollOnce waits for records, or for a partition that has to be rewound.
func (s *session) pollOnce(ctx context.Context, n int) kgo.Fetches {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.stopPoll = cancel
	s.mu.Unlock()
	if s.rewinds.Load() {
		cancel()
	}
	return s.cl.PollRecords(ctx, n)
}

// troubled says that something other than the poll's own end came in place of records.
func troubled(fetches kgo.Fetches) bool {
	return slices.ContainsFunc(fetches.Errors(), func(e kgo.FetchError) bool { return !errors.Is(e.Err, context.Canceled) })
}

// awaitRoom waits until the records held are within their limit, or the poller is needed all the same.
func (s *session) awaitRoom(ctx context.Context) bool {
	for s.held.Load() > s.limit.Load() && !s.needed.Load() && !s.rewinds.Load() {
		select {
		case <-s.room:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (s *session) took(fetched []fetchedPartition, now time.Time) {
	for i := range fetched {
		f := &fetched[i]
		p := s.parts[f.id]
		if p == nil {
			continue
		}
		before := p.held()
		for _, x := range f.runs {
			p.take(x, now)
		}
		s.held.Add(p.held() - before) // at once: the poller asks for room before the loop comes round
		p.logStart, p.logEnd, p.fetchEnd = f.logStart, f.logEnd, f.fetchEnd
	}
}

// onOffsetsFetched is called by the client after an assignment, with the group's commits and before the first fetch.
func (s *session) onOffsetsFetched(ctx context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	id, _, err := s.w.topicID(ctx)
	if err != nil {
		s.doubtTopic()
		return err
	}
	var commits []kmsg.OffsetFetchResponseGroupTopicPartition
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			if t.Topic == s.w.pipe.Topic.Name || t.TopicID == id && id != (TopicID{}) {
				commits = append(commits, t.Partitions...)
			}
		}
	}
	var former []int32
	s.call(func() {
		for i := range commits {
			if commits[i].ErrorCode == 0 && s.assign(id, &commits[i]) {
				former = append(former, commits[i].Partition)
			}
		}
	})
	if len(former) > 0 {
		s.w.log.Warn("the group's commits are of an earlier topic of this name; going on at the start of the one that is there now",
			"topic", s.w.pipe.Topic.Name, "topic_id", id, "partitions", former)
	}
	s.former = former
	return nil
}

// startOffsets is called by the client after onOffsetsFetched, on the same goroutine: commits of an earlier topic are no offsets of this one.
func (s *session) startOffsets(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	for _, id := range s.former {
		if of := offsets[s.w.pipe.Topic.Name]; of != nil {
			of[id] = kgo.NewOffset().AtStart()
		}
	}
	return offsets, nil
}

// onAssigned is called by the client for each assignment, an empty one too: a group may have more members than partitions.
func (s *session) onAssigned(context.Context, *kgo.Client, map[string][]int32) {
	s.w.setWaiting("start", nil)
}

// assign begins a partition at the group's commit, or at the start of the log when that commit is of an earlier topic: former.
func (s *session) assign(topic TopicID, c *kmsg.OffsetFetchResponseGroupTopicPartition) (former bool) {
	d := s.w.destination.Load()
	base := Claim{
		Pipeline: s.w.pipe.Name, Sink: s.w.spec.Name, Topic: s.w.pipe.Topic.Name, TopicID: topic, Partition: c.Partition,
		Epoch: -1, Schema: d.Schema, Server: d.Server,
	}
	metadata := ""
	if c.Metadata != nil {
		metadata = *c.Metadata
	}
	note, ours := ParseCommitNote(metadata)
	vouched := c.Offset >= 0 && ours && note.TopicID == topic
	former = c.Offset >= 0 && ours && note.TopicID != topic
	commit := c.Offset
	if former {
		commit = -1
	}
	var replayed *CommitNote
	if vouched && note.Claim {
		replayed = &note
	}
	p := &slot{partition: newPartition(s.w.limits(), base, commit, replayed, rand.Float64)}
	if !vouched {
		p.origin = originUnasked
	}
	s.forget([]int32{c.Partition}, "assigned again")
	p.note(time.Now())
	s.parts[c.Partition] = p
	if s.stopping {
		p.drain() // it came while the session ends, as after a fence
	}
	s.mu.Lock()
	s.owned[c.Partition] = p
	s.mu.Unlock()
	s.w.metrics.partitions.Set(float64(len(s.parts)))
	s.w.log.Info("partition assigned", "partition", c.Partition, "committed", committedText(commit), "open_claim", replayed != nil)
	return former
}

// committedText is a commit for the log.
func committedText(offset int64) string {
	if offset < 0 {
		return "none"
	}
	return strconv.FormatInt(offset, 10)
}

// onRevoked drains the partitions before the group may give them to another member. Heartbeats go on meanwhile.
func (s *session) onRevoked(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
	ids := revoked[s.w.pipe.Topic.Name]
	var waiters []chan struct{}
	s.call(func() {
		for _, id := range ids {
			if p := s.parts[id]; p != nil {
				p.drain()
				waiter := make(chan struct{})
				p.waiters = append(p.waiters, waiter)
				waiters = append(waiters, waiter)
			}
		}
	})
	s.awaitDrained(waiters)
	s.call(func() { s.forget(ids, "revoked") })
}

// awaitDrained waits until the partitions are drained, at most for the write deadline: no write lasts longer, and a commit that does not come through by
// then leaves an open claim for the next owner.
func (s *session) awaitDrained(waiters []chan struct{}) {
	timeout := time.NewTimer(s.w.cfg.WriteDeadline)
	defer timeout.Stop()
	for _, waiter := range waiters {
		select {
		case <-waiter:
		case <-timeout.C:
			return
		case <-s.ended:
			return
		}
	}
}

// onLost drops partitions that another member may already have.
func (s *session) onLost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	s.call(func() { s.forget(lost[s.w.pipe.Topic.Name], "lost") })
}

// forget ends partitions, whatever state they are in.
func (s *session) forget(ids []int32, why string) {
	for _, id := range ids {
		p := s.parts[id]
		if p == nil {
			continue
		}
		s.disown(id)
		p.fence()
		if p.cancel != nil {
			p.cancel()
		}
		for _, waiter := range p.waiters {
			close(waiter)
		}
		if p.paused {
			s.cl.ResumeFetchPartitions(map[string][]int32{s.w.pipe.Topic.Name: {id}})
		}
		delete(s.parts, id)
		s.w.setWaiting(partitionName(id), nil)
		s.w.setWaiting(writeOf(id), nil)
		s.w.endTrouble(id, time.Now())
		s.w.log.Info("partition "+why, "partition", id)
	}
	s.w.metrics.partitions.Set(float64(len(s.parts)))
}

func (s *session) disown(id int32) {
	s.mu.Lock()
	delete(s.owned, id)
	s.mu.Unlock()
}

// drainAll begins the end of the session.
func (s *session) drainAll() {
	s.stopping = true
	for _, p := range s.parts {
		p.drain()
	}
}

// abandon ends all partitions at once; open claims stay for the next owner.
func (s *session) abandon() {
	ids := make([]int32, 0, len(s.parts))
	for id := range s.parts {
		ids = append(ids, id)
	}
	s.forget(ids, "given up")
}

// fetchError deals with an error that came in place of records. It runs between a poll and AllowRebalance.
func (s *session) fetchError(topic string, partition int32, err error) {
	var loss *kgo.ErrDataLoss
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
	case errors.Is(err, kerr.FencedInstanceID):
		s.call(func() { s.failure = s.shutOut(err) })
	case errors.Is(err, kerr.OffsetOutOfRange):
		s.outOfRange(partition)
	case errors.As(err, &loss):
		s.stop(partition, truncated(s.w.spec.Group(), loss))
	default:
		if errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition) {
			s.doubtTopic()
		}
		if !s.trouble.fresh(err, time.Now()) {
			return
		}
		s.w.log.Warn("fetch failed, trying again", "topic", topic, "partition", partition, "error", err)
	}
}

// truncated says what to do about records that the destination has and the log has not.
func truncated(group string, loss *kgo.ErrDataLoss) error {
	return fmt.Errorf("the log was truncated below what was read (an unclean leader election): offsets %[1]d to %[2]d are gone, or other records now, and the destination may hold what they were; "+
		"remove its rows of partition %[3]d from offset %[1]d on, and put the group back with: sluice groups reset %[4]s --to-offset %[1]d --topic %[5]s:%[3]d",
		loss.ResetTo, loss.ConsumedTo-1, loss.Partition, group, loss.Topic)
}

// outOfRange deals with a position that retention has passed.
func (s *session) outOfRange(id int32) {
	ctx, cancel := context.WithTimeout(context.Background(), s.w.cfg.WriteDeadline)
	defer cancel()
	topic := s.w.pipe.Topic.Name
	starts, err := s.w.admin.ListStartOffsets(ctx, topic)
	start, ok := starts.Lookup(topic, id)
	if err == nil && ok {
		err = start.Err
	}
	if err != nil || !ok {
		s.stop(id, fmt.Errorf("the position is not in the log, and its start cannot be read: %w", err))
		return
	}
	goOn := false
	s.call(func() { goOn = s.lost(id, start.Offset) })
	if goOn {
		s.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{topic: {id: {Epoch: -1, Offset: start.Offset}}})
	}
}

// lost counts the records between the position and the log's start, and says whether to go on there.
func (s *session) lost(id int32, start int64) (goOn bool) {
	p := s.parts[id]
	if p == nil || p.failed != nil {
		return false
	}
	if start <= p.next {
		s.stopPart(p, fmt.Errorf("the position %d is beyond the end of the log: it was truncated, or the topic was made again", p.next))
		return false
	}
	n := start - max(p.next, 0)
	s.w.countLost(n)
	err := fmt.Errorf("offsets %d to %d were removed from the log before they were stored: %d records lost", p.next, start-1, n)
	if s.w.cfg.OnLostOffsets != LostContinue {
		s.stopPart(p, err)
		return false
	}
	s.w.log.Error("going on at the start of the log", "partition", id, "error", err)
	p.skipTo(start)
	return true
}

func (s *session) stopPart(p *slot, err error) {
	p.stop(err)
	s.w.log.Error("partition stopped: it needs an operator", "partition", p.base.Partition, "error", err)
}

func (s *session) stop(id int32, err error) {
	s.call(func() {
		if p := s.parts[id]; p != nil && p.failed == nil {
			s.stopPart(p, err)
		}
	})
}
