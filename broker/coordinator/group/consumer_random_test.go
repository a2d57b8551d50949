package group

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator"
	"github.com/sluice-io/sluice/internal/record"
)

// consumerSim is a group of the consumer protocol whose members join, work, are slow, freeze, die
// and come back at random, while topics come, grow and go and the coordinator is killed.
type consumerSim struct {
	*consumerFixture
	rng     *rand.Rand
	clients []*simConsumer
	ids     int
	acked   map[topicPartition]int64 // highest offset whose commit was answered with success
	epoch   int32                    // highest group epoch that was answered to anyone
	commits int
}

// simConsumer is a process that is a member, by what it believes of itself.
type simConsumer struct {
	*consumer
	sim     *consumerSim
	frozen  bool
	hasty   bool // gives up and takes partitions at once
	beating *waiting[ConsumerHeartbeatResponse]
	next    map[topicPartition]int64 // offset of what it works on next
	pending []simCommit
}

type simCommit struct {
	tp     topicPartition
	offset int64
	answer *waiting[CommitResponse]
}

func TestRandomConsumerGroups(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 12
	}
	commits := 0
	for seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			s := newConsumerSim(t, seed)
			for i := range 800 {
				s.step()
				if i%100 == 0 {
					s.wantConsumerReplay()
				}
			}
			s.heal()
			commits += s.commits
		})
	}
	if commits < int(seeds)*50 {
		t.Errorf("only %d commits in all: the members do not get to work", commits)
	}
}

func newConsumerSim(t *testing.T, seed uint64) *consumerSim {
	rng := rand.New(rand.NewPCG(seed, 7))
	cfg := Config{ConsumerSessionTimeout: 8 * time.Second}
	if rng.IntN(2) == 0 {
		cfg.ConsumerAssignmentInterval = always(time.Second)
	}
	s := &consumerSim{consumerFixture: newConsumerFixture(t, cfg), rng: rng, acked: make(map[topicPartition]int64)}
	s.topic("u", 3)
	for i := range 5 {
		m := &simConsumer{sim: s, hasty: i != 1}
		m.consumer = s.consumer("", "t", "u")
		if i%2 == 1 {
			instance := fmt.Sprint("i", i)
			m.instance = &instance
		}
		if i == 2 && seed%3 == 0 {
			m.topics = []string{"t"}
		}
		if i == 4 && seed%3 == 1 {
			pattern := "[tu].*"
			m.topics, m.regex = nil, &pattern
		}
		m.rebalanceTimeout = 20 * time.Second
		s.clients = append(s.clients, m)
		m.restart()
	}
	return s
}

func (s *consumerSim) step() {
	m := s.clients[s.rng.IntN(len(s.clients))]
	switch n := s.rng.IntN(60); n {
	case 0:
		s.crash()
	case 1:
		s.clock.advance(time.Duration(s.rng.IntN(9000)) * time.Millisecond)
	case 2:
		m.frozen = !m.frozen
	case 3:
		m.restart()
	case 4:
		s.log.held = !s.log.held
	case 5, 6, 7:
		s.log.commit()
	case 8:
		m.goAway(leaveEpoch)
	case 9:
		m.goAway(leaveStaticEpoch)
	case 10:
		s.changeTopics()
	case 11:
		m.beating = nil // the answer is lost
		m.unsure = true
	default:
		s.clock.advance(time.Duration(s.rng.IntN(200)) * time.Millisecond)
		if !m.frozen {
			m.act()
		}
	}
	s.check()
}

func (s *consumerSim) changeTopics() {
	switch u := s.image.Topic("u"); {
	case u == nil:
		s.topic("u", 1+s.rng.IntN(3))
	case s.rng.IntN(3) == 0:
		id := u.ID
		s.image = s.image.Without("u")
		s.c.SetImage(s.image)
		s.c.TopicsDeleted("u")
		for tp := range s.acked { // a topic that is made again begins again
			if tp.topic == id {
				delete(s.acked, tp)
			}
		}
		for _, m := range s.clients { // the simulation gives the next one the same id
			for tp := range m.next {
				if tp.topic == id {
					delete(m.next, tp)
				}
			}
			m.pending = slices.DeleteFunc(m.pending, func(c simCommit) bool { return c.tp.topic == id })
		}
	case len(u.Partitions) < 6:
		s.topic("u", len(u.Partitions)+1)
	}
}

// crash kills the coordinator; another takes over. What was appended and not yet committed is lost
// or not.
func (s *consumerSim) crash() {
	end := s.log.hw
	if s.rng.IntN(2) == 0 {
		end = s.log.end
	}
	log := s.log.prefix(end)
	s.c.Resign(0, -1)
	s.elect(log)
	s.wantConsumerReplay()
	if s.rng.IntN(2) == 0 {
		live := s.consumerRecords(s.c)
		s.elect(s.compacted(log, s.rng.Int64N(end+1)))
		if got := s.consumerRecords(s.c); got != live {
			s.Fatalf("replayed after compaction:\n%s\nbefore:\n%s", got, live)
		}
	}
}

