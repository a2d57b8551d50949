package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/producer/brokermodel"
	"github.com/sluice-io/sluice/internal/record"
)

var chaosRuns = flag.Int("chaos", 0, "chaotic schedules to run; 0 means 150, and 20 with -short")

// TestChaos runs the schedules of TestRandomSchedules on the whole way of a line: files, a journal on a file system that loses what was not
// synced, the sender, and brokers that are down, slow, cut off, refuse, forget, and change leaders. The agent is killed at random and at
// every step of the journal, of the network and of a checkpoint. In half of the schedules it runs several pipelines, which share the files,
// the process and the topic. Of each, every line must be in the log, from each place in a file once, those of a
// file in order; lines may come twice only after a power cut that took what the journal had not synced.
//
// All of it is one thread with a clock of its own. The brokers are brokermodel's, which is checked against real ones.
func TestChaos(t *testing.T) {
	if *seedFlag != 0 {
		runChaos(t, *seedFlag)
		return
	}
	t.Parallel()
	n := *chaosRuns
	switch {
	case n == 0 && testing.Short():
		n = 20
	case n == 0:
		n = 150
	}
	base := seedsFrom(*chaosRuns)
	t.Logf("%d seeds from %d on", n, base)
	for i := range n {
		seed := base + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runChaos(t, seed) })
	}
}

const chaosPipeline = `
pipeline: NAME
collect:
  file: {include: [INCLUDE], identity: true FORM}
  labels: {of: NAME}
topic: {name: lines, partitions: 3, compression: none, batch: {bytes: BATCH}, max_in_flight: FLIGHT}
`

// chaosIncludes are what pipelines collect: all of them find all files, by one name or several.
var chaosIncludes = []string{`"DIR/cur/app.log*", "DIR/v*/app.log*"`, `"DIR/v*/app.log*"`}

const (
	chaosBrokers    = 3
	chaosPartitions = 3
	// fuseMax is after how many steps of the journal, the network and checkpoints an agent is killed at the latest, when it is to be.
	fuseMax = 60
	// chaosJournalBytes bounds the journal, so that it is full at times.
	chaosJournalBytes = 64 << 10
)

func runChaos(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	g := newStage(t, rnd, scheduleDir(t, 'c', seed))
	g.dialect = dialects[seed%2] // what is held back of a record of several lines is for TestRandomSchedules
	m := newMachine(g)
	for i := range 1 + rnd.IntN(2)*(1+rnd.IntN(2)) {
		m.join(fmt.Sprint("p", i), chaosIncludes[min(i, 1)*rnd.IntN(2)])
	}
	g.crew[0].run("TestChaos", seed)
	if m.unknown > 0 {
		t.Errorf("%d batches are unknown, and nothing happened that would make them so", m.unknown)
	}
}

// fuse counts steps until the agent is killed. What is done after it has blown has no effect.
type fuse struct {
	left  int // 0: it is not lit
	blown bool
	gone  chan struct{} // closed when it blows; may be nil
	mu    sync.Mutex
}

// step says whether a step is still done. part is how much of it, in percent, at the moment of the kill.
func (f *fuse) step(part func() int) (percent int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.blown:
		return 0
	case f.left == 0:
		return 100
	}
	if f.left--; f.left > 0 {
		return 100
	}
	f.blown = true
	if f.gone != nil {
		close(f.gone)
	}
	return part()
}

// machine is a process with its disk, and the brokers.
type machine struct {
	stage   *stage
	cluster *brokermodel.Cluster
	topic   *brokermodel.Topic
	worlds  []*chaosWorld
	fs      *crashFS
	fuse    fuse
	sync    bool // journals are synced before batches are sent
	down    [chaosBrokers]bool
	unknown int
	read    [chaosPartitions]decoded
}

func newMachine(g *stage) *machine {
	m := &machine{stage: g, cluster: brokermodel.New("cluster"), fs: newCrashFS(), sync: g.chance(2)}
	m.topic = m.cluster.Make("lines", chaosPartitions)
	m.fs.fuse = &m.fuse
	return m
}

