package producer

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var (
	simulations = flag.Int("simulations", 0, "random simulations to run; 0 means 3000, and 300 with -short")
	simSeed     = flag.Uint64("seed", 0, "run this one simulation")
)

// modelPartition is what a broker's partition does with batches of idempotent producers: what Kafka does, as TestModelAgainstBrokers checks.
type modelPartition struct {
	id        TopicID
	log       []modelBatch
	next      int64
	start     int64
	high      int64                     // the high watermark: what lies below it is on all replicas
	producers map[identity][]modelBatch // the last five of each that is remembered
	limit     int32                     // records of a batch
}

// limitMax is more than any batch has.
const limitMax = 1 << 20

type modelBatch struct {
	of     identity
	base   int32
	n      int32
	offset int64
	values []int
}

func newModelPartition(id byte) *modelPartition {
	return &modelPartition{id: TopicID{id}, producers: map[identity][]modelBatch{}, limit: limitMax}
}

// append takes a batch.
func (p *modelPartition) append(b modelBatch) (verdict, int64) {
	if b.n > p.limit {
		return refused, -1
	}
	known := p.producers[b.of]
	for _, x := range known {
		if x.base == b.base && x.n == b.n {
			return stored, x.offset
		}
	}
	if len(known) > 0 {
		if last := known[len(known)-1]; sequenceAfter(last.base, last.n) != b.base {
			return outOfOrder, -1
		}
	}
	b.offset = p.next
	p.next += int64(b.n)
	p.log = append(p.log, b)
	known = append(slices.Clone(known), b)
	p.producers[b.of] = known[max(len(known)-5, 0):]
	return stored, b.offset
}

// describe is DescribeProducers.
func (p *modelPartition) describe(of identity) (present bool, last int32) {
	known := p.producers[of]
	if len(known) == 0 {
		return false, 0
	}
	b := known[len(known)-1]
	return true, sequenceAfter(b.base, b.n-1)
}

// readBack reads the log from an offset on.
func (p *modelPartition) readBack(from int64, of identity) (there map[int32]bool, complete bool) {
	there = map[int32]bool{}
	for _, b := range p.log {
		if b.of == of && b.offset >= max(from, p.start) && b.offset < p.high {
			there[b.base] = true
		}
	}
	return there, from >= p.start
}

// lead gives the partition another leader, which lacks what no replica but the old one had.
func (p *modelPartition) lead() {
	p.log = slices.DeleteFunc(p.log, func(b modelBatch) bool { return b.offset >= p.high })
	p.next = p.high
	for of := range p.producers {
		var known []modelBatch
		for _, b := range p.log {
			if b.of == of {
				known = append(known, b)
			}
		}
		if p.producers[of] = known[max(len(known)-5, 0):]; len(known) == 0 {
			delete(p.producers, of)
		}
	}
}

// forget forgets all producers; restart all but the last batch of each.
func (p *modelPartition) forget() { clear(p.producers) }
func (p *modelPartition) restart() {
	for of, known := range p.producers {
		p.producers[of] = known[len(known)-1:]
	}
}

// simulation is one random run of an agent that is killed, against partitions whose answers get lost, with a journal that survives.
type simulation struct {
	t     *testing.T
	rnd   *rand.Rand
	now   time.Time
	parts []*modelPartition

	// what survives a kill
	journal map[ID]*Batch
	order   []ID
	floors  map[laneKey]int64
	entry   uint64
	values  map[ID][]int

	// what does not
	core    *core
	todo    []action
	content map[*Batch][]int
	network []request // asked and not answered
	old     []request // of connections that were cut: they may still arrive

	nextID  int64
	next    int // value
	dropped map[int]bool
	unknown int
	trace   []string
	steps   int
	killed  bool
}

// request is one batch on its way to a broker, or its answer on the way back.
type request struct {
	lane     *lane
	batch    *Batch
	what     modelBatch
	part     int
	answered bool
	verdict  verdict
	base     int64
	refusal  *refusal
}

