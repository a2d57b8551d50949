package agent

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

var (
	schedules = flag.Int("schedules", 0, "random schedules to run; 0 means 400, and 40 with -short")
	seedFlag  = flag.Uint64("seed", 0, "run this one schedule")
	traceFlag = flag.Bool("trace", false, "print what schedules do")
)

// TestRandomSchedules does to files what writers and rotations do, in random
// order, while the agent follows, stops, crashes and starts. No line may be
// missing, and none may come twice.
//
// The runner is driven by hand: its steps, its clock, its change events and its
// acknowledgements are the schedule's, so that a seed replays; the inodes of its files are too.
func TestRandomSchedules(t *testing.T) {
	if *seedFlag != 0 {
		runSchedule(t, *seedFlag)
		return
	}
	t.Parallel()
	n := *schedules
	switch {
	case n == 0 && testing.Short():
		n = 40
	case n == 0:
		n = 400
	}
	base := seedsFrom(*schedules)
	t.Logf("%d seeds from %d on", n, base)
	for i := range n {
		seed := base + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runSchedule(t, seed) })
	}
}

// seedsFrom is the first seed of a run: always the same when no number of schedules was asked for, so that what a change breaks is the
// change's doing; another one each time else.
func seedsFrom(asked int) uint64 {
	if asked == 0 {
		return 1
	}
	return uint64(time.Now().UnixNano())
}

// schedule is one random run, as one pipeline of the agent takes part in it. The model is simple: every line has a number,
// and every number written must be stored.
type schedule struct {
	*stage
	name       string // of the pipeline
	pipeline   string // DIR in it is dir
	world      world
	runner     *files         // nil while the pipeline does not run
	checkpoint []byte         // what a crash leaves
	previous   []byte         // the one before
	removed    *savedPipeline // what the process knows of a pipeline that was taken away
	saveDue    bool           // the agent asks for a checkpoint
	prepared   bool           // the topic is known to the running agent
}

// stage is what all pipelines of a schedule share: the files, the clock, and the process.
type stage struct {
	t   *testing.T
	rnd *rand.Rand
	dir string
	now time.Time
	dialect

	crew    []*schedule  // the pipelines
	writer  []scheduleOp // what may happen at any moment
	inodes  *inodes
	budget  *budget // of the process
	blocks  *tail.Blocks
	doubles bool // lines may be stored twice: a power cut took what was not synced

	openFiles  int // limits of the agent
	memory     int64
	slow       bool     // reading is limited in time
	grew       int      // checkpoints until two know where a copy ends that is shorter than what was read
	next       int      // number of the next line
	partial    string   // written of a line without its newline
	kept       int      // rotated files
	links      []string // other names of files
	packed     []string // compressed copies, the oldest first
	packs      int      // names given to such
	dirs       int      // directories made so far, but for the first
	intrusions int      // what writers may still do in the middle of steps
	nested     bool     // within a step of the agent, or of a rotation: no other may begin
	safe       int      // stored records that the checkpoint holds
	trace      []string
}

// world is what the agent sends to: a journal and what lies behind it.
type world interface {
	// start gives the agent its destination and what the journal holds beyond a checkpoint, which names the entry after it.
	start(r *files, from uint64)
	// handOver says that the pipeline has ended, killed or not. Another of the same process may follow it, unless stop says after that the
	// process is gone, and all its pipelines.
	handOver()
	stop()
	// turn lets some of what is under way happen, with all everything that can happen now. It says whether anything did.
	turn(all bool) bool
	// killed says that the agent was killed within what it was doing.
	killed() bool
	// checkpointed says that a checkpoint is stored.
	checkpointed(names uint64)
	// hold keeps acknowledgements back until letGo, which also ends all trouble: the agent is not killed before turn is called without all.
	hold()
	letGo()
	stored() []stored
	// ops are what may be done to it, beside what is done to files.
	ops() []scheduleOp
}

const schedulePipeline = `
pipeline: test
collect:
  file: {include: ["DIR/cur/app.log*", "DIR/v*/app.log*"], identity: true FORM}
topic: {name: lines, partitions: 3}
`

// dialect is how the lines of a schedule stand in the files.
type dialect struct {
	name   string
	form   string                           // settings of the input
	encode func(text string) string         // as it is written
	line   func(i int) (value, text string) // as it is sent, and as it is written but for the last newline; of one length
}

var plainText = func(text string) string { return text }