// join adds a pipeline.
func (m *machine) join(name, include string) {
	text := strings.NewReplacer("NAME", name, "INCLUDE", include, "BATCH", []string{"1KiB", "4KiB", "1MiB"}[m.rnd().IntN(3)], "FLIGHT", fmt.Sprint(1+m.rnd().IntN(5))).Replace(chaosPipeline)
	w := &chaosWorld{machine: m, schedule: m.stage.join(name, text)}
	w.wire = &chaosWire{world: w}
	w.schedule.world = w
	m.worlds = append(m.worlds, w)
}

func (m *machine) rnd() *rand.Rand { return m.stage.rnd }

// note is the trace's.
func (m *machine) note(what string) { m.stage.crew[0].note(what) }

// decoded is what was decoded of a partition's log.
type decoded struct {
	batches int
	records []stored
}

// chaosWorld is what a pipeline has of its own: a journal, a sender, and its connections.
type chaosWorld struct {
	*machine
	schedule *schedule
	wire     *chaosWire

	runner *files
	log    *spool
	sender *producer.Sender
	woken  bool
}

func (w *chaosWorld) start(r *files, from uint64) {
	w.fuse.left = 0
	if !w.stage.up() {
		w.fuse.blown = false
	}
	var bundles []*producer.Bundle
	var floors []producer.Floor
	var err error
	w.log, bundles, floors, err = r.openJournal("journal-"+w.schedule.name, journal.Config{FS: w.fs, BytesMax: chaosJournalBytes, SegmentBytes: 4 << 10, Sync: w.sync, From: from})
	if err != nil {
		w.stage.t.Fatal(err)
	}
	cfg := r.senderConfig()
	cfg.Memory = nil // what a request holds is compared when it arrives
	cfg.OnUnknown = func(b []*producer.Batch) {
		w.unknown += len(b)
		r.batchesUnknown(b)
	}
	w.sender = producer.NewSender(r.log, w.log, w.wire, bundles, floors, cfg, func() { w.woken = true })
	r.dest, w.runner, w.woken = chaosDestination{w.sender}, r, true
	if w.stage.chance(2) {
		w.fuse.left = 1 + w.rnd().IntN(fuseMax)
	}
}

// chaosDestination is a sender that another turns.
type chaosDestination struct{ *producer.Sender }

func (chaosDestination) Prepare(context.Context, producer.TopicSpec) (producer.Topic, error) {
	return producer.Topic{}, errors.New("the schedule prepares")
}
func (chaosDestination) Close() {}

// handOver ends a sender.
func (w *chaosWorld) handOver() {
	w.wire.leaveAll()
	_ = w.log.journal.Close()
	w.sender, w.runner = nil, nil
	w.fuse.left = 0
}

func (w *chaosWorld) stop() {
	w.fuse.blown = false
	if w.stage.chance(6) {
		w.powerCut()
	}
}

// powerCut takes what was not synced, or some of it.
func (m *machine) powerCut() {
	m.note("  power cut")
	m.fs = m.fs.powerCut(m.rnd())
	m.fs.fuse = &m.fuse
	g := m.stage
	if !m.sync {
		g.doubles = true
	}
	if !slices.ContainsFunc(g.crew, func(s *schedule) bool { return s.previous != nil }) || !g.chance(4) {
		return
	}
	m.note("  the previous checkpoint") // the newest is damaged
	for _, s := range g.crew {
		s.checkpoint = s.previous
	}
	g.doubles = g.doubles || g.grew > 0
}

func (w *chaosWorld) killed() bool { return w.fuse.blown }

func (w *chaosWorld) checkpointed(names uint64) {
	if w.fuse.step(func() int { return 0 }) == 0 {
		return // killed between the checkpoint and what it lets go of
	}
	if err := w.runner.kept.checkpointed(names); err != nil && !w.fuse.blown {
		w.stage.t.Error(err)
	}
}

func (w *chaosWorld) hold() { w.wire.held = true }