func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		simulate(t, *simSeed)
		return
	}
	n := *simulations
	switch {
	case n == 0 && testing.Short():
		n = 300
	case n == 0:
		n = 3000
	}
	base := uint64(time.Now().UnixNano())
	for i := range n {
		if simulate(t, base+uint64(i)); t.Failed() {
			return
		}
	}
}

func simulate(t *testing.T, seed uint64) {
	s := &simulation{t: t, rnd: rand.New(rand.NewPCG(seed, 2)), now: time.Unix(1e9, 0), parts: []*modelPartition{newModelPartition(1), newModelPartition(2)},
		journal: map[ID]*Batch{}, floors: map[laneKey]int64{}, values: map[ID][]int{}, dropped: map[int]bool{}, entry: 1}
	defer func() {
		if t.Failed() {
			t.Logf("run again with -run TestSimulation -args -seed %d\n%s", seed, fmt.Sprint(len(s.trace)))
			for _, x := range s.trace[max(len(s.trace)-300, 0):] {
				t.Log(x)
			}
		}
	}()
	s.launch()
	for range 150 {
		s.act()
	}
	s.quiesce()
	s.check()
}

func (s *simulation) say(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *simulation) chance(n int) bool { return s.rnd.IntN(n) == 0 }

// launch starts an agent with what the journal holds.
func (s *simulation) launch() {
	s.say("launch")
	s.core = newCore(5, Resend)
	s.content, s.todo = map[*Batch][]int{}, nil
	for _, r := range s.network {
		s.leave(r)
	}
	s.network = nil
	for _, id := range s.order {
		b := s.journal[id]
		if b == nil {
			continue
		}
		found := *b
		found.flight, found.bundle = flight{}, nil
		s.content[&found] = s.values[id]
		s.core.recovered(&found)
	}
	for key, offset := range s.floors {
		s.core.floor(key.topic, key.partition, offset)
	}
	for i, p := range s.parts {
		s.core.metadata("cluster", fmt.Sprint("topic", i), p.id, []int32{0})
	}
	s.nextID++
	s.core.identified(identity{s.nextID, 0, true})
}

// act lets one thing happen.
func (s *simulation) act() {
	s.now = s.now.Add(time.Duration(s.rnd.IntN(400)) * time.Millisecond)
	switch n := s.rnd.IntN(100); {
	case n < 25:
		s.produce()
	case n < 55:
		s.arrive()
	case n < 75:
		s.answer()
	case n < 82:
		s.cut()
	case n < 86:
		s.late()
	case n < 89 && len(s.old) == 0 && len(s.network) == 0: // long enough that no old connection is left
		s.say("forget")
		s.now = s.now.Add(aloneAfter + time.Minute)
		p := s.parts[s.rnd.IntN(2)]
		p.high = p.next // by then
		p.forget()
	case n < 91:
		s.changeLeader()
	case n < 93:
		s.say("broker restarts")
		s.cut()
		s.parts[s.rnd.IntN(2)].restart()
	case n < 96 && len(s.old) == 0:
		p := s.parts[s.rnd.IntN(2)]
		p.limit = []int32{limitMax, limitMax, 3, 1, 0}[s.rnd.IntN(5)] // with 0 every record is refused for itself
		s.say("limit %d", p.limit)
	default:
		s.say("kill")
		s.launch()
	}
	s.work()
}

// changeLeader has a broker die. Of it nothing arrives any more.
func (s *simulation) changeLeader() {
	part := s.rnd.IntN(2)
	s.say("another leader of %d, from %d on", part, s.parts[part].high)
	s.cutOne(part)
	s.old = slices.DeleteFunc(s.old, func(r request) bool { return r.part == part })
	s.parts[part].lead()
}

// produce writes a bundle to the journal and hands it to the core.
func (s *simulation) produce() {
	if len(s.todo) > 0 {
		return
	}
	var batches []*Batch
	for range 1 + s.rnd.IntN(2) {
		n := 1 + s.rnd.IntN(4)
		b := &Batch{Topic: fmt.Sprint("topic", s.rnd.IntN(2)), Records: int32(n), Lines: int64(n)}
		for range n {
			s.content[b] = append(s.content[b], s.next)
			s.next++
		}
		batches = append(batches, b)
	}
	if err := s.core.assign(batches); err != nil {
		s.t.Fatal(err)
	}
	s.write(len(s.order), batches)
	if s.chance(20) { // written, and never known of
		s.say("kill after a write")
		s.launch()
		return
	}
	s.core.enqueue(batches)
}

