package replica

import (
	"errors"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
)

const (
	// lagMax is how long a follower may be behind and count as in sync, unless
	// Options says otherwise: Kafka's replica.lag.time.max.ms.
	lagMax = 30 * time.Second
	// isrBackoff is how long a leader waits before it asks the controller again.
	isrBackoff = 50 * time.Millisecond
	// refusedBackoff is how long it leaves a follower out that the controller has
	// found not fit to join.
	refusedBackoff = time.Second
)

// proposal is a change of the ISR that the controller has been asked for.
type proposal struct {
	ask cluster.AlterPartition
	isr []int32
	// asked: an answer is due. Without it the last one told nothing, and the
	// change may be written or be written yet.
	asked bool
}

// ISRProposal is a change of the ISR that the controller is to be asked for, if
// there is one: followers leave that have been behind for longer than
// Options.LagMax, whose broker has left the cluster, or whose replica a reassignment
// ends, and others join that have all that is committed and all from the start of the
// leader's epoch on. One is open at a time, and each needs its
// answer by [Partition.ISRAnswered]; whatever else happened, the same is asked
// again after a while until it is decided.
//
// The last one in sync syncs its log first, after which Options.ISRDue is called:
// from then on, nobody else need have what is committed.
func (p *Partition) ISRProposal(now time.Time) (cluster.AlterPartition, bool) {
	ask, ok, unsynced := p.propose(now)
	if unsynced {
		p.WantFlush()
	}
	return ask, ok
}

func (p *Partition) propose(now time.Time) (ask cluster.AlterPartition, ok, unsynced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lead
	if l == nil || now.Before(l.notBefore) || l.proposed != nil && l.proposed.asked {
		return ask, false, false
	}
	next := l.proposed
	if next == nil {
		next = p.plan(l, now)
	}
	if next == nil {
		return ask, false, false
	}
	// What the leaders before have committed may lie above the high watermark, but not
	// above the epoch's start.
	needed := max(p.hw.Load(), p.role.Load().start)
	l.unsynced = l.proposed == nil && l.alone(next.isr) && p.opt.GroupFsync && p.log.SyncedOffset() < needed
	if l.unsynced {
		return ask, false, true
	}
	next.asked = true
	l.proposed, l.notBefore = next, now.Add(isrBackoff)
	return next.ask, true, false
}

// synced has the change asked for that waited for a sync.
func (p *Partition) synced() {
	p.mu.Lock()
	due := p.lead != nil && p.lead.unsynced
	if due {
		p.lead.unsynced = false
	}
	p.mu.Unlock()
	if due && p.opt.ISRDue != nil {
		p.opt.ISRDue(p)
	}
}

// plan is the change that is due; nil if none is.
func (p *Partition) plan(l *leading, now time.Time) *proposal {
	r := p.role.Load()
	isr := slices.DeleteFunc(slices.Clone(l.isr), func(id int32) bool {
		from := l.remote(id)
		return from != nil && p.lags(from, now)
	})
	if len(isr) == len(l.isr) {
		for i := range l.remotes {
			if p.joins(r, &l.remotes[i], now) {
				isr = append(isr, l.remotes[i].id)
			}
		}
	}
	if len(isr) == len(l.isr) {
		return nil
	}
	ask := cluster.AlterPartition{
		TopicPartition: cluster.TopicPartition{Topic: p.opt.Topic, Partition: p.opt.Partition},
		TopicID:        p.opt.TopicID,
		Leader:         l.self,
		LeaderEpoch:    r.epoch, PartitionEpoch: l.partitionEpoch,
	}
	for _, id := range isr {
		member := cluster.InSyncReplica{ID: id, Epoch: cluster.UnknownBrokerEpoch}
		if from := l.remote(id); from != nil {
			member.Epoch = from.brokerEpoch
		}
		ask.ISR = append(ask.ISR, member)
	}
	return &proposal{ask: ask, isr: isr}
}

// lags says whether a follower is to leave those in sync.
func (p *Partition) lags(r *remote, now time.Time) bool {
	if r.leaving || !p.live(r) {
		return true
	}
	limit := p.opt.LagMax
	if limit == 0 {
		limit = lagMax
	}
	return r.end < p.log.EndOffset() && now.Sub(r.caughtUp) > limit
}

// live says whether a follower can be waited for at all.
func (p *Partition) live(r *remote) bool { return p.opt.Live == nil || p.opt.Live(r.id) }

// joins says whether a follower is fit to be in sync and is not: were it elected,
// nothing would be missing that is committed, now or while it was being asked.
func (p *Partition) joins(r *role, from *remote, now time.Time) bool {
	return !from.inSync && !from.leaving && p.live(from) && !now.Before(from.refused) && from.end >= r.start && from.end >= p.hw.Load()
}

// ISRAnswered takes the answer to a proposal: the new state, or the controller's
// error. An error that does not say that the change is refused for good, a lost
// connection too, leaves it open: those who would join are waited for, and those
// who would leave as well, until a newer state is known.
func (p *Partition) ISRAnswered(ask cluster.AlterPartition, st cluster.Partition, err error, now time.Time) {
	if err == nil {
		p.take(ask.LeaderEpoch, st, now)
	}
	p.mu.Lock()
	var fired *Wait
	if l := p.lead; l != nil && l.proposed != nil && l.proposed.answers(ask) {
		l.proposed.asked = false
		if errors.Is(err, cluster.ErrIneligibleReplica) {
			l.refused(now)
			fired = p.raise(0)
		}
	}
	p.mu.Unlock()
	fire(fired, nil)
}

// refused gives up the proposal: nobody will write it, because what made a
// follower unfit holds for this life of it.
func (l *leading) refused(now time.Time) {
	for i := range l.remotes {
		if r := &l.remotes[i]; !r.inSync && slices.Contains(l.proposed.isr, r.id) {
			r.refused = now.Add(refusedBackoff)
		}
	}
	l.proposed = nil
}

func (pr *proposal) answers(ask cluster.AlterPartition) bool {
	return pr.ask.LeaderEpoch == ask.LeaderEpoch && pr.ask.PartitionEpoch == ask.PartitionEpoch && slices.Equal(pr.ask.ISR, ask.ISR)
}

// take takes a newer state of the epoch in which this node leads.
func (p *Partition) take(epoch int32, st cluster.Partition, now time.Time) {
	p.fence.Lock()
	if r := p.role.Load(); r.leader && r.epoch == epoch && st.LeaderEpoch == epoch {
		p.settle(st, now)
	}
	p.fence.Unlock()
	p.advance(p.appended.Load())
	p.flushIfNeeded()
}
