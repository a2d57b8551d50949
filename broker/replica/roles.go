package replica

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
)

// role is what this node is to the partition. Immutable.
type role struct {
	epoch  int32
	leader bool
	// from is the leader that this node follows; cluster.NoLeader if it leads
	// itself or there is none.
	from int32
	// isr are the replicas in sync as the cluster store has them: what a leader
	// has proposed and does not know to be written is not in it.
	isr []int32
	// alone says that the leader is the only one of them, so that its disk is the
	// only place where a record is sure to be.
	alone bool
	// start is the log's end when the epoch began here, of a leader.
	start int64
	err   error // why it does not serve, if not only for not leading
}

// Lead makes this node the leader as st says, or tells the leader of a newer
// state of the same epoch: other replicas, another ISR. Every start that was not
// clean must come with a higher epoch than the one before. Waits under an older
// epoch end. An older state of the same epoch changes nothing.
func (p *Partition) Lead(st cluster.Partition, now time.Time) error {
	old, err := p.takeLead(st, now)
	if err != nil {
		return fmt.Errorf("lead %s-%d in epoch %d: %w", p.opt.Topic, p.opt.Partition, st.LeaderEpoch, err)
	}
	if st.LeaderEpoch > old.epoch {
		p.lose(ErrNotLeader)
	}
	p.advance(p.appended.Load())
	p.flushIfNeeded()
	return nil
}

func (p *Partition) takeLead(st cluster.Partition, now time.Time) (old *role, err error) {
	p.cutting.Lock()
	defer p.cutting.Unlock()
	p.fence.Lock()
	defer p.fence.Unlock()
	old = p.role.Load()
	switch {
	case old.err != nil:
		return nil, old.err
	case st.LeaderEpoch < old.epoch:
		return nil, fmt.Errorf("%w: it has been in epoch %d", ErrFencedEpoch, old.epoch)
	case st.LeaderEpoch == old.epoch && old.leader:
		p.settle(st, now)
		return old, nil
	}
	start := p.log.EndOffset()
	if err := p.log.AssignEpoch(st.LeaderEpoch, start); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lead = newLeading(p.opt.BrokerID, st, now)
	p.role.Store(p.leaderRole(st.LeaderEpoch, start))
	return old, nil
}

// leaderRole is the role of the leader that p.lead describes. Called with fence
// held exclusively, and mu.
func (p *Partition) leaderRole(epoch int32, start int64) *role {
	return &role{
		epoch: epoch, leader: true, from: cluster.NoLeader, start: start,
		isr: p.lead.isr, alone: p.lead.alone(p.lead.isr),
	}
}

// settle takes a newer state of the epoch that this node leads in. What it had
// proposed is then decided, one way or the other: a proposal is written only onto
// the state that it was made from. Called with fence held exclusively.
func (p *Partition) settle(st cluster.Partition, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if st.PartitionEpoch <= p.lead.partitionEpoch {
		return
	}
	p.lead.take(st, now)
	r := p.role.Load()
	p.role.Store(p.leaderRole(r.epoch, r.start))
}

// Follow makes this node a follower of st.Leader, or of nobody yet when that is
// cluster.NoLeader. It returns when no append is under way; waits end with
// ErrNotLeader unless it followed in the same epoch. Where its log differs from
// the leader's is found out by the first fetches.
func (p *Partition) Follow(st cluster.Partition, _ time.Time) error {
	same, err := p.takeFollow(st)
	if err != nil {
		return fmt.Errorf("follow %s-%d in epoch %d: %w", p.opt.Topic, p.opt.Partition, st.LeaderEpoch, err)
	}
	if !same {
		p.lose(ErrNotLeader)
	}
	return nil
}

func (p *Partition) takeFollow(st cluster.Partition) (same bool, err error) {
	p.fence.Lock()
	defer p.fence.Unlock()
	old := p.role.Load()
	switch {
	case old.err != nil:
		return false, old.err
	case st.LeaderEpoch < old.epoch, st.LeaderEpoch == old.epoch && old.leader:
		return false, fmt.Errorf("%w: it has been in epoch %d", ErrFencedEpoch, old.epoch)
	}
	p.stopLeading()
	p.role.Store(&role{epoch: st.LeaderEpoch, from: st.Leader, isr: st.ISR})
	return st.LeaderEpoch == old.epoch && st.Leader == old.from, nil
}

// stopLeading forgets the followers. Called with fence held exclusively.
func (p *Partition) stopLeading() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lead = nil
}

// Resign makes this node neither leader nor follower. It returns when no append
// is under way. Waits end with ErrNotLeader.
func (p *Partition) Resign(epoch int32) {
	p.change(func(old role) role {
		return role{epoch: max(epoch, old.epoch), from: cluster.NoLeader, err: old.err}
	}, ErrNotLeader)
}

// Fail takes the partition out of service for ever: with an error that wraps
// ErrOffline for a failed disk, or ErrDeleted. It returns when no append is
// under way. Waits end with err.
func (p *Partition) Fail(err error) {
	p.change(func(old role) role {
		if old.err != nil {
			err = old.err
		}
		return role{epoch: old.epoch, from: cluster.NoLeader, err: err}
	}, err)
}

func (p *Partition) change(to func(role) role, why error) {
	p.fence.Lock()
	next := to(*p.role.Load())
	p.stopLeading()
	p.role.Store(&next)
	p.fence.Unlock()
	p.lose(why)
}

// Err says why the partition does not serve producers, nil if it does.
func (p *Partition) Err() error { return p.role.Load().serves() }

func (r *role) serves() error {
	switch {
	case r.err != nil:
		return r.err
	case !r.leader:
		return ErrNotLeader
	}
	return nil
}

// reads says why consumers cannot read here, nil if they can: from the leader,
// and from who follows one.
func (r *role) reads() error {
	if r.err == nil && r.from != cluster.NoLeader {
		return nil
	}
	return r.serves()
}

// LeaderEpoch is the newest leader epoch that this node knows, NoEpoch if none.
func (p *Partition) LeaderEpoch() int32 { return p.role.Load().epoch }

// Following is the leader that this node follows; ok is false if it follows none.
func (p *Partition) Following() (leader int32, ok bool) {
	r := p.role.Load()
	return r.from, r.err == nil && r.from != cluster.NoLeader
}

// ISR is the in-sync replicas: while this node leads as they are known to be
// written, otherwise as it was told with its role. Not to be changed.
func (p *Partition) ISR() []int32 { return p.role.Load().isr }

// InSync says whether a replica is among them.
func (p *Partition) InSync(replica int32) bool {
	return slices.Contains(p.role.Load().isr, replica)
}

// Check returns why a request to the leader that knows a leader epoch is not
// served, nil if it is. An epoch of NoEpoch is not compared.
func (p *Partition) Check(epoch int32) error { return p.role.Load().check(epoch, (*role).serves) }

// CheckRead is Check for a request that a follower may serve too (KIP-392).
func (p *Partition) CheckRead(epoch int32) error { return p.role.Load().check(epoch, (*role).reads) }

func (r *role) check(epoch int32, serves func(*role) error) error {
	switch {
	case r.err != nil:
		return r.err
	case epoch != NoEpoch && epoch < r.epoch:
		return ErrFencedEpoch
	case epoch != NoEpoch && epoch > r.epoch:
		return ErrUnknownEpoch
	}
	return serves(r)
}