// compacted is a log that was compacted up to an offset: of each key there only the last record is
// left, and not even that if it is a tombstone.
func (f *fixture) compacted(log *memLog, upTo int64) *memLog {
	f.Helper()
	type kept struct {
		offset     int64
		key, value []byte
	}
	var all []kept
	last := make(map[string]int64)
	d := record.NewDecompressor(0)
	for _, b := range log.batches {
		err := b.Each(d, func(r *record.Record) error {
			all = append(all, kept{r.Offset, bytes.Clone(r.Key), bytes.Clone(r.Value)})
			if r.Offset < upTo {
				last[string(r.Key)] = r.Offset
			}
			return nil
		})
		if err != nil {
			f.Fatal(err)
		}
	}
	clean := &memLog{end: log.end, hw: log.hw}
	for _, r := range all {
		if r.offset < upTo && (last[string(r.key)] != r.offset || r.value == nil) {
			continue
		}
		var build record.Builder
		build.Append(0, r.key, r.value, nil)
		b, err := build.Build(record.BuildOptions{BaseOffset: r.offset}, nil)
		if err != nil {
			f.Fatal(err)
		}
		clean.batches = append(clean.batches, b)
	}
	return clean
}

func (s *consumerSim) state() (c *consumerGroup) {
	_ = s.c.do("g", func(m *machine, _ time.Time, _ *coordinator.Actions) {
		if g := m.groups["g"]; g != nil {
			c = g.consumer
		}
	})
	return c
}

// check looks for what must never be.
func (s *consumerSim) check() {
	s.Helper()
	for _, m := range s.clients {
		m.collect()
	}
	c := s.state()
	if c == nil {
		return
	}
	if c.epoch < s.epoch {
		s.Fatalf("group epoch %d after %d was answered", c.epoch, s.epoch)
	}
	owner := make(map[topicPartition]string)
	for id, mem := range c.members {
		for _, held := range []heldPartitions{mem.assigned, mem.revoking} {
			for tp, epoch := range held.all() {
				if other, taken := owner[tp]; taken {
					s.Fatalf("%v is held by %s and %s", tp, id, other)
				}
				owner[tp] = id
				if epoch > c.epoch {
					s.Fatalf("%v was given to %s in epoch %d, the group is in %d", tp, id, epoch, c.epoch)
				}
			}
		}
		if mem.epoch > c.targetEpoch || c.targetEpoch > c.epoch {
			s.Fatalf("member epoch %d, target epoch %d, group epoch %d", mem.epoch, c.targetEpoch, c.epoch)
		}
	}
	if len(owner) != len(c.owners) {
		s.Fatalf("owners %v, want %v", c.owners, owner)
	}
	working := make(map[topicPartition]string)
	for _, m := range s.clients {
		mem := c.members[m.id]
		if mem == nil || mem.epoch < 0 || m.epoch == joinEpoch {
			continue
		}
		for topic, partitions := range m.owned {
			for _, p := range partitions {
				tp := topicPartition{topic, p}
				if other, taken := working[tp]; taken {
					s.Fatalf("%s and %s both work on %v", m.id, other, tp)
				}
				working[tp] = m.id
			}
		}
	}
}

// heal lets everything work, and expects a group that is where it should be.
func (s *consumerSim) heal() {
	s.Helper()
	s.log.held = false
	s.log.commit()
	if s.image.Topic("u") == nil {
		s.topic("u", 2)
	}
	for _, m := range s.clients {
		m.frozen, m.hasty = false, true
	}
	for range 400 {
		s.clock.advance(150 * time.Millisecond)
		for _, m := range s.clients {
			m.act()
		}
		s.check()
	}
	d := s.describeConsumer("g")
	if d.State != "Stable" || len(d.Members) != len(s.clients) {
		s.Fatalf("%s with %d members: %+v", d.State, len(d.Members), d)
	}
	got, want := 0, len(s.image.Topic("t").Partitions)+len(s.image.Topic("u").Partitions)
	for _, m := range s.clients {
		for topic, partitions := range m.owned {
			if s.image.TopicByID(topic) != nil {
				got += len(partitions)
			}
		}
	}
	if got != want {
		s.Fatalf("%d partitions are worked on, want %d", got, want)
	}
	s.wantConsumerReplay()
}

// restart is a process that died and came back: it knows nothing, and has another id.
func (m *simConsumer) restart() {
	m.sim.ids++
	m.id = fmt.Sprintf("m%d", m.sim.ids)
	m.begin()
}

