package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
)

// reloadRun is an agent on a real broker that is reloaded while lines are written.
type reloadRun struct {
	*journalRun
	agent *Agent
	stop  func()
}

// parse reads pipelines in which DIR stands for that of the logs.
func (r *reloadRun) parse(yaml string) []*pipelines.Pipeline {
	r.t.Helper()
	pipes, err := pipelines.Parse("test.yaml", []byte(strings.ReplaceAll(yaml, "DIR", r.dir)))
	if err != nil {
		r.t.Fatal(err)
	}
	return pipes
}

func startReloadRun(t *testing.T, addr, yaml string) *reloadRun {
	t.Helper()
	r := &reloadRun{journalRun: newJournalRun(t, addr)}
	r.up(yaml)
	return r
}

func (r *reloadRun) up(yaml string) {
	r.t.Helper()
	log := &testenv.Buffer{}
	a, err := New(slog.New(slog.NewTextHandler(log, nil)), nil, r.parse(yaml), Config{
		StateDir: r.state, Brokers: []string{r.addr}, CheckpointInterval: 20 * time.Millisecond, DrainTimeout: time.Second,
		ScanInterval: 20 * time.Millisecond, RotateGrace: 200 * time.Millisecond, AdoptState: true,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r.agent = a
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(func() {
		r.stop()
		if r.t.Failed() {
			r.t.Logf("log:\n%s", log.String())
		}
	})
}

func (r *reloadRun) reload(yaml string) {
	r.t.Helper()
	if err := r.agent.Reload(r.parse(yaml)); err != nil {
		r.t.Fatal(err)
	}
	for _, a := range r.agent.Accounts() {
		if !a.Balanced() {
			r.t.Errorf("account does not add up: %+v", a)
		}
	}
}

// delivered waits until topics hold n records and nothing is on its way, stops the agent and returns what they hold.
func (r *reloadRun) delivered(n int, topics ...string) (got []string) {
	r.t.Helper()
	admin := adminOf(r.t, r.addr)
	r.until(fmt.Sprintf("%d records in %q", n, topics), func() bool {
		ends, err := admin.ListEndOffsets(r.t.Context(), topics...)
		sum := int64(0)
		ends.Each(func(o kadm.ListedOffset) { sum += max(o.Offset, 0) })
		acc := r.agent.Accounts()[0]
		return err == nil && sum >= int64(n) && acc.LagBytes == 0 && acc.InFlight.Lines == 0
	})
	r.stop()
	for _, topic := range topics {
		r.topic = topic
		got = append(got, r.stored()...)
	}
	return got
}

// checkOnce says that lines 0 to n-1 are there, each once.
func (r *reloadRun) checkOnce(got []string, n int) {
	r.t.Helper()
	times := map[string]int{}
	for _, v := range got {
		times[v[max(len(v)-len("line 000000"), 0):]]++
	}
	missing, doubled := 0, 0
	for i := range n {
		switch k := times[fmt.Sprintf("line %06d", i)]; {
		case k == 0:
			missing++
		case k > 1:
			doubled++
		}
	}
	if missing+doubled > 0 || len(got) != n {
		r.t.Errorf("%d records for %d lines: %d missing, %d more than once", len(got), n, missing, doubled)
	}
}

// writing writes lines to app.log until stopped, and now and then renames it to where no pattern leads.
func (r *reloadRun) writing() (stop func() int) {
	// A file is there for 300 ms: what comes and goes within the pause of a reload on a loaded machine, nothing can find.
	end, lines := make(chan struct{}), make(chan int)
	aside := r.t.TempDir()
	go func() {
		n := 0
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				lines <- n
				return
			case <-tick.C:
			}
			r.write(n, n+40)
			if n += 40; n%asideEvery == 0 {
				if err := os.Rename(filepath.Join(r.dir, "app.log"), filepath.Join(aside, fmt.Sprint(n))); err != nil {
					r.t.Error(err)
				}
			}
		}
	}()
	return func() int { close(end); return <-lines }
}

// asideEvery is how many lines a file has when it is renamed away.
const asideEvery = 6000

func reloadYAML(topic, more string) string {
	return fmt.Sprintf("pipeline: p\ncollect:\n  file: {include: ['DIR/app.log'], headers: false}\ntopic: {name: %s, partitions: 2, key: '_raw', batch: {bytes: 4KiB}}\n%s", topic, more)
}

// Under load the topic, a stage and the input change again and again, and files are renamed to where nothing finds them.
func TestReloadUnderLoad(t *testing.T) {
	addr := startBroker(t, testenv.Sluice(t))
	a, b := fmt.Sprintf("a-%d", time.Now().UnixNano()), fmt.Sprintf("b-%d", time.Now().UnixNano())
	variants := []string{
		reloadYAML(a, ""),
		reloadYAML(b, ""),
		reloadYAML(a, "process: [{drop: '_raw == \"nothing\"'}]\n"),
		strings.Replace(reloadYAML(b, ""), "'DIR/app.log'", "'DIR/app.log', 'DIR/more.log'", 1),
	}
	r := startReloadRun(t, addr, variants[0])
	stop := r.writing()
	read := int64(0)
	for i := 1; i <= 24; i++ {
		r.reload(variants[i%len(variants)])
		acc := r.agent.Accounts()[0]
		if acc.Read.Lines < read {
			t.Errorf("the counter of lines read went back from %d to %d", read, acc.Read.Lines)
		}
		read = acc.Read.Lines
	}
	lines := stop()
	if lines < asideEvery {
		t.Fatalf("only %d lines were written: none was renamed away", lines)
	}
	r.checkOnce(r.delivered(lines, a, b), lines)
}

