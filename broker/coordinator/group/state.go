package group

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// state is where a group is in its protocol.
type state int8

const (
	empty state = iota
	preparingRebalance
	completingRebalance
	stable
	dead
)

// String returns Kafka's name, as DescribeGroups and ListGroups give it.
func (s state) String() string {
	return [...]string{"Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"}[s]
}

// consumerProtocol is the protocol type of consumers, whose metadata says what topics they
// subscribe to.
const consumerProtocol = "consumer"

// group is one group. Its members are kept in the order in which they came, so that decisions are
// the same in every run.
type group struct {
	id                     string
	state, previous        state
	since                  time.Time // of the state; zero if not known (old records)
	protocolType, protocol string    // empty: none
	generation             int32
	leader                 string // member id; empty: none

	members     []*member
	byID        map[string]*member
	instances   map[string]*member            // static members, by instance id
	pendingJoin map[string]*coordinator.Timer // ids that were given out and not yet come back
	pendingSync map[string]struct{}           // members of this generation that have not yet asked for their assignment
	support     map[string]int                // how many members offer a protocol
	awaiting    int                           // members whose join waits

	newMemberAdded bool // while the initial rebalance waits
	// unstored is the pause that followed the last of several assignments in a row that
	// could not be stored, 0 if there is none; no generation begins before heldTo.
	unstored  time.Duration
	heldTo    time.Time
	joinTimer coordinator.Timer
	syncTimer coordinator.Timer

	// consumer is the group's state in the consumer protocol; nil for the classic one. With it the
	// fields above say nothing, but for state, which is empty or dead.
	consumer *consumerGroup

	subscribed map[string]struct{} // topics of all members' subscriptions; nil: not known
	persisted  bool                // a record of this group is in the log
	offsets    offsets
}

// member is one member of a group. join and sync are the answers that it waits for.
type member struct {
	id, instanceID, clientID, clientHost string
	sessionTimeout, rebalanceTimeout     time.Duration
	protocols                            []Protocol
	assignment                           []byte
	isNew                                bool // has not yet got an id with which to keep a session

	session coordinator.Timer
	join    func(JoinResponse)
	sync    func(SyncResponse)
}

func newGroup(id string, now time.Time) *group {
	return &group{
		id: id, state: empty, previous: dead, since: now,
		byID:        make(map[string]*member),
		instances:   make(map[string]*member),
		pendingJoin: make(map[string]*coordinator.Timer),
		pendingSync: make(map[string]struct{}),
		support:     make(map[string]int),
		offsets:     make(offsets),
	}
}

// occupied says whether the group has members, or is about to.
func (g *group) occupied() bool {
	if g.consumer != nil {
		return len(g.consumer.members) > 0
	}
	return g.state != empty
}

// stateName is the state as Kafka's tools show it.
func (g *group) stateName() string {
	if g.consumer != nil && g.state != dead {
		return g.consumer.state()
	}
	return g.state.String()
}

func (g *group) transition(to state, now time.Time) {
	g.previous, g.state, g.since = g.state, to, now
}

// canRebalance says whether a rebalance may begin: not while one is being prepared.
func (g *group) canRebalance() bool {
	return g.state == empty || g.state == stable || g.state == completingRebalance
}

func (g *group) add(mem *member, protocolType string) {
	if len(g.members) == 0 {
		g.protocolType = protocolType
	}
	if g.leader == "" {
		g.leader = mem.id
	}
	g.members = append(g.members, mem)
	g.byID[mem.id] = mem
	if mem.instanceID != "" {
		g.instances[mem.instanceID] = mem
	}
	g.countProtocols(mem, 1)
	delete(g.pendingJoin, mem.id)
}

// remove takes a member out; if it led, the longest-standing one leads. The caller stops its
// session and has answered it.
func (g *group) remove(mem *member) {
	g.members = slices.DeleteFunc(g.members, func(other *member) bool { return other == mem })
	delete(g.byID, mem.id)
	delete(g.pendingSync, mem.id)
	if mem.instanceID != "" {
		delete(g.instances, mem.instanceID)
	}
	g.countProtocols(mem, -1)
	if mem.join != nil {
		g.awaiting--
	}
	if g.leader == mem.id {
		g.leader = ""
		if len(g.members) > 0 {
			g.leader = g.members[0].id
		}
	}
}

// replaceStatic gives a static member's place to a new member id. Whoever waits under the old one
// is fenced.
func (g *group) replaceStatic(mem *member, newID string, out *coordinator.Actions) {
	mem.answerJoin(out, g, joinRefused(mem.id, ErrFencedInstance))
	mem.answerSync(out, SyncResponse{Err: ErrFencedInstance})
	g.rename(mem, newID)
}

func (g *group) rename(mem *member, id string) {
	delete(g.byID, mem.id)
	delete(g.pendingSync, mem.id)
	if g.leader == mem.id {
		g.leader = id
	}
	mem.id = id
	g.byID[id] = mem
}

// update takes over what a joining member says now.
func (g *group) update(mem *member, protocols []Protocol, rebalance, session time.Duration) {
	g.countProtocols(mem, -1)
	mem.protocols = protocols
	g.countProtocols(mem, 1)
	mem.rebalanceTimeout, mem.sessionTimeout = rebalance, session
}