// begin is a member that has lost its place.
func (m *simConsumer) begin() {
	m.epoch, m.owned, m.given, m.news = joinEpoch, partitionSet{}, partitionSet{}, false
	m.next, m.pending, m.beating = make(map[topicPartition]int64), nil, nil
	m.slow = true // take must not give up by itself
}

func (m *simConsumer) goAway(epoch int32) {
	if m.epoch <= joinEpoch || epoch == leaveStaticEpoch && m.instance == nil {
		return
	}
	m.leave(epoch)
	m.restart()
}

// act does the next thing that a client would do.
func (m *simConsumer) act() {
	switch {
	case m.beating != nil:
		m.answered()
	case m.sim.rng.IntN(3) > 0 && m.commit():
	default:
		m.beating = m.sim.heartbeat(m.request())
		m.answered()
	}
}

func (m *simConsumer) answered() {
	if len(m.beating.answers) == 0 {
		return
	}
	resp := m.beating.get()
	m.beating = nil
	if resp.Err != nil {
		m.failed(resp.Err)
		return
	}
	if m.epoch != joinEpoch && resp.Epoch < m.epoch {
		m.sim.Fatalf("%s went from epoch %d to %d", m.id, m.epoch, resp.Epoch)
	}
	m.take(resp)
	m.sim.epoch = max(m.sim.epoch, m.epoch)
	m.news = true
	if m.hasty || m.sim.rng.IntN(4) == 0 {
		m.work()
	}
}

// work gives up what is no longer given, and begins with what is, from the committed offsets.
func (m *simConsumer) work() {
	m.revoke()
	for tp := range m.next {
		if !m.owned.has(tp.topic, tp.partition) {
			delete(m.next, tp)
		}
	}
}

// failed is what a client does about an error.
func (m *simConsumer) failed(err error) {
	switch {
	case errors.Is(err, ErrUnknownMember), errors.Is(err, ErrFencedMemberEpoch), errors.Is(err, ErrFencedInstance),
		errors.Is(err, ErrUnreleasedInstance):
		m.begin()
	case errors.Is(err, ErrNotCoordinator):
		m.unsure = true
	case errors.Is(err, ErrStaleMemberEpoch):
	default:
		m.sim.Fatalf("%s: unexpected %v", m.id, err)
	}
}

// commit has done some work on one of its partitions; false if it has none.
func (m *simConsumer) commit() bool {
	var all []topicPartition
	for _, topic := range sortedTopics(m.owned) {
		for _, p := range m.owned[topic] {
			if m.sim.image.TopicByID(topic) != nil {
				all = append(all, topicPartition{topic, p})
			}
		}
	}
	if len(all) == 0 {
		return false
	}
	tp := all[m.sim.rng.IntN(len(all))]
	if _, begun := m.next[tp]; !begun && !m.fetch(tp) {
		return false
	}
	m.next[tp] += 1 + m.sim.rng.Int64N(5)
	req := CommitRequest{Group: "g", MemberID: m.id, InstanceID: "", Generation: m.epoch, ByEpoch: true, Commits: []Commit{{
		Topic: m.topicName(tp.topic), TopicID: tp.topic, Partition: tp.partition, Offset: m.next[tp], LeaderEpoch: -1,
	}}}
	m.pending = append(m.pending, simCommit{tp, m.next[tp], m.sim.fixture.commit(req)})
	return true
}

func (m *simConsumer) topicName(id cluster.TopicID) string { return m.sim.image.TopicByID(id).Name }

// fetch asks where to begin, as the member that it is.
func (m *simConsumer) fetch(tp topicPartition) bool {
	found, err := m.sim.c.Offsets(FetchRequest{Group: "g", MemberID: m.id, MemberEpoch: m.epoch, Partitions: []Partition{{
		Topic: m.topicName(tp.topic), TopicID: tp.topic, Partition: tp.partition,
	}}})
	if err != nil {
		m.failed(err)
		return false
	}
	m.next[tp] = max(found[0].Offset, 0)
	return true
}

// collect takes the answers to commits.
func (m *simConsumer) collect() {
	for len(m.pending) > 0 && len(m.pending[0].answer.answers) > 0 {
		p := m.pending[0]
		m.pending = m.pending[1:]
		if err := p.answer.get().Err; err != nil {
			if errors.Is(err, ErrStaleMemberEpoch) {
				delete(m.next, p.tp) // it begins from what is committed
			}
			m.failed(err)
			return
		}
		if p.offset < m.sim.acked[p.tp] {
			m.sim.Fatalf("%s: commit of %d in %v was accepted after %d", m.id, p.offset, p.tp, m.sim.acked[p.tp])
		}
		m.sim.acked[p.tp] = p.offset
		m.sim.commits++
	}
}