var dialects = []dialect{
	{name: "plain", encode: plainText, line: func(i int) (string, string) { return lineOf(i), lineOf(i) }},
	{
		name: "utf-16", form: ", encoding: utf-16be", encode: utf16be,
		line: func(i int) (string, string) { return lineOf(i) + " ä", lineOf(i) + " ä" },
	},
	{
		name: "multiline", form: `, multiline: {start: "^line", idle: 5s}`, encode: plainText,
		line: func(i int) (string, string) {
			text := lineOf(i) + "\n  at a\n  at b"
			return text, text
		},
	},
	{
		name: "containers", form: `, container: {}`, encode: plainText,
		line: func(i int) (string, string) {
			at := fmt.Sprintf("2026-11-30T10:00:00.%09dZ stdout ", i)
			return lineOf(i), at + "P lin\n" + at + "P e \n" + at + "F " + lineOf(i)[5:]
		},
	},
}

// utf16be encodes text of the basic plane.
func utf16be(text string) string {
	var b strings.Builder
	for _, r := range text {
		b.Write([]byte{byte(r >> 8), byte(r)})
	}
	return b.String()
}

const (
	// scheduleSteps is what is done to the files in a schedule.
	scheduleSteps = 80
	// intrusionsMax is what is done to them in the middle of the agent's steps.
	intrusionsMax = 15
	// scheduleGrace is the grace of rotated files.
	scheduleGrace = 5 * time.Second
	// scheduleScan is the time between two scans.
	scheduleScan = time.Second
	// quietMax bounds the turns until nothing is left to do.
	quietMax = 400
)

func runSchedule(t *testing.T, seed uint64) {
	g := newStage(t, rand.New(rand.NewPCG(seed, 0)), scheduleDir(t, 's', seed))
	g.dialect = dialects[seed%uint64(len(dialects))]
	s := g.join("test", schedulePipeline)
	s.world = newStoreWorld(s)
	s.run("TestRandomSchedules", seed)
}

func newStage(t *testing.T, rnd *rand.Rand, dir string) *stage {
	return &stage{
		t: t, rnd: rnd, dir: dir, intrusions: intrusionsMax, dialect: dialects[0], writer: writerOps,
		now: time.Date(2096, 11, 30, 10, 0, 0, 0, time.UTC), // after the files are made, which the system dates
	}
}

// join adds a pipeline. The first one also does what is done to files.
func (g *stage) join(name, pipeline string) *schedule {
	s := &schedule{stage: g, name: name, pipeline: pipeline}
	g.crew = append(g.crew, s)
	return s
}

// up says that a pipeline runs, and all that every one does.
func (g *stage) up() bool { return slices.ContainsFunc(g.crew, (*schedule).runs) }
func (g *stage) all() bool {
	return !slices.ContainsFunc(g.crew, func(s *schedule) bool { return !s.runs() })
}

func (s *schedule) runs() bool { return s.runner != nil }

// each does something to every pipeline that runs.
func (g *stage) each(do func(*schedule)) {
	for _, s := range g.crew {
		if s.runs() {
			do(s)
		}
	}
}

// run runs a schedule to its end and checks what is stored.
func (s *schedule) run(name string, seed uint64) {
	t := s.t
	s.openFiles, s.memory = []int{4, 100}[s.rnd.IntN(2)], []int64{600, 8 << 10, 16 << 20}[s.rnd.IntN(3)]
	if s.chance(3) {
		s.slow = true
		s.form += ", rate_limit: {lines: 200}"
	}
	defer func() {
		if t.Failed() || *traceFlag {
			t.Logf("run again with -run %s -args -seed %d\n%s", name, seed, strings.Join(s.trace, "\n"))
		}
	}()
	s.inodes = newInodes(s)
	s.makeDirs()
	s.launch()
	ops := slices.Concat(scheduleOps, s.world.ops(), rareOps)
	for range scheduleSteps {
		op := ops[s.rnd.IntN(len(ops))]
		s.note(op.name)
		op.do(s)
		s.mourn()
		s.turn()
	}
	s.note("the end")
	s.launch()
	s.sync()
	s.rest()
	for _, m := range s.crew {
		m.check()
	}
	s.halt()
}

type scheduleOp struct {
	name string
	do   func(*schedule)
}

// writerOps may happen at any moment, scheduleOps between two steps of the
// agent. They are weighted by how often they stand here.
var (
	writerOps = []scheduleOp{
		{"append", (*schedule).appendLines}, {"append", (*schedule).appendLines}, {"append", (*schedule).appendLines},
		{"append", (*schedule).appendLines}, {"partial", (*schedule).writePartial}, {"partial", (*schedule).writePartial},
		{"rename", (*schedule).rotate}, {"rename", (*schedule).rotate},
		{"copytruncate", (*schedule).copyTruncate}, {"copytruncate", (*schedule).copyTruncate},
	}
	scheduleOps = slices.Concat(writerOps, []scheduleOp{
		{"delete", (*schedule).deleteAndMakeAgain}, {"rewrite", (*schedule).rewriteSameSize},
		{"restart", (*schedule).restart}, {"crash", (*schedule).crash}, {"sync", (*schedule).sync},
		{"hold", (*schedule).hold}, {"let go", (*schedule).letGo},
		{"checkpoint", (*schedule).save}, {"rest", (*schedule).rest},
	})
)

