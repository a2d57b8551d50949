package replica_test

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
)

var (
	simSeeds = flag.Int("seeds", 1000, "how many seeds the simulation runs")
	simSeed  = flag.Uint64("seed", 0, "the first seed of the simulation; one alone is traced")
)

// broken is what a defective build does. The simulation must notice each.
type broken struct {
	// truncateToMark: a follower cuts its log to its high watermark and not by
	// leader epochs (what KIP-101 ended).
	truncateToMark bool
	// noBrokerEpoch: whether a replica is in sync is decided without asking which
	// life of its broker has fetched (KIP-903).
	noBrokerEpoch bool
	// currentISR: the high watermark does not wait for those who are about to be in
	// sync (KIP-497).
	currentISR bool
	// noSyncAlone: the only one in sync acknowledges what it has not synced.
	noSyncAlone bool
	// markBeyondLog: a follower's high watermark is the leader's, whatever it has.
	markBeyondLog bool
	// anyController: a broker takes the updates of controllers that were replaced.
	anyController bool
	// lostMayLead: a broker that lost power keeps its place among those in sync.
	lostMayLead bool
	// uncleanElection: a replica that is not in sync may lead.
	uncleanElection bool
	// keepPoint: the stored recovery point does not fall when a log is cut.
	keepPoint bool
	// ackEarly: acks=all is answered before the high watermark has passed.
	ackEarly bool
}

// simulate runs one seed. bias, if not nil, has its way after the seed has chosen
// what may go wrong.
func simulate(seed uint64, b broken, bias func(*world), trace io.Writer) (err error) {
	w := &world{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 0x51_10_ce)), broken: b, trace: trace,
		now: time.UnixMilli(1_700_000_000_000), log: slog.New(slog.DiscardHandler),
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("at %v: panic: %v\n%s", w.now.Sub(w.start), r, debug.Stack())
		}
	}()
	w.start, w.calm = w.now, w.now
	w.faults = faults{cuts: map[[2]int32]bool{}, noStore: map[int32]bool{}}
	w.check = &checker{w: w, topics: map[cluster.TopicID]*checked{}}
	w.store = newStore(w)
	w.choose()
	if bias != nil {
		bias(w)
	}
	w.populate()
	end := w.now.Add(w.between(4*time.Second, 12*time.Second))
	w.after(time.Second, nil, func() { w.mischief(end) })
	for w.err == nil && !w.faults.over {
		w.step(w.now.Add(time.Hour))
	}
	w.settle()
	return w.err
}

// populate makes nodes, topics and producers.
func (w *world) populate() {
	for i := range 3 + w.rng.IntN(8)/6 + w.rng.IntN(8)/7 {
		n := &node{w: w, id: int32(i + 1)}
		n.disk = newDisk(func() time.Time { return w.now })
		w.nodes = append(w.nodes, n)
		w.store.watchers = append(w.store.watchers, func() {
			if n.up {
				n.watch()
			}
		})
		w.restart(n, w.between(0, 50*time.Millisecond))
	}
	w.after(400*time.Millisecond, nil, w.makeTopics)
}

// makeTopics makes one topic of each kind once there is a controller.
func (w *world) makeTopics() {
	c := w.office()
	if c == nil || len(c.image.Brokers) < 2 {
		w.after(50*time.Millisecond, nil, w.makeTopics)
		return
	}
	w.newTopic(c, "plain", nil)
	w.newTopic(c, "compacted", map[string]string{"cleanup.policy": "compact"})
	w.newTopic(c, "deleted", map[string]string{"cleanup.policy": "delete"})
}

// newTopic makes a topic and a producer or two to it.
func (w *world) newTopic(c *controller, name string, config map[string]string) {
	if config == nil {
		config = map[string]string{}
	}
	if w.chance(50) {
		config["min.insync.replicas"] = "2"
	}
	var id cluster.TopicID
	id[15], id[14] = byte(len(w.check.topics)+1), 1
	w.check.made(id, name, config)
	c.createTopic(name, id, w.replicas(), config)
	for range 1 + w.rng.IntN(2) {
		cl := &client{w: w, topic: name, id: id, pid: int64(len(w.clients) + 1), acks: -1}
		if w.chance(20) {
			cl.acks = 1
		}
		w.clients = append(w.clients, cl)
		w.after(w.between(10*time.Millisecond, 100*time.Millisecond), nil, cl.run)
	}
}

