package hdfs_test

import (
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
	"github.com/sluice-io/sluice/sinks/directory"
	"github.com/sluice-io/sluice/sinks/hdfs"
	"github.com/sluice-io/sluice/sinks/storm"
)

var (
	stormFlags = storm.DefineFlags()
	nameNodes  = flag.String("storm.namenodes", "2,1", "how many NameNodes a storm's HDFS has, comma-separated: 1, or a pair")
)

// TestWorkerProcess is not a test: it is the worker that others kill.
func TestWorkerProcess(t *testing.T) {
	storm.RunWorker(t, func(log *slog.Logger, spec *pipelines.SinkSpec) (sinks.Sink, error) { return hdfs.New(log, spec) })
}

// TestStorm breaks HDFS, workers and brokers, and compares the files with what was produced: a part of `make test-files`.
func TestStorm(t *testing.T) {
	if stormFlags.Rounds == 0 {
		t.Skip("takes minutes: make test-files")
	}
	for _, on := range strings.Split(stormFlags.On, ",") {
		for _, n := range strings.Split(*nameNodes, ",") {
			t.Run(on+"-"+n, func(t *testing.T) {
				p := &stormFiles{server: testenv.StartHDFS(t, testenv.HDFSConfig{DataNodes: 3, Replication: 2, Pair: n == "2"})}
				s := storm.New(t, stormFlags, on, "hdfs"+n)
				s.Place = p
				s.Run(stormFlags, p.faults())
			})
		}
	}
}

// stormFiles is a directory of an HDFS under a storm.
type stormFiles struct{ server *testenv.HDFSServer }

const stormRoot = "/storm"

// Sink is a sink into JSON lines, whose fields depend on the mapping.
func (p *stormFiles) Sink(_ *storm.Storm, _ *storm.Worker, mapping int) string {
	return fmt.Sprintf("  hdfs:\n    namenodes: [%s]\n    path: %s\n    user: %s\n    format: json\n    timeout: 2s\n    columns: {n: n, m: n * %d}\n",
		p.server.NameNodes(), stormRoot, p.server.User, mapping)
}

// Heal has nothing to do: what died is started again by the faults.
func (p *stormFiles) Heal(*storm.Storm) {}

// Rows reads every file; the topic's ID is in the names.
func (p *stormFiles) Rows(s *storm.Storm, each func(storm.Row)) {
	f, err := open(p.server.NameNodes(), p.server.User, stormRoot)
	if err != nil {
		s.Fatal(err)
	}
	defer f.(*hdfs.FS).Close()
	files := map[string]bool{}
	err = directory.ReadFrom(f, func(row directory.Row) error {
		files[row.File] = true
		parts := strings.Split(strings.TrimPrefix(row.File[strings.LastIndexByte(row.File, '/')+1:], row.Topic+"-"), "-")
		topic, err := sinks.ParseTopicID(parts[1])
		if err != nil {
			return err
		}
		if parts[0] != strconv.Itoa(int(row.Partition)) {
			return fmt.Errorf("a row of partition %d is in %s", row.Partition, row.File)
		}
		n, _ := row.Fields["n"].(int64)
		each(storm.Row{Topic: topic, Partition: row.Partition, Offset: row.Offset, N: n})
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	wantNoEmptyFiles(s, f, files, "")
}

func (p *stormFiles) faults() []storm.Fault {
	pair := func(*storm.Storm) bool { return p.server.Second != nil }
	return append(storm.Faults(true),
		storm.Fault{Name: "DataNode killed", Run: p.dataNodeKilled},
		storm.Fault{Name: "DataNode frozen", Run: p.dataNodeFrozen},
		storm.Fault{Name: "NameNode killed", Run: p.nameNodeKilled},
		storm.Fault{Name: "NameNodes fail over", Run: p.failOver, Only: pair},
		storm.Fault{Name: "active NameNode killed", Run: p.activeKilled, Only: pair},
		storm.Fault{Name: "NameNode frozen", Run: p.nameNodeFrozen},
		storm.Fault{Name: "space quota", Run: func(s *storm.Storm) { p.quota(s, "namespacequota=9223372036854775807&storagespacequota=1") }},
		storm.Fault{Name: "name quota", Run: func(s *storm.Storm) { p.quota(s, "namespacequota=1&storagespacequota=9223372036854775807") }},
	)
}

func (p *stormFiles) dataNodeKilled(s *storm.Storm) {
	s.One()
	s.Produce(1500)
	storm.Pause(s.SomeTime(300))
	node := p.server.DataNodes[s.Rng.IntN(len(p.server.DataNodes))]
	node.Kill()
	s.Produce(1500)
	storm.Pause(s.SomeTime(2000))
	node.Restart(s)
}

// nameNodeKilled kills the active NameNode and has it come back: of a pair both stand by then, until one is told to be active.
func (p *stormFiles) nameNodeKilled(s *storm.Storm) {
	s.One()
	s.Produce(1500)
	storm.Pause(s.SomeTime(300))
	node := p.server.Active()
	node.Kill()
	s.Produce(1500)
	storm.Pause(s.SomeTime(2000))
	node.Restart(s)
	if p.server.Second != nil {
		p.server.Failover(s)
	}
}

// activeKilled kills the active NameNode and has the other take its place.
func (p *stormFiles) activeKilled(s *storm.Storm) {
	s.One()
	s.Produce(1500)
	storm.Pause(s.SomeTime(300))
	node := p.server.Active()
	node.Kill()
	s.Produce(1500)
	p.server.Failover(s)
	s.Produce(200)
	node.Restart(s)
}

func (p *stormFiles) failOver(s *storm.Storm) {
	s.One()
	s.Produce(1500)
	storm.Pause(s.SomeTime(200))
	p.server.Failover(s)
	s.Produce(500)
}

func (p *stormFiles) nameNodeFrozen(s *storm.Storm) { p.frozen(s, p.server.Active()) }

// dataNodeFrozen stops one of three, each of which has two thirds of the files.
func (p *stormFiles) dataNodeFrozen(s *storm.Storm) {
	p.frozen(s, p.server.DataNodes[s.Rng.IntN(len(p.server.DataNodes))])
}

func (p *stormFiles) frozen(s *storm.Storm, node *testenv.HDFSNode) {
	s.One()
	s.Produce(1500)
	storm.Pause(s.SomeTime(300))
	if err := node.Signal(syscall.SIGSTOP); err != nil {
		s.Fatal(err)
	}
	s.Produce(1500)
	storm.Pause(s.SomeTime(5000)) // also past the sink's timeout and its claims' deadline
	if err := node.Signal(syscall.SIGCONT); err != nil {
		s.Fatal(err)
	}
}

// quota leaves no room for more, and then takes the limit away.
func (p *stormFiles) quota(s *storm.Storm, limits string) {
	s.One()
	s.Produce(1500)
	storm.Pause(s.SomeTime(300))
	set := func(limits string) {
		values, err := url.ParseQuery("op=SETQUOTA&" + limits)
		if err != nil {
			s.Fatal(err)
		}
		p.server.WebHDFS(s, http.MethodPut, stormRoot, values)
	}
	set(limits)
	s.Produce(1500)
	storm.Pause(time.Second + s.SomeTime(1500))
	set("namespacequota=-1&storagespacequota=-1")
}
