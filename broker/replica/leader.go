package replica

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
)

// Why a follower's fetch is not served.
var (
	// ErrUnknownReplica says that the broker is no replica of the partition, as
	// far as the leader knows.
	ErrUnknownReplica = errors.New("not a replica of the partition")
	// ErrStaleBrokerEpoch says that the fetch comes from an earlier life of the
	// broker: what it had fetched then may be gone (KIP-903).
	ErrStaleBrokerEpoch = errors.New("broker epoch is older than the current one")
	// ErrOffsetOutOfRange is the log's: the offset lies below its start.
	ErrOffsetOutOfRange = commitlog.ErrOffsetOutOfRange
	// ErrOffsetNotAvailable says that the high watermark has not reached the
	// leader's first offset yet, so that it may lie below what the leader before
	// had committed (KIP-207).
	ErrOffsetNotAvailable = errors.New("offset is not available until the high watermark has reached the start of the leader's epoch")
)

// EpochEnd says where a leader epoch ends in a log.
type EpochEnd struct {
	Epoch int32
	End   int64
}

// FollowerFetch is what a follower tells with a fetch: what it has.
type FollowerFetch struct {
	Replica     int32
	BrokerEpoch int64 // of the follower's registration
	LeaderEpoch int32 // that it follows in; NoEpoch is not compared
	Offset      int64 // its log's end
	// LastEpoch is the leader epoch of its last record, -1 if it has none.
	LastEpoch int32
	LogStart  int64
}

// leading is what a leader knows of its followers. The partition's mu guards it.
type leading struct {
	self           int32
	partitionEpoch int32
	isr            []int32 // as the store has it
	remotes        []remote
	// proposed is what the leader has asked the controller for and does not know
	// the outcome of; nil if nothing is open.
	proposed *proposal
	// notBefore is when it may ask again.
	notBefore time.Time
	// unsynced: it waits for a sync before it asks to be the only one in sync.
	unsynced bool
}

// remote is a follower as its leader sees it.
type remote struct {
	id          int32
	brokerEpoch int64
	inSync      bool // in leading.isr
	// leaving: a reassignment has arrived without it, so that it is to be in sync no more.
	leaving bool
	// refused: it is not proposed for the ISR before.
	refused time.Time
	// end is up to where it has the leader's log, -1 if it has not fetched yet.
	end      int64
	logStart int64
	// bytes is what had been appended up to end, at the least; sent is what it
	// was given beyond.
	bytes, sent int64
	// caughtUp is when it last had everything; fetched and fetchedEnd are its last
	// fetch and the log's end then.
	caughtUp   time.Time
	fetched    time.Time
	fetchedEnd int64
}

// newLeading starts an epoch: those in sync get the full time to show themselves.
func newLeading(self int32, st cluster.Partition, now time.Time) *leading {
	l := &leading{self: self, partitionEpoch: -1}
	l.take(st, now)
	return l
}

// take makes st the written state. Followers that stay keep what is known of them.
func (l *leading) take(st cluster.Partition, now time.Time) {
	old, leaving := l.remotes, st.Leaving()
	l.partitionEpoch, l.isr, l.proposed, l.notBefore = st.PartitionEpoch, st.ISR, nil, time.Time{}
	l.remotes = make([]remote, 0, len(st.Replicas))
	for _, id := range st.Replicas {
		if id == l.self {
			continue
		}
		r := remote{id: id, brokerEpoch: -1, end: -1, logStart: -1, fetchedEnd: math.MaxInt64}
		if i := slices.IndexFunc(old, func(r remote) bool { return r.id == id }); i >= 0 {
			r = old[i]
		}
		in := slices.Contains(st.ISR, id)
		if in && r.end < 0 {
			r.caughtUp = now
		}
		r.inSync, r.leaving = in, slices.Contains(leaving, id)
		l.remotes = append(l.remotes, r)
	}
}

func (l *leading) remote(id int32) *remote {
	for i := range l.remotes {
		if l.remotes[i].id == id {
			return &l.remotes[i]
		}
	}
	return nil
}

