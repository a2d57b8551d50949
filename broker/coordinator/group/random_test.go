package group

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// simPartitions is how many partitions the members of the simulation share out.
const simPartitions = 6

// simulation is a group whose members join, work, pause, die and come back at random, on a
// coordinator that is killed at random.
type simulation struct {
	*fixture
	rng     *rand.Rand
	members []*simMember
	acked   [simPartitions]int64 // highest offset whose commit was answered with success
	owner   map[string]string    // member by generation and partition
	highest int32                // generation that was given out with an assignment
	commits int
}

// simMember is a client: what it believes of itself.
type simMember struct {
	sim        *simulation
	name       string
	id         string
	static     bool
	generation int32
	owned      []int32
	next       [simPartitions]int64
	paused     bool // sends nothing, as if it were frozen
	join       *waiting[JoinResponse]
	sync       *waiting[SyncResponse]
	pending    []pendingCommit
}

type pendingCommit struct {
	partition int32
	offset    int64
	answer    *waiting[CommitResponse]
}

func TestRandomGroups(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	total := 0
	for seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			s := newSimulation(t, seed)
			for range 600 {
				s.step()
			}
			s.settle()
			total += s.commits
		})
	}
	if total < int(seeds)*50 {
		t.Errorf("only %d commits in all: the members do not get to work", total)
	}
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{
		fixture: newFixture(t, Config{InitialRebalanceDelay: time.Second}),
		rng:     rand.New(rand.NewPCG(seed, 1)),
		owner:   make(map[string]string),
	}
	for i := range 4 {
		s.members = append(s.members, &simMember{sim: s, name: fmt.Sprint("m", i), static: i%2 == 1})
	}
	return s
}

// step lets one thing happen, and checks what must always hold.
func (s *simulation) step() {
	m := s.members[s.rng.IntN(len(s.members))]
	switch s.rng.IntN(40) {
	case 0:
		s.crash()
	case 1:
		s.clock.advance(time.Duration(s.rng.IntN(12000)) * time.Millisecond)
	case 2:
		m.paused = !m.paused
	case 3:
		m.restart()
	case 4:
		s.log.held = !s.log.held
	case 5, 6:
		s.log.commit()
	case 7:
		if m.id != "" && !m.static {
			s.leave("g", LeavingMember{MemberID: m.id})
			m.reset()
		}
	default:
		s.clock.advance(time.Duration(s.rng.IntN(300)) * time.Millisecond)
		if !m.paused {
			m.act()
		}
	}
	s.check()
}

// crash kills the coordinator; another takes over. What was appended and not yet committed is lost
// or not.
func (s *simulation) crash() {
	end := s.log.hw
	if end == s.log.end {
		s.wantReplay(end, s.durable(s.c))
	} else if s.rng.IntN(2) == 0 {
		end = s.log.end
	}
	log := s.log.prefix(end)
	s.c.Resign(0, -1)
	s.elect(log)
}

func (s *simulation) check() {
	s.Helper()
	for _, m := range s.members {
		m.collect()
	}
	for p, acked := range s.acked {
		if got := s.offset("g", "t", int32(p)); acked > 0 && got < acked {
			s.Fatalf("partition %d: offset %d, but the commit of %d was answered", p, got, acked)
		}
	}
}

// settle heals everything, and expects a group that works.
func (s *simulation) settle() {
	s.log.held = false
	s.log.commit()
	for _, m := range s.members {
		m.paused = false
	}
	for range 1000 {
		s.clock.advance(50 * time.Millisecond)
		for _, m := range s.members {
			m.act()
		}
		s.check()
	}
	s.wantState("g", stable)
	owned := 0
	for _, m := range s.members {
		owned += len(m.owned)
	}
	if owned != simPartitions {
		s.Fatalf("%d partitions have an owner, want %d", owned, simPartitions)
	}
	s.wantReplay(s.log.end, s.durable(s.c))
}

// reset forgets the membership; a static member does not know its id after a restart either.
func (m *simMember) reset() {
	m.id, m.generation, m.owned, m.join, m.sync, m.pending = "", 0, nil, nil, nil, nil
}

// restart is a process that died and came back.
func (m *simMember) restart() {
	m.reset()
	m.paused = m.sim.rng.IntN(2) == 0
}

// act does the next thing that a client would do.
func (m *simMember) act() {
	switch {
	case m.join != nil:
		m.joined()
	case m.sync != nil:
		m.synced()
	case m.generation == 0:
		m.rejoin()
	case m.sim.rng.IntN(3) == 0:
		m.heartbeat()
	default:
		m.commit()
	}
}