func (s *schedule) note(what string) {
	state := "down"
	if s.up() {
		state = "up"
	}
	s.each(func(m *schedule) {
		if !s.all() {
			state += " " + m.name
		}
	})
	s.trace = append(s.trace, fmt.Sprintf("%s %-14s next %d, stored %d, safe %d, agent %s", s.now.Format("05.000"), what, s.next, len(s.world.stored()), s.safe, state))
}

// Write takes the agent's log lines into the trace.
func (s *schedule) Write(line []byte) (int, error) {
	s.trace = append(s.trace, "                "+s.name+": "+strings.ReplaceAll(strings.TrimSpace(string(line)), s.dir+"/", ""))
	return len(line), nil
}

// brief leaves out what the trace says anyway.
func brief(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == "pipeline" {
		return slog.Attr{}
	}
	return a
}

// chance is true once in n.
func (g *stage) chance(n int) bool { return g.rnd.IntN(n) == 0 }

// meanwhile lets a writer do something in the middle of a step.
func (s *schedule) meanwhile() {
	if s.nested || s.intrusions == 0 || !s.chance(30) {
		return
	}
	s.intrusions--
	op := s.writer[s.rnd.IntN(len(s.writer))]
	s.note("  " + op.name)
	s.nested = true
	op.do(s)
	s.nested = false
}

// turn lets some time pass and the agent work, mostly not to its end.
func (s *schedule) turn() {
	s.now = s.now.Add(time.Duration(s.rnd.IntN(300)) * time.Millisecond)
	if !s.up() {
		return
	}
	s.each(func(m *schedule) {
		if !m.prepared && s.chance(3) {
			m.prepare()
		}
	})
	for range s.rnd.IntN(6) {
		if !s.up() {
			return // killed
		}
		s.step()
	}
	if s.chance(4) {
		s.save()
		s.mourn()
	}
}

// step lets every pipeline take a step, or of several only some.
func (s *schedule) step() (busy bool) {
	if *traceFlag {
		s.note("    step")
	}
	s.each(func(m *schedule) {
		if !s.nested && len(s.crew) > 1 && s.chance(2) {
			return
		}
		busy = m.stepOne() || busy
	})
	return busy
}

func (s *schedule) stepOne() bool {
	busy := s.runner.step(context.Background(), s.now)
	busy = s.world.turn(s.nested) || busy
	if s.saveDue {
		s.save()
	}
	s.mourn()
	return busy
}

// mourn takes an agent down that was killed within what it did.
func (s *schedule) mourn() {
	if s.fallen() {
		s.note("  killed")
		s.down()
	}
}

func (s *schedule) hold()  { s.each(func(m *schedule) { m.world.hold() }) }
func (s *schedule) letGo() { s.each(func(m *schedule) { m.world.letGo() }) }

func (s *schedule) prepare() {
	s.prepared = true
	s.runner.begin(prepared{topic: producer.Topic{Partitions: 3, RecordBytesMax: 1 << 20}})
}

// rest lets everything happen that goes by time.
func (s *schedule) rest() {
	was := s.nested
	s.nested = true
	defer func() { s.nested = was }()
	for until := s.now.Add(2 * scheduleGrace); s.now.Before(until); s.now = s.now.Add(200 * time.Millisecond) {
		s.work()
	}
}

// settle lets the agent look at everything twice and takes a checkpoint.
func (s *schedule) settle() {
	was := s.nested
	s.nested = true
	for range 3 {
		s.work()
		s.now = s.now.Add(scheduleScan)
	}
	s.nested = was
	s.save()
}

// work lets the agent do all that can be done now.
func (s *schedule) work() {
	for range quietMax {
		if !s.step() {
			return
		}
	}
	s.t.Fatal("the agent does not come to rest")
}

// launch starts the agent with what the checkpoint knows, or adds the pipelines that do not run.
func (s *schedule) launch() {
	if !s.up() {
		s.budget, s.blocks = newBudget(budgetShare*s.memory), &tail.Blocks{}
	}
	for _, m := range s.crew {
		if !m.runs() {
			m.launchOne()
		}
	}
}

