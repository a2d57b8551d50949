package cluster

import (
	"fmt"
	"slices"
)

// WithLive decides what follows from another set of live brokers: brokers that
// came, left, or were reborn, which is another Epoch and counts as having left
// and come back.
//
// lost tells of a broker that came whether its log may lack records that it had
// acknowledged as a follower: after a reboot without a clean stop, or when its
// recovery cut below its high watermark. It leaves every ISR that has another
// member before it may lead. A broker with Replaced set came with another disk:
// it leaves every ISR, and one that it was the last member of is empty then.
//
// A broker that came and leads again gets a new leader epoch, unless it had
// stopped cleanly. unclean says whether a topic may be led by a replica that is
// not in sync rather than by none.
func WithLive(im *Image, brokers []Broker, lost func(brokerID int32) bool, unclean func(topic string) bool) *Image {
	next := im.WithBrokers(keepShuttingDown(im, brokers), im.ControllerID, im.ControllerEpoch)
	m := membership{im: next, came: map[int32]bool{}, lost: lost}
	for _, b := range next.Brokers {
		if old, ok := im.Broker(b.ID); !ok || old.Epoch != b.Epoch {
			m.came[b.ID] = true
		}
	}
	return next.mapPartitions(func(t *Topic, _ int32, p Partition) Partition {
		return m.decide(p, func() bool { return unclean(t.Name) })
	})
}

// keepShuttingDown carries over what the registrations do not say.
func keepShuttingDown(im *Image, brokers []Broker) []Broker {
	out := slices.Clone(brokers)
	for i := range out {
		if old, ok := im.Broker(out[i].ID); ok && old.Epoch == out[i].Epoch {
			out[i].ShuttingDown = old.ShuttingDown
		}
	}
	slices.SortFunc(out, func(a, b Broker) int { return int(a.ID) - int(b.ID) })
	return out
}

// membership decides on the partitions after a change of the live brokers.
type membership struct {
	im   *Image
	came map[int32]bool
	lost func(int32) bool
}

func (m membership) decide(p Partition, unclean func() bool) Partition {
	if p.ISR == nil {
		return p // its creation was cut short, and is completed elsewhere
	}
	p.Offline = m.stillOffline(p.Offline)
	had := m.withData(p.ISR)
	p.ISR = m.complete(p, had)
	if slices.Contains(p.ISR, p.Leader) && m.stays(p, p.Leader) {
		return p
	}
	leader := m.im.preferred(p, p.ISR)
	if leader == NoLeader && unclean() {
		leader = m.im.uncleanLeader(p)
	}
	if leader != NoLeader && (!slices.Contains(p.ISR, leader) || m.came[leader] && m.lost(leader)) {
		p.ISR = []int32{leader} // nobody has what it lacks and can be waited for
	}
	if b, _ := m.im.Broker(leader); leader == p.Leader && (leader == NoLeader || b.Clean) {
		return p
	}
	return p.ledBy(leader)
}

// stillOffline drops the failed disks of brokers that left or begin anew.
func (m membership) stillOffline(offline []int32) []int32 {
	if len(offline) == 0 {
		return nil
	}
	left := only(offline, func(id int32) bool {
		_, live := m.im.Broker(id)
		return live && !m.came[id]
	})
	if len(left) == 0 {
		return nil
	}
	return left
}

// stays tells whether a replica serves on as before.
func (m membership) stays(p Partition, id int32) bool {
	_, live := m.im.Broker(id)
	return live && !m.came[id] && !slices.Contains(p.Offline, id)
}

// withData drops the members of the in-sync replicas whose disk is another one.
func (m membership) withData(isr []int32) []int32 {
	return only(isr, func(id int32) bool {
		b, live := m.im.Broker(id)
		return !live || !m.came[id] || !b.Replaced
	})
}

// complete drops those that came back without all they had, and those whose disk
// has failed, if that leaves any: if it does not, what one of them has is as much as
// can be had.
//
// Nobody else is dropped here, whoever has left. The store hears of a death late:
// who seems to be there may have lost its power by now, and with it what it had not
// synced, while who has left was only restarted. So it is a leader, which shows
// thereby that it is there, that takes out who is gone, and the last one in
// sync does so only after it has synced its log.
func (m membership) complete(p Partition, had []int32) []int32 {
	all := onlyIfAny(had, func(id int32) bool { return !m.came[id] || !m.lost(id) })
	return onlyIfAny(all, func(id int32) bool { return !slices.Contains(p.Offline, id) })
}

// onlyIfAny returns the members of ids that pass, or all if none does.
func onlyIfAny(ids []int32, pass func(int32) bool) []int32 {
	if out := only(ids, pass); len(out) > 0 {
		return out
	}
	return ids
}

// WithOffline decides what follows from what a broker answered to an update: of
// the partitions in it, those in offline it cannot serve because their disk has
// failed, and the others it can.
func WithOffline(im *Image, broker int32, u *Update, offline []TopicPartition, unclean func(topic string) bool) *Image {
	failed := make(map[TopicPartition]bool, len(offline))
	for _, tp := range offline {
		failed[tp] = true
	}
	m := membership{im: im, came: map[int32]bool{}, lost: func(int32) bool { return false }}
	out := im
	for _, tu := range u.Topics {
		t := out.Topic(tu.Name)
		if t == nil || t.ID != tu.ID {
			continue
		}
		var next *Topic
		for _, pu := range tu.Partitions {
			if int(pu.Index) >= len(t.Partitions) {
				continue
			}
			was := t.Partitions[pu.Index]
			is, changed := was.withOffline(broker, failed[TopicPartition{t.Name, pu.Index}])
			if !changed {
				continue
			}
			if next == nil {
				next = t.cloned()
			}
			next.Partitions[pu.Index] = stepped(was, m.decide(is, func() bool { return unclean(t.Name) }))
		}
		if next != nil {
			out = out.With(next)
		}
	}
	return out
}