// settle runs on without faults until everything is as if nothing had happened.
func (w *world) settle() {
	quiet := w.now.Add(time.Second)
	for w.err == nil && w.now.Before(quiet) {
		w.step(quiet)
	}
	for _, c := range w.clients {
		c.silent = true
	}
	var missing error
	for end := w.now.Add(simSettled); w.err == nil; {
		if missing = w.check.settled(); missing == nil {
			w.check.final()
			return
		}
		if !w.now.Before(end) {
			w.fail("not settled %v after the last fault: %v", simSettled, missing)
		}
		for until := w.now.Add(200 * time.Millisecond); w.err == nil && w.now.Before(until); {
			w.step(until)
		}
	}
}

// TestSimulation runs clusters of real logs, partitions, fetchers and decisions in
// virtual time, while machines die, lose power, freeze, and are cut off from each
// other and the cluster store, and checks after every step what the package
// promises; see sim_check_test.go.
func TestSimulation(t *testing.T) {
	first, count := *simSeed, *simSeeds
	var trace io.Writer
	if first != 0 && count == 1 {
		trace = os.Stderr
	}
	if testing.Short() {
		count = min(count, 100)
	}
	for seed := first; seed < first+uint64(count); seed++ {
		if err := simulate(seed, broken{}, nil, trace); err != nil {
			t.Errorf("seed %d %v\nreproduce: go test ./broker/replica -run TestSimulation -count=1 -args -seeds 1 -seed %d", seed, err, seed)
		}
	}
}

// brokenSeedsMax is how many seeds it may take to find a defect.
const brokenSeedsMax = 300

// lateDecisions has what is asked for arrive late, and happen what makes it wrong by
// then: the defect shows only where a follower loses what it has between the two.
func lateDecisions(w *world) {
	w.mood = mood{slowISR: 3 * time.Second, strike: 40}
	w.menu = []fault{{10, (*world).powerCut}, {4, (*world).kill}, {2, (*world).isolate}}
}

// lateUpdates has controllers replaced while what they have told is on its way, and
// topics made meanwhile.
func lateUpdates(w *world) {
	w.mood = mood{}
	expire := func(w *world, n *node) { w.store.expire(n, n.client) }
	w.menu = []fault{{6, (*world).lose}, {10, expire}, {10, (*world).remake}, {4, (*world).kill}}
}

// TestSimulationFindsDefects shows that the simulation can fail: each defect that
// the package guards against is found by some seed.
func TestSimulationFindsDefects(t *testing.T) {
	for name, defect := range map[string]struct {
		broken
		from uint64 // the first seed; those before take long and do not find it
		bias func(*world)
	}{
		"truncation to the high watermark":           {broken{truncateToMark: true}, 0, nil},
		"broker epochs are ignored":                  {broken{noBrokerEpoch: true}, 1950, lateDecisions},
		"high watermark from the current ISR":        {broken{currentISR: true}, 100, nil},
		"no sync when one is left in sync":           {broken{noSyncAlone: true}, 0, nil},
		"a follower's high watermark beyond its log": {broken{markBeyondLog: true}, 0, nil},
		"an old controller's update is taken":        {broken{anyController: true}, 150, lateUpdates},
		"a broker that lost power leads":             {broken{lostMayLead: true}, 0, nil},
		"unclean elections":                          {broken{uncleanElection: true}, 0, nil},
		"recovery trusts what came after a cut":      {broken{keepPoint: true}, 1500, nil},
		"acknowledged before it is committed":        {broken{ackEarly: true}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := defect.from; seed < defect.from+brokenSeedsMax; seed++ {
				if err := simulate(seed, defect.broken, defect.bias, nil); err != nil {
					t.Logf("found by seed %d %v", seed, err)
					return
				}
			}
			t.Errorf("not found by %d seeds", brokenSeedsMax)
		})
	}
}

// What is to show a defect shows none where there is none.
func TestSimulationOfLateMessages(t *testing.T) {
	for name, bias := range map[string]func(*world){"decisions": lateDecisions, "updates": lateUpdates} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(40) {
				if err := simulate(seed, broken{}, bias, nil); err != nil {
					t.Errorf("seed %d %v", seed, err)
				}
			}
		})
	}
}
