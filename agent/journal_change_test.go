package agent

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/internal/testenv"
)

// killedAt runs an agent that is killed at a step of its journal at which batches are on their way.
func killedAt(t *testing.T, addr string, step, lines int) *journalRun {
	t.Helper()
	r := newJournalRun(t, addr)
	r.write(0, lines)
	if !r.runUntilKilled(&killedFS{last: step, part: 100, gone: make(chan struct{})}) {
		t.Fatalf("the journal has fewer than %d steps", step)
	}
	return r
}

func adminOf(t *testing.T, addr string) *kadm.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return kadm.NewClient(client)
}

func TestPartitionsAddedAfterAKill(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string, steps []int) {
		for _, step := range steps {
			r := killedAt(t, addr, step, 1500)
			if got, err := adminOf(t, addr).CreatePartitions(t.Context(), 3, r.topic); err != nil || got.Error() != nil {
				t.Fatal(err, got.Error())
			}
			a, stop := r.mustStart()
			waitDelivered(t, a, 0)
			stop()
			r.check(1500)
		}
	})
}

// The pipeline's topic is another after a kill: what was on its way to the old one goes there, once, and the rest to the new one.
func TestTopicChangedAfterAKill(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string, steps []int) {
		for _, step := range steps {
			r := killedAt(t, addr, step, 1500)
			first := r.topic
			r.topic += "-new"
			a, stop := r.mustStart()
			waitDelivered(t, a, 0)
			stop()
			got := r.stored()
			r.topic = first
			got = append(got, r.stored()...)
			slices.Sort(got)
			if n := len(slices.Compact(slices.Clone(got))); n != 1500 || len(got) != 1500 {
				t.Errorf("killed at %d: %d records in both topics, %d different ones, for 1500 lines", step, len(got), n)
			}
		}
	})
}

// The pipeline is taken out of the files after a kill, and comes back later.
func TestPipelineRemovedAndBackAfterAKill(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string, steps []int) {
		for _, step := range steps {
			r := killedAt(t, addr, step, 1500)
			r.name = "other"
			r.dir = t.TempDir()
			_, stop := r.mustStart()
			stop()
			r.name = "kill"
			r.dir = r.logs
			a, stop := r.mustStart()
			waitDelivered(t, a, 0)
			stop()
			r.check(1500)
		}
	})
}

// eachBroker runs a test against ours and against a real Apache Kafka. steps are those of the journal at which an agent is killed.
func eachBroker(t *testing.T, run func(t *testing.T, addr string, steps []int)) {
	t.Run("sluice", func(t *testing.T) { run(t, startBroker(t, testenv.Sluice(t)), []int{8, 12, 16, 20}) })
	t.Run("kafka", func(t *testing.T) { run(t, testenv.Kafka(t).Addr, []int{12, 20}) })
}

// The power goes while batches are on their way. Of a journal that was not synced the end is lost: lines may come twice, and none is lost.
// With a synced one, none comes twice either.
func TestPowerCut(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string, steps []int) {
		for i, step := range steps {
			for _, sync := range []bool{false, true} {
				r := newJournalRun(t, addr)
				r.sync = sync
				r.write(0, 1500)
				fs := newCrashFS()
				fs.fuse = &fuse{left: step, gone: make(chan struct{})}
				before := r.state
				if !r.runUntilGone(fs, fs.fuse.gone) {
					t.Fatalf("the journal has fewer than %d steps", step)
				}
				r.fs = movedFS{fs.powerCut(rand.New(rand.NewPCG(uint64(i), 7))), before, r.state}
				a, stop := r.mustStart()
				waitDelivered(t, a, 0)
				stop()
				got := r.stored()
				slices.Sort(got)
				n := len(got)
				if different := len(slices.Compact(got)); different != 1500 || sync && n != 1500 {
					t.Errorf("cut at step %d, synced %v: %d records, %d different ones, for 1500 lines", step, sync, n, different)
				}
			}
		}
	})
}

// The checkpoint of a version that had no journal is taken over.
func TestCheckpointOfTheFirstVersion(t *testing.T) {
	addr := startBroker(t, testenv.Sluice(t))
	r := newJournalRun(t, addr)
	r.write(0, 100)
	path := filepath.Join(r.dir, "app.log")
	file, err := tail.Open(path, &tail.FileConfig{Blocks: &tail.Blocks{}})
	if err != nil {
		t.Fatal(err)
	}
	var c tail.Chunk
	if _, _, err := file.Read(&c, tail.Whole); err != nil {
		t.Fatal(err)
	}
	p := file.Position()
	body := fmt.Sprintf(`{"pipelines":{"kill":{"files":[{"path":%q,"dev":%d,"ino":%d,"born":%d,"offset":%d,"head_len":%d,"head":%d,"tail_len":%d,"tail":%d,"seen":%d}]}}}`,
		path, file.ID().Dev, file.ID().Ino, tail.Born(file.Handle()), p.Offset, p.Head.Len, p.Head.Hash, p.Tail.Len, p.Tail.Hash, 1796000000)
	if err := os.WriteFile(filepath.Join(r.state, checkpointName), []byte(withSum(1, body)), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	r.write(100, 150)
	a, stop := r.mustStart()
	waitDelivered(t, a, 50)
	stop()
	got := r.stored()
	slices.Sort(got)
	if len(got) != 50 || got[0] != "line 000100" {
		t.Errorf("%d lines, the first %q", len(got), got[0])
	}
}

func TestCopyOfAStateDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.write("a.log", "one\n")
	r.start()
	r.wants("one")
	r.halt()
	copied := t.TempDir()
	copyDir(t, r.state, copied)
	r.state = copied
	if _, err := r.open(); err == nil || !strings.Contains(err.Error(), "--adopt-state") {
		t.Fatalf("error %v", err)
	}
	r.cfg.AdoptState = true
	r.start()
	r.halt()
	r.cfg.AdoptState = false
	r.start() // it is this one's now
	r.halt()
}

func TestStateOfAnotherMachine(t *testing.T) {
	t.Parallel()
	here := stateOwner{Machine: "a", Ino: 1, Born: 2}
	for _, tc := range []struct {
		was    stateOwner
		differ bool
	}{{here, false}, {stateOwner{Machine: "b", Ino: 1, Born: 2}, true}, {stateOwner{Machine: "", Ino: 1, Born: 2}, false},
		{stateOwner{Machine: "a", Ino: 3, Born: 2}, true}, {stateOwner{Machine: "a", Ino: 1, Born: 9}, true}, {stateOwner{Machine: "a", Ino: 1}, false}} {
		if got := tc.was.differs(here); (got != "") != tc.differ {
			t.Errorf("%+v: %q", tc.was, got)
		}
	}
}