func (p Partition) withOffline(broker int32, failed bool) (Partition, bool) {
	was := slices.Contains(p.Offline, broker)
	if failed == was || !slices.Contains(p.Replicas, broker) {
		return p, false
	}
	if !failed {
		if p.Offline = without(p.Offline, broker); len(p.Offline) == 0 {
			p.Offline = nil
		}
		return p, true
	}
	p.Offline = append(slices.Clone(p.Offline), broker)
	slices.Sort(p.Offline)
	return p, true
}

// ShutDown prepares the controlled stop of a broker: what it leads goes to other
// in-sync replicas. The leaders take it out of those in sync, since it is marked as
// shutting down. remaining is what it still leads although there are other
// replicas, because none of them is in sync.
func ShutDown(im *Image, brokerID int32) (next *Image, remaining []TopicPartition) {
	brokers := slices.Clone(im.Brokers)
	for i := range brokers {
		if brokers[i].ID == brokerID {
			brokers[i].ShuttingDown = true
		}
	}
	next = im.WithBrokers(brokers, im.ControllerID, im.ControllerEpoch)
	next = next.mapPartitions(func(t *Topic, i int32, p Partition) Partition {
		if p.Leader != brokerID {
			return p
		}
		leader := next.preferred(p, p.ISR)
		if leader == NoLeader {
			if len(p.Replicas) > 1 {
				remaining = append(remaining, TopicPartition{t.Name, i})
			}
			return p
		}
		return p.ledBy(leader)
	})
	return next, remaining
}

// ElectionKind is which replica an election is to choose, with the protocol's
// own numbers (KIP-460).
type ElectionKind int8

// The kinds of elections.
const (
	// ElectPreferred makes the first replica the leader again.
	ElectPreferred ElectionKind = 0
	// ElectUnclean makes any live replica the leader where there is none.
	// Records that it does not have are lost.
	ElectUnclean ElectionKind = 1
)

// Elect holds an election that was asked for. Errors are [ErrUnknownPartition],
// [ErrElectionNotNeeded], [ErrPreferredLeaderNotAvailable] and
// [ErrEligibleLeadersNotAvailable].
func Elect(im *Image, tp TopicPartition, kind ElectionKind) (*Image, error) {
	t, p, err := im.partition(tp)
	if err != nil {
		return nil, err
	}
	if kind == ElectPreferred {
		p, err = electPreferred(im, p)
	} else {
		p, err = electUnclean(im, p)
	}
	if err != nil {
		return nil, fmt.Errorf("elect a leader of %s-%d: %w", tp.Topic, tp.Partition, err)
	}
	return im.withPartition(t, tp.Partition, p), nil
}

func electPreferred(im *Image, p Partition) (Partition, error) {
	first := p.Replicas[0]
	switch {
	case p.Leader == first:
		return p, ErrElectionNotNeeded
	case !slices.Contains(p.ISR, first) || !im.mayLead(p, first):
		return p, fmt.Errorf("%w: broker %d", ErrPreferredLeaderNotAvailable, first)
	}
	return p.ledBy(first), nil
}

func electUnclean(im *Image, p Partition) (Partition, error) {
	if p.Leader != NoLeader {
		return p, ErrElectionNotNeeded
	}
	leader := im.preferred(p, p.ISR)
	if leader == NoLeader {
		if leader = im.uncleanLeader(p); leader == NoLeader {
			return p, ErrEligibleLeadersNotAvailable
		}
		p.ISR = []int32{leader}
	}
	return p.ledBy(leader), nil
}

// Imbalance is how unevenly a broker leads: of the partitions that it is
// preferred for, how many others lead.
type Imbalance struct {
	Broker    int32
	Preferred int              // partitions that it is the first replica of
	Elsewhere []TopicPartition // of those, led by others
}

// Imbalances returns that of every live broker, sorted by broker. Partitions
// that are being reassigned are left out.
func Imbalances(im *Image) []Imbalance {
	out := make([]Imbalance, len(im.Brokers))
	at := make(map[int32]*Imbalance, len(im.Brokers))
	for i, b := range im.Brokers {
		out[i].Broker = b.ID
		at[b.ID] = &out[i]
	}
	for _, t := range im.Topics() {
		for i, p := range t.Partitions {
			b := at[p.Replicas[0]]
			if b == nil || p.Reassigning() {
				continue
			}
			b.Preferred++
			if p.Leader != b.Broker {
				b.Elsewhere = append(b.Elsewhere, TopicPartition{t.Name, int32(i)})
			}
		}
	}
	return out
}

// BalanceLeaders returns preferred leaders where a broker leads too little of
// what it is preferred for: where more than percent of it is led elsewhere.
func BalanceLeaders(im *Image, percent int) *Image {
	for _, b := range Imbalances(im) {
		if len(b.Elsewhere)*100 <= percent*b.Preferred {
			continue
		}
		for _, tp := range b.Elsewhere {
			if next, err := Elect(im, tp, ElectPreferred); err == nil {
				im = next
			}
		}
	}
	return im
}