func (w *chaosWorld) letGo() {
	w.fuse.left = 0
	w.wire.held = false
	w.down = [chaosBrokers]bool{}
	for _, p := range w.topic.Partitions {
		p.Unavailable, p.Full = false, false
		p.Commit() // followers catch up, also with what no answer came back for
	}
}

// turn lets a few things happen, or all that can.
func (w *chaosWorld) turn(all bool) (did bool) {
	if !all {
		for range w.rnd().IntN(8) {
			did = w.act(w.rnd().IntN(3)) || did
		}
		return did
	}
	for range 10_000 {
		if !w.act(0) && !w.act(1) && !w.act(2) {
			return did
		}
		did = true
	}
	w.stage.t.Fatal("sending does not come to rest")
	return did
}

// act lets one thing of a kind happen.
func (w *chaosWorld) act(kind int) bool {
	if w.sender == nil || w.fuse.blown {
		return false
	}
	switch kind {
	case 0:
		now := w.stage.now
		if due := w.sender.Due(); !w.woken && (due.IsZero() || now.Before(due)) {
			return false
		}
		w.woken = false
		w.sender.Turn(now)
		return true
	case 1:
		return w.wire.call()
	default:
		return w.wire.move()
	}
}

func (w *chaosWorld) ops() []scheduleOp {
	op := func(name string, do func()) scheduleOp { return scheduleOp{name, func(*schedule) { do() }} }
	return []scheduleOp{
		op("cut", w.cutAny), op("cut", w.cutAny), op("broker down", w.brokerDown), op("broker up", w.brokersUp), op("late", w.late), op("late", w.late),
		op("leader", w.moveLeader), op("too few in sync", w.refuse), op("disk full", w.fill), op("takes again", w.brokersUp), op("forget", w.forget),
		op("replicate", w.replicate), op("broker restart", w.restartBroker),
		op("fuse", w.light), op("fuse", w.light), op("fuse", w.light), {"start", (*schedule).start}, {"start", (*schedule).start}, {"start", (*schedule).start},
	}
}

func (m *machine) light() {
	if m.stage.up() && m.fuse.left == 0 {
		m.fuse.left = 1 + m.rnd().IntN(fuseMax)
	}
}

// anyone is one of the pipelines.
func (m *machine) anyone() *chaosWorld { return m.worlds[m.rnd().IntN(len(m.worlds))] }

func (m *machine) cutAny() { m.anyone().wire.cut(m.rnd().Int32N(chaosBrokers)) }
func (m *machine) late()   { m.anyone().wire.late() }

// cut cuts all connections of a broker.
func (m *machine) cut(broker int32) {
	for _, w := range m.worlds {
		w.wire.cut(broker)
	}
}

func (m *machine) brokerDown() {
	b := m.rnd().Int32N(chaosBrokers)
	m.cut(b)
	m.down[b] = true
}

func (m *machine) brokersUp() {
	left := m.fuse.left
	for _, w := range m.worlds {
		w.letGo()
	}
	m.fuse.left = left
}

func (m *machine) refuse() {
	m.topic.Partitions[m.rnd().IntN(chaosPartitions)].Unavailable = true
}

func (m *machine) fill() { m.topic.Partitions[m.rnd().IntN(chaosPartitions)].Full = true }

// replicate has all replicas of a partition catch up with its leader, which has not answered yet or whose answer is lost.
func (m *machine) replicate() { m.topic.Partitions[m.rnd().IntN(chaosPartitions)].Commit() }

// moveLeader gives a partition another leader, which may lack what no replica but the old one had.
func (m *machine) moveLeader() {
	p := m.topic.Partitions[m.rnd().IntN(chaosPartitions)]
	old := p.Leader
	p.Leader = (old + 1 + m.rnd().Int32N(chaosBrokers-1)) % chaosBrokers
	if m.stage.chance(2) {
		m.cut(old)
		for _, w := range m.worlds {
			w.wire.dropOf(old) // of a broker that is gone nothing arrives
		}
		if m.stage.chance(2) {
			m.note("  truncated")
			p.Truncate()
			m.read = [chaosPartitions]decoded{}
		}
	}
	p.Commit()
}