// Pipelines come and go, and what stays is not disturbed.
func TestReloadAddsAndRemoves(t *testing.T) {
	addr := startBroker(t, testenv.Sluice(t))
	topic := fmt.Sprintf("a-%d", time.Now().UnixNano())
	first := reloadYAML(topic, "")
	second := "---\npipeline: q\ncollect: {file: {include: ['DIR/q.log'], headers: false}}\ntopic: {name: " + topic + "-q, partitions: 1}\n"
	r := startReloadRun(t, addr, first)
	r.write(0, 100)
	waitDelivered(t, r.agent, 100)
	member := r.agent.list()[0]

	q := filepath.Join(r.dir, "q.log")
	if err := os.WriteFile(q, []byte("q one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.reload("# moves all lines\n" + first + second)
	if r.agent.list()[0] != member {
		t.Error("a pipeline that is what it was was started again")
	}
	r.until("q is delivered", func() bool {
		return slices.ContainsFunc(r.agent.Accounts(), func(a Account) bool { return a.Pipeline == "q" && a.Acked.Lines == 1 })
	})
	r.reload(first)
	if got := r.agent.Accounts(); len(got) != 1 {
		t.Errorf("%d pipelines are run", len(got))
	}
	appendTo(t, q, "q two\n")
	r.reload(first + second)
	if got := r.delivered(2, topic+"-q"); !slices.Equal(got, []string{"q one", "q two"}) {
		t.Errorf("the pipeline that came back delivered %q", got)
	}
	if err := r.agent.Reload(r.parse(first)); err == nil {
		t.Error("an agent that has stopped was reloaded")
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.WriteString(f, text); err != nil {
		t.Fatal(err)
	}
}

// The broker is dead while the topic and the brokers' address change, and while the pipeline is removed and added; the agent is stopped and
// started in between too. What lies in the journal for the old topic goes there.
func TestReloadAgainstADeadBroker(t *testing.T) {
	broker := startKillableBroker(t)
	a, b := fmt.Sprintf("a-%d", time.Now().UnixNano()), fmt.Sprintf("b-%d", time.Now().UnixNano())
	r := startReloadRun(t, broker.addr, reloadYAML(a, ""))
	r.write(0, 500)
	waitDelivered(t, r.agent, 500)
	r.reload(reloadYAML(b, "")) // the topic is made while it can be
	r.write(500, 600)
	waitDelivered(t, r.agent, 600)
	r.reload(reloadYAML(a, ""))
	r.write(600, 601) // so that it has a producer ID
	waitDelivered(t, r.agent, 601)

	broker.kill()
	r.write(601, 1600)
	r.until("batches in the journal", func() bool { return r.agent.Accounts()[0].JournalBatches > 0 })
	r.reload(reloadYAML(b, ""))
	r.write(1600, 2000)
	r.reload("pipeline: other\ncollect: {file: {include: ['DIR/other.log']}}\n")
	r.reload(reloadYAML(b, "") + "---\npipeline: other\ncollect: {file: {include: ['DIR/other.log']}}\n")
	if err := r.agent.Reload(r.parse(strings.Replace(reloadYAML(b, ""), "pipeline: p\n", "pipeline: p\nbrokers: {addr: ['127.0.0.1:1']}\n", 1))); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.up(reloadYAML(b, ""))
	broker.start()
	r.write(2000, 2100)
	r.checkOnce(r.delivered(2100, a, b), 2100)
}

// until waits for a condition on the running agent.
func (r *reloadRun) until(what string, ok func() bool) {
	r.t.Helper()
	deadline, tick := time.NewTimer(3*patience), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			r.t.Fatalf("not in time: %s; %+v", what, r.agent.Accounts())
		case <-tick.C:
		}
	}
}

// Pipelines that cannot be built leave all as it was, and the error says where they stand.
func TestReloadRefusesWhatCannotRun(t *testing.T) {
	addr := startBroker(t, testenv.Sluice(t))
	topic := fmt.Sprintf("a-%d", time.Now().UnixNano())
	r := startReloadRun(t, addr, reloadYAML(topic, ""))
	r.write(0, 10)
	waitDelivered(t, r.agent, 10)
	member := r.agent.list()[0]
	bad := strings.Replace(reloadYAML(topic, ""), "'DIR/app.log'", "'DIR/{a'", 1)
	err := r.agent.Reload(r.parse(bad))
	if err == nil || !strings.Contains(err.Error(), "test.yaml:1:1") {
		t.Errorf("a pattern that is none: %v", err)
	}
	if r.agent.list()[0] != member || r.agent.Ready() != nil {
		t.Error("the pipeline was touched")
	}
	r.write(10, 20)
	r.checkOnce(r.delivered(20, topic), 20)
}

// killableBroker is a broker that can be killed and started again.
type killableBroker struct {
	t    *testing.T
	addr string
	data string
	now  *testenv.Process
}

func startKillableBroker(t *testing.T) *killableBroker {
	t.Helper()
	b := &killableBroker{t: t, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(t))), data: t.TempDir()}
	b.start()
	return b
}

func (b *killableBroker) start() {
	b.t.Helper()
	b.now = testenv.Start(b.t, testenv.Command{
		Name: "broker", Path: testenv.Sluice(b.t),
		Args:  []string{"broker", "--listen", b.addr, "--data", b.data, "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, b.addr) },
	})
}

func (b *killableBroker) kill() { b.now.Kill() }
