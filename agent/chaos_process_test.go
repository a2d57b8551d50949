package agent

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

var chaosRounds = flag.Int("chaos-rounds", 0, "kills of TestChaosOfProcesses; 0 means 4")

// TestChaosOfProcesses kills the agent and the broker, real processes, by SIGKILL, again and again at random moments, also both at once and
// the agent while the broker is down, while a writer writes and rotates: by renames, by copying and emptying, into compressed copies, with
// the directory moved, and with the file removed and made anew; -chaos-rounds says how often. Every line must be in the
// topic once, in the order of its file. One line of the log names the seed.
func TestChaosOfProcesses(t *testing.T) {
	t.Parallel()
	rounds := *chaosRounds
	if rounds == 0 {
		rounds = 4
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d rounds", seed, rounds)
	p := newProcessChaos(t, rand.New(rand.NewPCG(seed, 1)))
	for round := range rounds {
		p.round(round)
	}
	p.check()
}

// processChaos is one run.
type processChaos struct {
	t      *testing.T
	rnd    *rand.Rand
	dir    string
	addr   string
	broker *testenv.Process
	run    struct{ broker, agent testenv.Command }
	agent  *testenv.Process
	next   int
	kept   int
	dirs   int    // that the directory was moved
	copies bool   // the file is copied and emptied at times; in every other stretch, so that it may be removed after the next
	copied bool   // since all was known to be delivered
	did    [5]int // rotations, as in rotations
	kills  [2]int // of the agent, of the broker
}

func newProcessChaos(t *testing.T, rnd *rand.Rand) *processChaos {
	program := testenv.Sluice(t)
	p := &processChaos{t: t, rnd: rnd, dir: t.TempDir(), addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(t)))}
	pipeline := filepath.Join(t.TempDir(), "pipeline.yaml")
	text := fmt.Sprintf("pipeline: chaos\ncollect:\n  file: {include: ['%[1]s/cur/app.log*', '%[1]s/v*/app.log*'], identity: true, rotate_grace: 2s}\ntopic: {name: chaos, partitions: 3, batch: {bytes: 8KiB}}\n", p.dir)
	if err := os.WriteFile(pipeline, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.must(os.Mkdir(filepath.Join(p.dir, "v0"), 0o700))
	p.must(os.Symlink("v0", filepath.Join(p.dir, "cur")))
	p.run.broker = testenv.Command{Name: "broker", Path: program, Args: []string{"broker", "--listen", p.addr, "--data", t.TempDir(), "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, p.addr) }}
	p.run.agent = testenv.Command{Name: "agent", Path: program, Args: []string{"agent", pipeline, "--state", t.TempDir(), "--brokers", p.addr, "--metrics", ""}}
	p.broker, p.agent = testenv.Start(t, p.run.broker), testenv.Start(t, p.run.agent)
	return p
}

// round writes for a while and kills in the middle of it.
func (p *processChaos) round(round int) {
	p.copies = round/10%2 == 0
	until := time.Duration(20+p.rnd.IntN(180)) * time.Millisecond
	p.writeFor(until)
	victims := 1 + p.rnd.IntN(3)
	if victims&1 != 0 {
		p.agent.Kill()
		p.kills[0]++
	}
	if victims&2 != 0 {
		p.broker.Kill()
		p.kills[1]++
	}
	p.writeFor(time.Duration(p.rnd.IntN(50)) * time.Millisecond)
	if victims&1 != 0 {
		p.agent = testenv.Start(p.t, p.run.agent)
	}
	if victims&2 != 0 {
		p.writeFor(time.Duration(p.rnd.IntN(100)) * time.Millisecond)
		p.broker = testenv.Start(p.t, p.run.broker)
	}
	if round%10 == 9 {
		p.settle()
		p.removeAndMakeAgain()
	}
}

// writeFor writes lines, and rotates at times.
func (p *processChaos) writeFor(d time.Duration) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(d); time.Now().Before(until); <-tick.C {
		p.write(1 + p.rnd.IntN(200))
		if p.rnd.IntN(12) == 0 {
			p.rotate()
		}
	}
}

func (p *processChaos) path(n int) string {
	if n == 0 {
		return filepath.Join(p.dir, "cur", "app.log")
	}
	return filepath.Join(p.dir, "cur", fmt.Sprintf("app.log.%d", n))
}

func (p *processChaos) must(err error) {
	if err != nil {
		p.t.Helper()
		p.t.Fatal(err)
	}
}

// write appends lines, in pieces that end anywhere.
func (p *processChaos) write(lines int) {
	var b bytes.Buffer
	for range lines {
		fmt.Fprintf(&b, "line %08d %s\n", p.next, strings.Repeat("x", p.next%61))
		p.next++
	}
	f, err := os.OpenFile(p.path(0), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	p.must(err)
	cut := p.rnd.IntN(b.Len())
	_, err = f.Write(b.Bytes()[:cut])
	p.must(err)
	_, err = f.Write(b.Bytes()[cut:])
	p.must(err)
	p.must(f.Close())
}

// rotations are what rotate does, and removeAndMakeAgain.
var rotations = [5]string{"renamed", "copied and emptied", "compressed", "directory moved", "removed"}

// rotate rotates in one of several ways. The oldest files are removed only when all is read, by settle.
func (p *processChaos) rotate() {
	switch n := p.rnd.IntN(10); {
	case n < 4:
		p.did[0]++
		p.shift(0)
	case n < 7 && p.copies:
		p.did[1]++
		p.copyTruncate()
	case n < 9 && p.kept > 0:
		p.did[2]++
		p.compress()
	default:
		p.did[3]++
		p.move()
	}
}

// shift renames the files from one on.
func (p *processChaos) shift(from int) {
	for n := p.kept; n >= from; n-- {
		p.must(os.Rename(p.path(n), p.path(n+1)))
	}
	p.kept++
}

// copyTruncate copies the file in two pieces, and empties it.
func (p *processChaos) copyTruncate() {
	p.shift(1)
	data, err := os.ReadFile(p.path(0))
	p.must(err)
	half := p.rnd.IntN(len(data) + 1)
	p.must(os.WriteFile(p.path(1), data[:half], 0o600))
	f, err := os.OpenFile(p.path(1), os.O_APPEND|os.O_WRONLY, 0o600)
	p.must(err)
	_, err = f.Write(data[half:])
	p.must(err)
	p.must(f.Close())
	p.must(os.Truncate(p.path(0), 0))
	p.copied = true
}

// compress makes a compressed copy of the oldest rotated file, and removes it.
func (p *processChaos) compress() {
	data, err := os.ReadFile(p.path(p.kept))
	p.must(err)
	pack, ext := gzipped, "gz"
	if p.rnd.IntN(2) == 0 {
		pack, ext = zstdPacked, "zst"
	}
	p.must(os.WriteFile(fmt.Sprintf("%s.%dc.%s", p.path(0), p.next, ext), pack(p.t, string(data)), 0o600))
	p.must(os.Remove(p.path(p.kept)))
	p.kept--
}

// move gives the directory another name; the link to it follows.
func (p *processChaos) move() {
	to := fmt.Sprintf("v%d", p.dirs+1)
	p.must(os.Rename(filepath.Join(p.dir, fmt.Sprintf("v%d", p.dirs)), filepath.Join(p.dir, to)))
	p.must(os.Symlink(to, filepath.Join(p.dir, "new")))
	p.must(os.Rename(filepath.Join(p.dir, "new"), filepath.Join(p.dir, "cur")))
	p.dirs++
}

// settle waits until everything is in the topic, and removes what was rotated.
func (p *processChaos) settle() {
	p.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(p.addr))
	p.must(err)
	defer client.Close()
	adm := kadm.NewClient(client)
	ctx, cancel := context.WithTimeout(p.t.Context(), 3*patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		stored := int64(0)
		if ends, err := adm.ListEndOffsets(ctx, "chaos"); err == nil {
			ends.Each(func(o kadm.ListedOffset) { stored += o.Offset })
		}
		if stored >= int64(p.next) {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.t.Fatalf("%d of %d lines are stored", stored, p.next)
		}
	}
	for ; p.kept > 2; p.kept-- {
		p.must(os.Remove(p.path(p.kept)))
	}
}

// removeAndMakeAgain does that to the file, all of which is read, unless a copy of it may wait to be told from others: nothing would tell
// after a kill that it is one.
func (p *processChaos) removeAndMakeAgain() {
	if _, err := os.Stat(p.path(0)); err == nil && !p.copied { // renamed away, it may not have been begun again
		p.did[4]++
		p.must(os.Remove(p.path(0)))
		p.write(1)
	}
	p.copied = false
}

// check reads the topic: each line once, those of a file in order.
func (p *processChaos) check() {
	p.settle()
	client, err := kgo.NewClient(kgo.SeedBrokers(p.addr), kgo.ConsumeTopics("chaos"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	p.must(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(p.t.Context(), 3*patience)
	defer cancel()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, "chaos")
	p.must(err)
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	times := make([]int, p.next)
	last := map[string]int{}
	disorder := 0
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			p.t.Fatalf("%d records cannot be read", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			n, err := strconv.Atoi(string(r.Value[5:13])) // base 10, whatever the zeros
			p.must(err)
			if want := fmt.Sprintf("line %08d %s", n, strings.Repeat("x", n%61)); string(r.Value) != want {
				p.t.Errorf("record %q, want %q", r.Value, want)
			}
			times[n]++
			i := slices.IndexFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == headerFileID })
			id := string(r.Headers[i].Value)
			if n < last[id] {
				disorder++
			}
			last[id] = n
		})
	}
	lost, doubled := 0, 0
	for _, n := range times {
		switch {
		case n == 0:
			lost++
		case n > 1:
			doubled++
		}
	}
	p.t.Logf("%d lines, %d kills of the agent and %d of the broker: lost %d, doubled %d, out of order %d; %v: %v", p.next, p.kills[0], p.kills[1], lost, doubled, disorder, rotations, p.did)
	if lost+doubled+disorder > 0 {
		p.t.Fail()
	}
}