func (s *simulation) write(at int, batches []*Batch) {
	for i, b := range batches {
		b.ID = ID{s.entry, uint32(i)}
		kept := *b
		s.journal[b.ID], s.values[b.ID] = &kept, s.content[b]
		s.order = slices.Insert(s.order, at+i, b.ID)
		s.say("journal %v: %s producer %d sequence %d %v", b.ID, b.Topic, b.Producer, b.BaseSequence, s.content[b])
	}
	s.entry++
}

// work does what the core decides; a kill may come between any two actions.
func (s *simulation) work() {
	for {
		s.todo = append(s.todo, s.core.next(s.now)...)
		if len(s.todo) == 0 {
			return
		}
		a := s.todo[0]
		s.todo = s.todo[1:]
		s.perform(&a)
		if s.steps++; s.steps > 100_000 {
			s.t.Fatal("it does not come to rest")
		}
		if !s.killed && s.chance(60) {
			s.say("kill between actions")
			s.launch()
		}
	}
}

func (s *simulation) partOf(l *lane) (int, *modelPartition) {
	i := int(l.key.name[5] - '0')
	return i, s.parts[i]
}

func (s *simulation) perform(a *action) {
	i, p := s.partOf(a.lane)
	switch a.kind {
	case doSend:
		b := a.batch
		s.say("send %v", b.ID)
		s.network = append(s.network, request{lane: a.lane, batch: b, part: i,
			what: modelBatch{of: b.identity(), base: b.BaseSequence, n: b.Records, values: s.content[b]}})
		s.checkWindow(a.lane)
	case doAck:
		for _, b := range a.olds {
			s.say("acknowledged %v", b.ID)
			delete(s.journal, b.ID)
		}
		if a.next >= 0 {
			s.floors[a.lane.key] = a.next
		}
	case doFloor:
		s.floors[a.lane.key] = a.base
	case doReplace:
		s.replace(a)
	case askFloor:
		s.core.floored(a.lane, p.high, nil, s.now)
	case askState:
		present, last := p.describe(a.ident)
		s.say("describe %s producer %d: %v %d", a.lane.key.name, a.ident.id, present, last)
		s.core.described(a.lane, a.ident, present, last, nil, s.now)
	case askLog:
		there, complete := p.readBack(a.base, a.ident)
		s.say("read back from %d: %v", a.base, there)
		s.core.wasRead(a.lane, a.ident, there, complete, nil, s.now)
	case askID:
		s.nextID++
		s.core.gotID(a.lane, identity{s.nextID, 0, true}, nil, s.now)
	case sayUnknown:
		s.say("unknown: %v", a.err)
		s.unknown += len(a.olds)
	}
}

// checkWindow checks the rules on how much may be under way.
func (s *simulation) checkWindow(l *lane) {
	n := 0
	for _, b := range l.queue {
		if b.flight.state == flying {
			n++
		}
	}
	if n > inFlightMax {
		s.t.Fatalf("%d batches of a partition under way", n)
	}
	if h := l.head(); h.identity() != l.trusted && n > 1 {
		s.t.Fatalf("%d batches under way of an identity that the broker may not know", n)
	}
}

func (s *simulation) replace(a *action) {
	var news []*Batch
	for _, p := range a.news {
		var values []int
		for i, v := range s.content[p.of] {
			switch {
			case i < p.from || i >= p.to:
			case slices.Contains(p.drop, i):
				s.say("dropped %d", v)
				s.dropped[v] = true
			default:
				values = append(values, v)
			}
		}
		if p.batch != nil {
			s.content[p.batch] = values
			news = append(news, p.batch)
		}
	}
	at := slices.Index(s.order, a.olds[0].ID)
	for _, b := range a.olds {
		s.say("replaced %v", b.ID)
		delete(s.journal, b.ID)
	}
	s.write(at, news)
}