// forget has brokers forget producers: so long after they were last heard of that no old connection is left. A running agent has then sent
// nothing for that long either, and needs the time to have told copies from files, whose originals it remembers no longer.
func (m *machine) forget() {
	g := m.stage
	if g.up() {
		if g.nested {
			return
		}
		g.crew[0].sync()
		g.crew[0].settle()
		g.now = g.now.Add(11 * time.Minute)
	}
	if slices.ContainsFunc(m.worlds, func(w *chaosWorld) bool { return len(w.wire.net) > 0 || len(w.wire.old) > 0 }) {
		return
	}
	p := m.topic.Partitions[m.rnd().IntN(chaosPartitions)]
	p.Commit() // by then
	p.Forget()
}

func (m *machine) restartBroker() {
	b := m.rnd().Int32N(chaosBrokers)
	m.cut(b)
	for _, p := range m.topic.Partitions {
		if p.Leader == b {
			p.Restart()
		}
	}
}

// stored are the pipeline's records that consumers can read, of all partitions.
func (w *chaosWorld) stored() (out []stored) {
	for i, p := range w.topic.Partitions {
		d := &w.read[i]
		for _, b := range p.Log[d.batches:] {
			if b.LastOffset() >= p.HighWatermark {
				break
			}
			d.take(b)
		}
		for _, x := range d.records {
			if x.headers["of"] == w.schedule.name {
				out = append(out, x)
			}
		}
	}
	return out
}

func (d *decoded) take(b record.Batch) {
	d.batches++
	_ = b.Each(nil, func(r *record.Record) error {
		x := stored{topic: "lines", value: string(r.Value), key: string(r.Key), headers: map[string]string{}}
		for _, h := range r.Headers {
			x.headers[strings.Clone(h.Key)] = string(h.Value)
		}
		d.records = append(d.records, x)
		return nil
	})
}

// chaosWire is the network between a sender and the brokers.
type chaosWire struct {
	world *chaosWorld
	calls []func()
	net   []*flight // in order
	old   []*flight // of connections that were cut; they may still arrive
	held  bool
}

// flight is a produce on its way, or its answer on the way back.
type flight struct {
	broker int32
	req    *kmsg.ProduceRequest
	then   func(kmsg.Response, error)
	resp   kmsg.Response // once it has arrived
}

var errUnreachable = errors.New("the broker cannot be reached")

// live is one step of the process: false when it is dead.
func (n *chaosWire) live() bool {
	return n.world.fuse.step(func() int { return n.world.rnd().IntN(2) * 100 }) > 0
}

// Go implements producer.Transport.
func (n *chaosWire) Go(f func()) { n.calls = append(n.calls, f) }

// Ask implements producer.Transport. The question and its answer may each get lost.
func (n *chaosWire) Ask(broker int32, req kmsg.Request) (kmsg.Response, error) {
	if broker == producer.AnyBroker {
		broker = n.world.rnd().Int32N(chaosBrokers)
	}
	if !n.live() || n.world.down[broker] || !n.world.stage.nested && n.world.stage.chance(15) {
		return nil, errUnreachable
	}
	resp := n.world.cluster.Handle(broker, req)
	switch r := resp.(type) {
	case *kmsg.DescribeProducersResponse:
		n.say("describe %d: %+v", r.Topics[0].Partitions[0].Partition, r.Topics[0].Partitions[0].ActiveProducers)
	case *kmsg.FetchResponse:
		n.say("fetch %d from %d: %d bytes", r.Topics[0].Partitions[0].Partition, req.(*kmsg.FetchRequest).Topics[0].Partitions[0].FetchOffset, len(r.Topics[0].Partitions[0].RecordBatches))
	}
	return resp, nil
}

// handle has a broker take a produce.
func (n *chaosWire) handle(x *flight, how string) kmsg.Response {
	resp := n.world.cluster.Handle(x.broker, x.req)
	for i := range x.req.Topics {
		for j, p := range x.req.Topics[i].Partitions {
			b, got := record.Batch(p.Records), resp.(*kmsg.ProduceResponse).Topics[i].Partitions[j]
			n.say("%s at %d: partition %d producer %d sequence %d+%d: error %d offset %d", how, x.broker, p.Partition, b.ProducerID(), b.BaseSequence(), b.Count(), got.ErrorCode, got.BaseOffset)
		}
	}
	return resp
}