func (m *simMember) rejoin() {
	req := joinRequest("g")
	req.MemberID = m.id
	if m.static {
		req.InstanceID = m.name
	}
	m.owned, m.pending = nil, nil
	m.join = m.sim.fixture.join(req)
}

func (m *simMember) joined() {
	if len(m.join.answers) == 0 {
		return
	}
	got := m.join.get()
	m.join = nil
	switch {
	case errors.Is(got.Err, ErrMemberIDRequired):
		m.id = got.MemberID
		m.rejoin()
	case errors.Is(got.Err, ErrUnknownMember), errors.Is(got.Err, ErrFencedInstance):
		m.reset()
	case got.Err != nil:
	default:
		m.id, m.generation = got.MemberID, got.Generation
		m.sync = m.sim.fixture.sync(SyncRequest{
			Group: "g", MemberID: m.id, InstanceID: m.instance(), Generation: m.generation, Assignments: assign(got),
		})
	}
}

// assign shares the partitions out among the members, if this one leads and has to.
func assign(got JoinResponse) (all []Assignment) {
	if got.SkipAssignment || len(got.Members) == 0 {
		return nil
	}
	for i, mem := range got.Members {
		var data []byte
		for p := i; p < simPartitions; p += len(got.Members) {
			data = append(data, byte(p))
		}
		all = append(all, Assignment{mem.ID, data})
	}
	return all
}

func (m *simMember) instance() string {
	if m.static {
		return m.name
	}
	return ""
}

func (m *simMember) synced() {
	if len(m.sync.answers) == 0 {
		return
	}
	got := m.sync.get()
	m.sync = nil
	if got.Err != nil {
		m.failed(got.Err)
		return
	}
	s := m.sim
	if m.generation < s.highest {
		// It was slow to ask. Its heartbeat will tell; it must not be able to commit.
		return
	}
	s.highest = m.generation
	for _, b := range got.Assignment {
		p := int32(b)
		key := fmt.Sprint(m.generation, "/", p)
		if owner, taken := s.owner[key]; taken && owner != m.name {
			s.Fatalf("partition %d of generation %d belongs to %s and to %s", p, m.generation, owner, m.name)
		}
		s.owner[key] = m.name
		m.owned = append(m.owned, p)
		m.next[p] = max(s.offset("g", "t", p), 0)
	}
}

// failed is what a client does about an error.
func (m *simMember) failed(err error) {
	switch {
	case errors.Is(err, ErrRebalanceInProgress):
		m.generation = 0
	case errors.Is(err, ErrUnknownMember), errors.Is(err, ErrIllegalGeneration), errors.Is(err, ErrFencedInstance):
		m.reset()
	case errors.Is(err, ErrNotCoordinator):
	default:
		m.sim.Fatalf("%s: unexpected %v", m.name, err)
	}
}

func (m *simMember) heartbeat() {
	err := m.sim.c.Heartbeat(HeartbeatRequest{Group: "g", MemberID: m.id, InstanceID: m.instance(), Generation: m.generation})
	if err != nil {
		m.failed(err)
	}
}

// commit has done some work on one of its partitions.
func (m *simMember) commit() {
	if len(m.owned) == 0 {
		return
	}
	p := m.owned[m.sim.rng.IntN(len(m.owned))]
	m.next[p] += 1 + m.sim.rng.Int64N(5)
	req := CommitRequest{
		Group: "g", MemberID: m.id, InstanceID: m.instance(), Generation: m.generation,
		Commits: []Commit{{Topic: "t", Partition: p, Offset: m.next[p], LeaderEpoch: -1, Metadata: strings.Repeat("x", m.sim.rng.IntN(4))}},
	}
	m.pending = append(m.pending, pendingCommit{p, m.next[p], m.sim.fixture.commit(req)})
}

// collect takes the answers to commits.
func (m *simMember) collect() {
	for len(m.pending) > 0 && len(m.pending[0].answer.answers) > 0 {
		p := m.pending[0]
		m.pending = m.pending[1:]
		got := p.answer.get()
		if got.Err != nil {
			m.failed(got.Err)
			return
		}
		if p.offset < m.sim.acked[p.partition] {
			m.sim.Fatalf("%s: commit of %d was accepted after %d", m.name, p.offset, m.sim.acked[p.partition])
		}
		m.sim.acked[p.partition] = p.offset
		m.sim.commits++
	}
}