func (s *schedule) launchOne() {
	if s.removed != nil {
		p := *s.removed
		s.removed = nil
		s.begin(p, true, nil)
		return
	}
	stored := saved{}
	if s.checkpoint != nil {
		var err error
		if stored, err = decodeCheckpoint("positions", s.checkpoint); err != nil {
			s.t.Fatal(err)
		}
	}
	files, known := stored.Pipelines[s.name]
	s.begin(files, known, nil)
}

// begin starts an agent; after a reload it has a predecessor.
func (s *schedule) begin(from savedPipeline, known bool, before *files) {
	pipes, err := pipelines.Parse("test.yaml", []byte(strings.NewReplacer("DIR", s.dir, "FORM", s.form).Replace(s.pipeline)))
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := Config{
		Hostname: "web-1", ScanInterval: scheduleScan, RotateGrace: scheduleGrace, LineIdle: time.Hour,
		OpenFilesMax: s.openFiles, Now: func() time.Time { return s.now }, InFlightBytesMax: s.memory, MemoryMax: budgetShare * s.memory,
	}.withDefaults()
	skip := func(string, tail.Info) bool {
		s.meanwhile()
		return false
	}
	r, err := newRunner(slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: brief})), pipes[0], cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	r.share = s.budget.join(r.nudge)
	x, err := newFiles(r, s.blocks, skip)
	if err != nil {
		s.t.Fatal(err)
	}
	r.input = x
	x.hints = tail.Unwatched()
	x.reading.Looks, x.scanner.Looks = s.inodes.looks(), s.inodes.looks()
	r.kept.save = func() { s.saveDue = true }
	r.restore(from, known)
	s.world.start(x, from.Journal)
	if before != nil {
		x.inherit(before)
		before.letGo()
	}
	s.runner, s.prepared = x, false
	if s.chance(2) {
		s.prepare()
	}
}

// reload has another agent go on where a pipeline's is, with what it holds open, as a change of the configuration does. It may be killed while
// it waits for the last acknowledgements.
func (s *schedule) reload() {
	m := s.anyone()
	if !m.runs() || s.nested {
		return
	}
	old := m.runner
	if p, known, ok := m.bury(true); ok {
		m.saveDue = true
		m.begin(p, known, old)
	}
}

// anyone is one of the pipelines.
func (g *stage) anyone() *schedule {
	if len(g.crew) == 1 {
		return g.crew[0]
	}
	return g.crew[g.rnd.IntN(len(g.crew))]
}

// bury ends an agent whose process goes on, with a successor or without, unless it is killed before.
func (s *schedule) bury(successor bool) (p savedPipeline, known, ok bool) {
	old := s.runner
	old.handing.Store(successor)
	old.ship()
	old.closeFiles()
	s.world.turn(s.chance(2))
	if s.world.killed() {
		old.handing.Store(false)
		s.mourn()
		return p, false, false
	}
	old.end()
	old.share.leave()
	s.world.handOver()
	p, _, known = old.snapshot()
	if a := old.snapshotAccount(); !a.Balanced() {
		s.t.Errorf("account does not add up: %+v", a)
	}
	s.runner, s.saveDue = nil, false
	return p, known, true
}

// removePipeline has a change of the configuration take a pipeline away. It is added again whenever the agent is started, from what the
// process knows of it while others run; else from the checkpoint that was written after that, or from an older one when it was killed before.
func (s *schedule) removePipeline() {
	m := s.anyone()
	if !m.runs() || s.nested {
		return
	}
	p, known, ok := m.bury(false)
	if !ok {
		return
	}
	if known {
		m.removed = &p
	}
	if !s.chance(3) {
		s.save()
	}
	if !s.up() {
		m.removed = nil
	}
}

// save takes a checkpoint, of all pipelines.
func (s *schedule) save() {
	datas := make([][]byte, len(s.crew))
	journals := make([]uint64, len(s.crew))
	for i, m := range s.crew {
		p, known := m.removed, m.removed != nil
		if m.runs() {
			now, _, ok := m.runner.snapshot()
			p, known = &now, ok
		}
		if !known {
			continue
		}
		data, err := encodeCheckpoint(saved{Pipelines: map[string]savedPipeline{m.name: *p}})
		s.must(err)
		datas[i], journals[i] = data, p.Journal
	}
	if s.fallen() || !slices.ContainsFunc(datas, func(d []byte) bool { return d != nil }) {
		return
	}
	s.grew = max(s.grew-1, 0)
	s.safe = len(s.crew[0].world.stored())
	for i, m := range s.crew {
		m.previous = m.checkpoint
		if datas[i] != nil {
			m.checkpoint, m.saveDue = datas[i], false
		}
	}
	for i, m := range s.crew {
		if m.runs() && datas[i] != nil {
			m.world.checkpointed(journals[i])
		}
	}
}