func (n *chaosWire) say(format string, args ...any) {
	n.world.stage.trace = append(n.world.stage.trace, "                    "+fmt.Sprintf(format, args...))
}

// Produce implements producer.Transport.
func (n *chaosWire) Produce(broker int32, req *kmsg.ProduceRequest, then func(kmsg.Response, error)) {
	if n.live() {
		n.net = append(n.net, &flight{broker: broker, req: req, then: then})
	}
}

// call runs one of the questions that were asked.
func (n *chaosWire) call() bool {
	if len(n.calls) == 0 {
		return false
	}
	i := n.world.rnd().IntN(len(n.calls))
	f := n.calls[i]
	n.calls = append(n.calls[:i], n.calls[i+1:]...)
	f()
	return true
}

// move lets a request arrive at its broker, or an answer at the sender: those of a connection in their order.
func (n *chaosWire) move() bool {
	var can []*flight
	seen := map[int32]bool{}
	arriving := map[int32]bool{}
	for _, x := range n.net {
		switch {
		case n.world.down[x.broker]:
			n.cut(x.broker)
			return true
		case x.resp != nil && !seen[x.broker] && !n.held:
			can = append(can, x)
		case x.resp == nil && !arriving[x.broker]:
			can, arriving[x.broker] = append(can, x), true
		}
		seen[x.broker] = true
	}
	if len(can) == 0 {
		return false
	}
	x := can[n.world.rnd().IntN(len(can))]
	if x.resp == nil {
		x.resp = n.handle(x, "arrives")
		return true
	}
	n.remove(x)
	n.commit(x)
	n.world.fuse.step(func() int { return 0 })
	x.then(x.resp, nil)
	return true
}

// commit says that all replicas have what an answer is about to acknowledge.
func (n *chaosWire) commit(x *flight) {
	for i := range x.req.Topics {
		for _, p := range x.req.Topics[i].Partitions {
			n.world.topic.Partitions[p.Partition].Commit()
		}
	}
}

func (n *chaosWire) remove(x *flight) {
	for i := range n.net {
		if n.net[i] == x {
			n.net = append(n.net[:i], n.net[i+1:]...)
			return
		}
	}
}

// cut cuts a connection: answers are lost, and requests may arrive later.
func (n *chaosWire) cut(broker int32) {
	var stay, lost []*flight
	for _, x := range n.net {
		if x.broker == broker {
			lost = append(lost, x)
		} else {
			stay = append(stay, x)
		}
	}
	n.net = stay
	for _, x := range lost {
		n.leave(x)
	}
	for _, x := range lost {
		x.then(nil, errUnreachable)
	}
}

// leave leaves a request in a connection that is cut: as the bytes it was, whatever becomes of their memory.
func (n *chaosWire) leave(x *flight) {
	if x.resp != nil || n.world.stage.chance(2) {
		return
	}
	req := kmsg.NewPtrProduceRequest()
	if err := req.ReadFrom(x.req.AppendTo(nil)); err != nil {
		n.world.stage.t.Fatal(err)
	}
	n.old = append(n.old, &flight{broker: x.broker, req: req})
}

// leaveAll is the end of the process.
func (n *chaosWire) leaveAll() {
	for _, x := range n.net {
		n.leave(x)
	}
	n.net, n.calls = nil, nil
}

func (n *chaosWire) dropOf(broker int32) {
	var stay []*flight
	for _, x := range n.old {
		if x.broker != broker {
			stay = append(stay, x)
		}
	}
	n.old = stay
}

// late lets a request of an old connection arrive, or be gone.
func (n *chaosWire) late() {
	if len(n.old) == 0 {
		return
	}
	x := n.old[0]
	n.old = n.old[1:]
	if n.world.stage.chance(2) {
		n.handle(x, "late")
	}
}