// counts says whether the high watermark waits for a follower: it is in sync, or
// may be by now for all the leader knows (KIP-497).
func (l *leading) counts(r *remote) bool {
	return r.inSync || l.proposed != nil && slices.Contains(l.proposed.isr, r.id)
}

func (l *leading) alone(isr []int32) bool { return len(isr) == 1 && isr[0] == l.self }

// bound lowers a high watermark and what is visible below it to what those in
// sync have. synced is where the leader's own durable part ends.
func (l *leading) bound(end, bytes, synced int64) (int64, int64) {
	for i := range l.remotes {
		if r := &l.remotes[i]; l.counts(r) {
			end, bytes = min(end, r.end), min(bytes, r.bytes)
		}
	}
	if l.alone(l.isr) || l.proposed != nil && l.alone(l.proposed.isr) {
		end = min(end, synced)
	}
	return end, bytes
}

// FollowerFetch notes how far a follower is, and moves the high watermark if
// that lets it. If the follower's log differs from this one it returns where to cut
// it, and notes nothing (KIP-320). Errors are why the partition does not serve
// the fetch, [ErrUnknownReplica], [ErrStaleBrokerEpoch] and
// commitlog.ErrOffsetOutOfRange for an offset below the log's start.
func (p *Partition) FollowerFetch(f FollowerFetch, now time.Time) (*EpochEnd, error) {
	diverging, fired, due, err := p.followerFetch(&f, now)
	fire(fired, nil)
	if due && p.opt.ISRDue != nil {
		p.opt.ISRDue(p)
	}
	if err != nil {
		err = fmt.Errorf("fetch of replica %d from %s-%d at offset %d: %w", f.Replica, p.opt.Topic, p.opt.Partition, f.Offset, err)
	}
	return diverging, err
}

