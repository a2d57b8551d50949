package api

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluice-io/sluice/broker/replica"
)

// followerReadVersion is the first version in which a consumer may read from a
// follower, and be sent to one (KIP-392).
const followerReadVersion = 11

// follows tells whether a broker asks, for its own replicas.
func (f *fetch) follows() bool { return f.replicaID >= 0 }

// mark is what the request reads up to: a follower copies what is not
// committed yet.
func (f *fetch) mark() replica.Mark {
	if f.follows() {
		return replica.LogEnd
	}
	return replica.HighWatermark
}

// come counts the bytes of a partition that have come below the mark.
func (f *fetch) come(p *replica.Partition) int64 {
	if f.follows() {
		return p.AppendedBytes()
	}
	return p.VisibleBytes()
}

// reached is the offset that the mark has reached in a partition.
func (f *fetch) reached(p *replica.Partition) int64 {
	if f.follows() {
		return p.Log().EndOffset()
	}
	return p.HighWatermark()
}

// readFollower reads one partition for a follower, and notes how far it is.
func (f *fetch) readFollower(p *fetchPart, room int, first bool) {
	if f.a.Forward == nil || f.r.Conn.ListenerName() != f.a.cfg.InterBrokerListener {
		p.code = kerr.NotLeaderForPartition.Code // there are no followers, or it is none
		return
	}
	ask := replica.FollowerFetch{
		Replica: f.replicaID, BrokerEpoch: f.brokerEpoch,
		LeaderEpoch: p.epoch, Offset: p.offset, LastEpoch: p.lastEpoch, LogStart: p.logStart,
	}
	p.seen, p.reached = f.come(p.partition), f.reached(p.partition)
	now := f.a.Now()
	diverging, err := p.partition.FollowerFetch(ask, now)
	log := p.partition.Log()
	p.start, p.end, p.lso = log.StartOffset(), p.partition.HighWatermark(), p.partition.LastStableOffset()
	switch {
	case err != nil:
		p.code = dataCode(err)
	case diverging != nil:
		p.diverging = diverging
	case p.offset < log.EndOffset() && (room > 0 || first) && f.a.throttle(f, p, now):
		region, err := p.partition.ReadForFollower(ask, max(min(int(p.maxBytes), room), 0), first)
		f.took(p, region, err)
		f.a.throttled(f, p, now)
	}
}

// mayRead tells why a consumer is not served here, nil if it is.
func (f *fetch) mayRead(p *fetchPart) error {
	if f.version >= followerReadVersion {
		return p.partition.CheckRead(p.epoch)
	}
	return p.partition.Check(p.epoch)
}

// preferredReplica is the in-sync replica in the consumer's rack that it is to
// read from instead of this leader, -1 if there is none.
func (f *fetch) preferredReplica(p *fetchPart) int32 {
	if !f.a.cfg.RackAwareReads || f.rack == "" || f.version < followerReadVersion || p.partition.Err() != nil {
		return -1
	}
	im := f.a.Image()
	if self, ok := im.Broker(f.a.cfg.BrokerID); ok && self.Rack == f.rack {
		return -1
	}
	best, end := int32(-1), int64(-1)
	for _, follower := range p.partition.Followers() {
		b, live := im.Broker(follower.Replica)
		if live && b.Rack == f.rack && !b.ShuttingDown && follower.InSync && follower.End >= p.offset && follower.End > end {
			best, end = follower.Replica, follower.End
		}
	}
	return best
}

// throttle tells whether a follower that is not in sync may be given more now
// (leader.replication.throttled.rate).
func (a *API) throttle(f *fetch, p *fetchPart, now time.Time) bool {
	return !a.isThrottled(f, p) || !a.LeaderThrottle.Until(now).After(now)
}

// throttled counts what it was given.
func (a *API) throttled(f *fetch, p *fetchPart, now time.Time) {
	if p.region.Len > 0 && a.isThrottled(f, p) {
		a.LeaderThrottle.Take(p.region.Len, now)
	}
}

func (a *API) isThrottled(f *fetch, p *fetchPart) bool {
	return a.LeaderThrottle != nil && p.partition.Config().ThrottledLeaders.Has(p.index, f.a.cfg.BrokerID) &&
		!slices.Contains(p.partition.ISR(), f.replicaID)
}
