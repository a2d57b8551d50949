package agent

import (
	"fmt"
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
	addr := startBroker(t, testenv.Sluice(t))
	for _, step := range []int{4, 8, 12, 16} {
		r := killedAt(t, addr, step, 1500)
		if got, err := adminOf(t, addr).CreatePartitions(t.Context(), 3, r.topic); err != nil || got.Error() != nil {
			t.Fatal(err, got.Error())
		}
		a, stop := r.mustStart()
		waitDelivered(t, a, 0)
		stop()
		r.check(1500)
	}
}

// The pipeline's topic is another after a kill: what was on its way to the old one goes there, once, and the rest to the new one.
func TestTopicChangedAfterAKill(t *testing.T) {
	addr := startBroker(t, testenv.Sluice(t))
	for _, step := range []int{4, 8, 12, 16} {
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
}

// The pipeline is taken out of the files after a kill, and comes back later.
func TestPipelineRemovedAndBackAfterAKill(t *testing.T) {
	addr := startBroker(t, testenv.Sluice(t))
	for _, step := range []int{4, 8, 12, 16} {
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
}

// A power cut takes the end of a journal that was not synced. Lines may come twice then, and none is lost.
func TestEndOfTheJournalIsLost(t *testing.T) {
	addr := startBroker(t, testenv.Sluice(t))
	for _, keep := range []int{0, 30, 60, 95} {
		r := killedAt(t, addr, 16, 1500)
		segments, err := filepath.Glob(filepath.Join(r.state, journalsDir, "kill", "*.journal"))
		if err != nil || len(segments) == 0 {
			t.Fatal(err, len(segments))
		}
		last := segments[len(segments)-1]
		info, err := os.Stat(last)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(last, info.Size()*int64(keep)/100); err != nil {
			t.Fatal(err)
		}
		a, stop := r.mustStart()
		waitDelivered(t, a, 0)
		stop()
		got := r.stored()
		slices.Sort(got)
		if n := len(slices.Compact(got)); n != 1500 {
			t.Errorf("with %d%% of the journal %d of 1500 lines are stored", keep, n)
		}
	}
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