// fallen says that the process was killed within what it was doing.
func (g *stage) fallen() bool {
	return slices.ContainsFunc(g.crew, func(m *schedule) bool { return m.runs() && m.world.killed() })
}

// down is the end of the process.
func (s *schedule) down() {
	s.each(func(m *schedule) {
		m.runner.closeFiles()
		m.runner.end()
		if a := m.runner.snapshotAccount(); !a.Balanced() {
			s.t.Errorf("account does not add up: %+v", a)
		}
		m.world.handOver()
		m.runner = nil
	})
	for _, m := range s.crew {
		m.saveDue, m.removed = false, nil
	}
	s.crew[0].world.stop()
}

// halt stops the agent, with or without all acknowledgements.
func (s *schedule) halt() {
	if s.chance(2) {
		s.letGo()
		s.each(func(m *schedule) { m.world.turn(true) })
	}
	s.each(func(m *schedule) { m.runner.end() })
	s.save()
	s.down()
}

func (s *schedule) restart() {
	if !s.all() {
		s.launch()
		return
	}
	s.halt()
}

// start starts what does not run.
func (s *schedule) start() {
	if !s.all() {
		s.launch()
	}
}

// crash leaves the last checkpoint and the journal.
func (s *schedule) crash() {
	if !s.up() {
		s.launch()
		return
	}
	s.down()
}

// sync goes on until all complete lines are stored and in the checkpoint, of every pipeline.
func (s *schedule) sync() {
	if !s.up() {
		return
	}
	s.finishLine()
	was := s.nested
	s.nested = true // nothing else happens
	defer func() { s.nested = was }()
	s.launch()
	s.each(func(m *schedule) {
		if !m.prepared {
			m.prepare()
		}
	})
	s.letGo()
	for turn := range quietMax {
		s.work()
		if s.complete() {
			s.save()
			return
		}
		if turn%10 == 9 {
			s.save() // as once a second
		}
		s.now = s.now.Add(100 * time.Millisecond)
	}
	for _, m := range s.crew {
		if missing := m.missing(); len(missing) > 0 {
			s.t.Errorf("pipeline %s: never stored: %q", m.name, missing)
		}
	}
	s.t.FailNow()
}

func (g *stage) complete() bool {
	return !slices.ContainsFunc(g.crew, func(s *schedule) bool { return len(s.world.stored()) < g.next || len(s.missing()) > 0 })
}

func (s *schedule) missing() (out []string) {
	stored := map[string]bool{}
	for _, rec := range s.world.stored() {
		stored[rec.value] = true
	}
	for i := range s.next {
		if v, _ := s.dialect.line(i); !stored[v] {
			out = append(out, v)
		}
	}
	return out
}

// lineOf is of one length, for the rewrite.
func lineOf(i int) string { return fmt.Sprintf("line %06d", i) }

func (s *schedule) line() string {
	s.next++
	_, text := s.dialect.line(s.next - 1)
	return text
}

// placesOf says where a line's records come from.
func (s *schedule) placesOf(line string) (out []string) {
	for i, rec := range s.world.stored() {
		if rec.value == line {
			out = append(out, fmt.Sprintf("#%d %s@%s of %s", i, rec.headers["file_id"], rec.headers["file_offset"], filepath.Base(rec.headers["path"])))
		}
	}
	return out
}

// check compares what is stored with the model.
func (s *schedule) check() {
	times := map[string]int{}
	for _, rec := range s.world.stored() {
		times[rec.value]++
	}
	last := map[string]int{} // lines get their numbers as they are written
	for _, rec := range s.world.stored() {
		id := rec.headers["file_id"]
		n, err := strconv.Atoi(rec.value[len("line "):len(lineOf(0))])
		if err != nil {
			s.t.Fatal(err)
		}
		if before, ok := last[id]; ok && n <= before && times[rec.value] == 1 {
			s.t.Errorf("%s of file %s came after line %d", rec.value, id, before)
		}
		last[id] = max(last[id], n)
	}
	doubled := slices.Sorted(maps.Keys(times))
	doubled = slices.DeleteFunc(doubled, func(line string) bool { return times[line] == 1 })
	if len(doubled) > 0 && !s.doubles {
		s.t.Errorf("%d lines are stored too often, such as %s: %v", len(doubled), doubled[0], s.placesOf(doubled[0]))
	}
	if missing := s.missing(); len(missing) > 0 || len(times) != s.next {
		s.t.Errorf("%d different lines of %d; missing %q", len(times), s.next, missing)
	}
}