// awaitJoin keeps the answer of a join until the next generation begins. A join that waited before
// under the same member id comes from a connection that was given up: it is told to try again.
func (g *group) awaitJoin(mem *member, answer func(JoinResponse), out *coordinator.Actions) {
	mem.answerJoin(out, g, joinRefused(mem.id, ErrRebalanceInProgress))
	mem.join = answer
	g.awaiting++
}

func (g *group) countProtocols(mem *member, by int) {
	for _, p := range mem.protocols {
		g.support[p.Name] += by
		if g.support[p.Name] == 0 {
			delete(g.support, p.Name)
		}
	}
}

// supports says whether a member with these protocols can be in the group.
func (g *group) supports(protocolType string, protocols []Protocol) bool {
	if g.state == empty {
		return protocolType != "" && len(protocols) > 0
	}
	return g.protocolType == protocolType && slices.ContainsFunc(protocols, func(p Protocol) bool {
		return g.support[p.Name] == len(g.members)
	})
}

// selectProtocol lets each member vote for the first of its protocols that all have; the first to
// have most votes wins.
func (g *group) selectProtocol() string {
	votes := make(map[string]int, len(g.support))
	best := ""
	for _, mem := range g.members {
		name := mem.vote(g)
		votes[name]++
		if votes[name] > votes[best] {
			best = name
		}
	}
	return best
}

func (mem *member) vote(g *group) string {
	for _, p := range mem.protocols {
		if g.support[p.Name] == len(g.members) {
			return p.Name
		}
	}
	return "" // cannot be: who shares no protocol is not let in
}

// nextGeneration begins the next generation with the members there are.
func (g *group) nextGeneration(now time.Time) {
	g.generation++
	clear(g.pendingSync)
	if len(g.members) == 0 {
		g.protocol = ""
		g.transition(empty, now)
	} else {
		g.protocol = g.selectProtocol()
		g.transition(completingRebalance, now)
	}
	g.subscribed = g.subscriptions()
}

// electLeader makes a member lead that has joined, if the present leader has not. It says whether
// anyone leads who has joined.
func (g *group) electLeader() bool {
	leader := g.byID[g.leader]
	if leader == nil {
		return false
	}
	if leader.join != nil {
		return true
	}
	for _, mem := range g.members {
		if mem.join != nil {
			g.leader = mem.id
			return true
		}
	}
	return false
}

// allJoined says whether nobody is missing for the next generation.
func (g *group) allJoined() bool { return g.awaiting == len(g.members) && len(g.pendingJoin) == 0 }

// rebalanceTimeout is that of the slowest member.
func (g *group) rebalanceTimeout() (longest time.Duration) {
	for _, mem := range g.members {
		longest = max(longest, mem.rebalanceTimeout)
	}
	return longest
}

// check refuses who is not the member that it says it is.
func (g *group) check(memberID, instanceID string) error {
	if instanceID != "" {
		switch holder := g.instances[instanceID]; {
		case holder == nil:
			return ErrUnknownMember
		case holder.id != memberID:
			return ErrFencedInstance
		}
	}
	if g.byID[memberID] == nil {
		return ErrUnknownMember
	}
	return nil
}

// joinMembers lists the members for the leader.
func (g *group) joinMembers() []JoinMember {
	all := make([]JoinMember, len(g.members))
	for i, mem := range g.members {
		all[i] = JoinMember{ID: mem.id, InstanceID: mem.instanceID, Metadata: mem.metadata(g.protocol)}
	}
	return all
}

// subscriptions returns the topics that the members subscribe to; nil when that cannot be known.
// The subscription is read as version 0, which every version begins with.
func (g *group) subscriptions() map[string]struct{} {
	if g.protocolType != consumerProtocol || g.protocol == "" && len(g.members) > 0 {
		return nil
	}
	topics := make(map[string]struct{})
	for _, mem := range g.members {
		var sub kmsg.ConsumerMemberMetadata
		if err := sub.ReadFrom(mem.metadata(g.protocol)); err != nil {
			return nil
		}
		for _, t := range sub.Topics {
			topics[t] = struct{}{}
		}
	}
	return topics
}

func (mem *member) metadata(protocol string) []byte {
	for _, p := range mem.protocols {
		if p.Name == protocol {
			return p.Metadata
		}
	}
	return nil
}

// matches says whether the member offers exactly these protocols.
func (mem *member) matches(protocols []Protocol) bool {
	return slices.EqualFunc(mem.protocols, protocols, Protocol.equal)
}

// answerJoin answers a join that waits; false if none does.
func (mem *member) answerJoin(out *coordinator.Actions, g *group, resp JoinResponse) bool {
	answer := mem.join
	if answer == nil {
		return false
	}
	mem.join = nil
	g.awaiting--
	out.Reply(func() { answer(resp) })
	return true
}

// answerSync answers a sync that waits; false if none does.
func (mem *member) answerSync(out *coordinator.Actions, resp SyncResponse) bool {
	answer := mem.sync
	if answer == nil {
		return false
	}
	mem.sync = nil
	out.Reply(func() { answer(resp) })
	return true
}

// satisfied says that the member need not send heartbeats now, because its request waits here.
func (mem *member) satisfied() bool {
	return !mem.isNew && (mem.join != nil || mem.sync != nil)
}