func (p *Partition) followerFetch(f *FollowerFetch, now time.Time) (diverging *EpochEnd, fired *Wait, due bool, err error) {
	p.fence.RLock() // or the log could be cut by a new leader in between
	defer p.fence.RUnlock()
	r := p.role.Load()
	if err := r.check(f.LeaderEpoch, (*role).serves); err != nil {
		return nil, nil, false, err
	}
	if diverging, err := p.diverging(f.Offset, f.LastEpoch); err != nil || diverging != nil {
		return diverging, nil, false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	from := p.lead.remote(f.Replica)
	switch {
	case from == nil:
		return nil, nil, false, ErrUnknownReplica
	case f.BrokerEpoch < from.brokerEpoch:
		return nil, nil, false, ErrStaleBrokerEpoch
	}
	bytes := p.appended.Load() // before the end: it counts at most what is there
	from.note(f, p.log.EndOffset(), bytes, now)
	fired = p.raise(bytes)
	due = !now.Before(p.lead.notBefore) && p.lead.proposed == nil && p.joins(r, from, now)
	return nil, fired, due, nil
}

// diverging compares a follower's end with this log.
func (p *Partition) diverging(offset int64, lastEpoch int32) (*EpochEnd, error) {
	start, end := p.log.StartOffset(), p.log.EndOffset()
	if offset < start {
		return nil, fmt.Errorf("the log has %d to %d: %w", start, end, commitlog.ErrOffsetOutOfRange)
	}
	if offset == start && lastEpoch >= 0 && lastEpoch < p.log.EpochForOffset(start) {
		// What the follower ends with may be of another leader than what was here before
		// the start, which nobody can say any more.
		return &EpochEnd{lastEpoch, start}, nil
	}
	if lastEpoch >= 0 {
		epoch, epochEnd := p.log.EndOffsetForEpoch(lastEpoch)
		if epoch >= 0 && (epoch < lastEpoch || epochEnd < offset) { // KIP-279
			return &EpochEnd{epoch, epochEnd}, nil
		}
		if epoch < 0 {
			return nil, fmt.Errorf("its last record is of epoch %d: %w", lastEpoch, ErrUnknownEpoch)
		}
	}
	if offset > end {
		return &EpochEnd{p.log.EpochForOffset(end - 1), end}, nil
	}
	return nil, nil
}

// note takes a fetch of a follower whose log is a beginning of the leader's, which
// ends at end after so many bytes.
func (r *remote) note(f *FollowerFetch, end, bytes int64, now time.Time) {
	if f.BrokerEpoch != r.brokerEpoch {
		r.brokerEpoch, r.refused = f.BrokerEpoch, time.Time{}
	}
	switch {
	case f.Offset >= end:
		r.bytes = bytes
	case f.Offset > r.end:
		r.bytes += r.sent
	}
	r.end, r.logStart, r.sent = f.Offset, f.LogStart, 0
	switch {
	case f.Offset >= end:
		r.caughtUp = now
	case f.Offset >= r.fetchedEnd:
		r.caughtUp = r.fetched
	}
	r.fetched, r.fetchedEnd = now, end
}

// ReadForFollower returns whole batches from offset on, up to the log's end, for a
// follower whose FollowerFetch was served. See commitlog.Log.Read for its errors
// and for atLeastOne; the region must be released.
func (p *Partition) ReadForFollower(f FollowerFetch, maxBytes int, atLeastOne bool) (commitlog.Region, error) {
	p.fence.RLock()
	defer p.fence.RUnlock()
	if err := p.role.Load().check(f.LeaderEpoch, (*role).serves); err != nil {
		return commitlog.Region{}, err
	}
	region, err := p.log.Read(f.Offset, maxBytes, math.MaxInt64, atLeastOne)
	if err == nil && region.Len > 0 {
		p.noteSent(f, region.Len)
	}
	return region, err
}

func (p *Partition) noteSent(f FollowerFetch, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.lead.remote(f.Replica); r != nil && r.end == f.Offset {
		r.sent = int64(bytes)
	}
}

// raise moves the high watermark as far as it may go and takes out the waits that
// it passed. bytes is what had been appended up to the log's end at the least.
// Called with mu held.
func (p *Partition) raise(bytes int64) (fired *Wait) {
	if p.lead == nil {
		return nil
	}
	end := p.log.EndOffset()
	synced := end
	if p.opt.GroupFsync {
		synced = p.log.SyncedOffset()
	}
	end, bytes = p.lead.bound(end, bytes, synced)
	if end > p.hw.Load() {
		p.hw.Store(end)
	}
	if bytes > p.visible.Load() {
		p.visible.Store(bytes)
	}
	return p.waits[HighWatermark].passed(p.hw.Load(), len(p.lead.isr), nil)
}

// ListableEnd is the high watermark, or ErrOffsetNotAvailable while a new leader
// does not know yet how much of its log is committed (KIP-207).
func (p *Partition) ListableEnd() (int64, error) {
	r, hw := p.role.Load(), p.hw.Load()
	if r.leader && hw < r.start {
		return 0, ErrOffsetNotAvailable
	}
	return hw, nil
}

// LowWatermark is the lowest start of the logs of those in sync, below which no
// record is left on any of them (KIP-107).
func (p *Partition) LowWatermark() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	low := p.log.StartOffset()
	if p.lead == nil {
		return low
	}
	for i := range p.lead.remotes {
		if r := &p.lead.remotes[i]; r.inSync {
			low = min(low, r.logStart)
		}
	}
	return low
}

// Follower describes a follower for who watches over replication.
type Follower struct {
	Replica int32
	End     int64 // -1: it has not fetched yet
	InSync  bool
}

// Followers are the followers of a leader; none of any other.
func (p *Partition) Followers() []Follower {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lead == nil {
		return nil
	}
	list := make([]Follower, 0, len(p.lead.remotes))
	for i := range p.lead.remotes {
		r := &p.lead.remotes[i]
		list = append(list, Follower{r.id, r.end, r.inSync})
	}
	return list
}