// arrive lets the next request of a connection reach its broker.
func (s *simulation) arrive() {
	part := s.rnd.IntN(2)
	for i := range s.network {
		if r := &s.network[i]; !r.answered && r.part == part {
			s.take(r)
			return
		}
	}
}

func (s *simulation) take(r *request) {
	r.answered = true
	p := s.parts[r.part]
	if s.chance(12) {
		r.verdict = unstored // such as NOT_ENOUGH_REPLICAS
		return
	}
	r.verdict, r.base = p.append(r.what)
	if r.verdict == refused {
		r.refusal = &refusal{err: fmt.Errorf("too large"), tooLarge: true}
	}
	s.say("broker: %v producer %d sequence %d: verdict %d", r.what.values, r.what.of.id, r.what.base, r.verdict)
	if r.verdict == stored && s.chance(12) {
		r.verdict = lost // such as a timeout of the replicas
	}
}

// answer gives the agent the next answer of a connection.
func (s *simulation) answer() {
	part := s.rnd.IntN(2)
	for i := range s.network {
		if r := s.network[i]; r.part == part {
			if r.answered {
				s.network = slices.Delete(s.network, i, i+1)
				if r.verdict == stored { // is answered when all replicas have it
					s.parts[part].high = s.parts[part].next
				}
				s.core.answered(r.lane, r.batch, r.verdict, r.refusal, r.base, s.now)
			}
			return
		}
	}
}

// cut cuts a connection: answers are lost, and requests may arrive later.
func (s *simulation) cut() { s.cutOne(s.rnd.IntN(2)) }

func (s *simulation) cutOne(part int) {
	s.say("cut %d", part)
	var stay []request
	for _, r := range s.network {
		if r.part != part {
			stay = append(stay, r)
			continue
		}
		if s.chance(2) {
			s.leave(r)
		}
		s.core.answered(r.lane, r.batch, lost, nil, -1, s.now)
	}
	s.network = stay
}

// leave leaves a request in an old connection. Where batches are refused it is gone: one that waits there until its record was dropped and
// the limit raised again would be taken, and no agent could tell.
func (s *simulation) leave(r request) {
	if !r.answered && s.parts[r.part].limit == limitMax {
		s.old = append(s.old, r)
	}
}

// late lets a request of an old connection arrive, or be gone.
func (s *simulation) late() {
	if len(s.old) == 0 {
		return
	}
	r := s.old[0]
	s.old = s.old[1:]
	if !r.answered && s.chance(2) {
		s.say("late:")
		s.parts[r.part].append(r.what)
	}
}

// quiesce lets everything come to its end.
func (s *simulation) quiesce() {
	s.say("quiesce")
	s.killed = true
	for range 3000 {
		s.now = s.now.Add(200 * time.Millisecond)
		s.arrive()
		s.arrive()
		s.answer()
		s.late()
		for _, p := range s.parts {
			p.high = p.next
		}
		s.work()
		if len(s.journal) == 0 && len(s.network) == 0 && len(s.old) == 0 {
			return
		}
	}
	s.t.Errorf("%d batches are never settled", len(s.journal))
	for _, l := range s.core.order {
		s.t.Logf("%s: %s, %d queued, %d under way, head %+v", l.key.name, l.phase, len(l.queue), l.flights, l.head())
	}
}

// check compares the logs with what was written.
func (s *simulation) check() {
	times := map[int]int{}
	for _, p := range s.parts {
		for _, b := range p.log {
			for _, v := range b.values {
				times[v]++
			}
		}
	}
	for v := range s.next {
		want := 1
		if s.dropped[v] {
			want = 0
		}
		if times[v] != want && !(s.unknown > 0 && times[v] > want) {
			s.t.Errorf("value %d is stored %d times, want %d (%d batches unknown)", v, times[v], want, s.unknown)
		}
	}
	if s.unknown > 0 {
		s.t.Errorf("%d batches unknown, and nothing happened that would make them so", s.unknown)
	}
}
