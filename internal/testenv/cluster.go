package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	clusterNodes = 3
	// Three JVMs that start at once on a busy machine get in each other's way.
	clusterReadyTimeout = 3 * time.Minute
	zooKeeperSession    = 10 * time.Second
)

// ClusterConfig says how a cluster is started; its zero value is usable.
type ClusterConfig struct {
	Nodes      int               // zero: 3
	Network    *Network          // a host of its own for each node; nil: all on 127.0.0.1
	Properties map[string]string // added to each node's
	DiskBytes  int64             // above zero each node's data lies on a file system of that size; takes a Network that CanCut
	Measured   bool              // Apache Kafka runs as its own start script runs it
	WallClock  bool              // nodes of ours have a wall clock that signals move
}

// Cluster is a set of running brokers, ours or Apache Kafka's: what a test does
// to either is the same.
type Cluster struct {
	Name  string // sluice or kafka
	Nodes []*Node
}

// Node is one broker of a cluster. Its methods may be called from any
// goroutine, but a restart from one at a time.
type Node struct {
	ID      int32
	Addr    string // host:port for clients
	Metrics string // host:port of a broker of ours; else empty
	Host    *Host
	DataDir string // on the host: Host.Path has the test's name for it
	command Command
	logs    string

	mu      sync.Mutex
	process *Process
}

// Process is the node's newest process.
func (n *Node) Process() *Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

// Logs is the directory of the node's configuration and output.
func (n *Node) Logs() string { return n.logs }

// Kill ends the node by SIGKILL.
func (n *Node) Kill() { n.Process().Kill() }

// Stop ends the node by SIGTERM, as an operator does.
func (n *Node) Stop() error { return n.Process().Stop() }

// Ended says whether the node's newest process has ended, or none was started.
func (n *Node) Ended() bool {
	p := n.Process()
	if p == nil {
		return true
	}
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// Launch starts a node that has ended, on the same data and address, and does not
// wait for it.
func (n *Node) Launch() error {
	_, _, err := n.launch()
	return err
}

func (n *Node) launch() (*Process, Command, error) {
	command := n.Host.In(n.command)
	command.ReadyTimeout = clusterReadyTimeout
	p, err := spawn(command, n.logs)
	if err != nil {
		return nil, command, fmt.Errorf("start %s: %w", n.command.Name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.process = p
	return p, command, nil
}

// Restart is Launch, and waits until the node answers.
func (n *Node) Restart(ctx context.Context) error {
	if old := n.Process(); old != nil {
		<-old.Done()
	}
	p, command, err := n.launch()
	if err != nil {
		return err
	}
	if err := p.awaitReady(ctx, command); err != nil {
		return fmt.Errorf("start %s: %w; it printed:\n%s", n.command.Name, err, p.tail())
	}
	return nil
}

// Addrs are the addresses of all nodes, for clients.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		addrs[i] = n.Addr
	}
	return addrs
}

// Node returns the node of that broker ID, nil if there is none.
func (c *Cluster) Node(id int32) *Node {
	if i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.ID == id }); i >= 0 {
		return c.Nodes[i]
	}
	return nil
}

// Restart starts the nodes that have ended, all at once, since one alone may
// wait for the others.
func (c *Cluster) Restart(ctx context.Context) error {
	errs := make([]error, len(c.Nodes))
	var wg sync.WaitGroup
	for i, n := range c.Nodes {
		if !n.Ended() {
			continue
		}
		wg.Go(func() { errs[i] = n.Restart(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// start launches all nodes; they end with t.
func (c *Cluster) start(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		for _, n := range c.Nodes {
			if p := n.Process(); p != nil {
				p.Kill() // its data goes too: no need to wait for a clean stop
			}
		}
		if t.Failed() {
			for _, n := range c.Nodes {
				t.Logf("%s printed:\n%s", n.command.Name, n.Process().tail())
			}
		}
	})
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// newNode prepares a node's host, address and directories.
func (cfg ClusterConfig) newNode(t testing.TB, cluster string, id int32) *Node {
	t.Helper()
	network := cfg.Network
	if network == nil {
		network = &Network{Test: loopback}
	}
	dir := t.TempDir()
	n := &Node{ID: id, Host: network.Host(t, fmt.Sprintf("%s-%d", cluster, id)), DataDir: filepath.Join(dir, "data"), logs: dir}
	n.Addr = fmt.Sprintf("%s:%d", n.Host.IP, FreePort(t))
	if cfg.DiskBytes > 0 {
		n.Host.SmallDisk(t, n.DataDir, cfg.DiskBytes)
	}
	return n
}

func (cfg ClusterConfig) nodes() int {
	if cfg.Nodes == 0 {
		return clusterNodes
	}
	return cfg.Nodes
}

// properties is defaults with the configured ones over them, a line each as
// form says.
func (cfg ClusterConfig) properties(defaults map[string]string, form string) []byte {
	all := maps.Clone(defaults)
	maps.Copy(all, cfg.Properties)
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, form, k, all[k])
	}
	return []byte(b.String())
}

// makeChroot makes the path of a connection string, as an operator does once.
func makeChroot(t testing.TB, zooKeeper string) {
	t.Helper()
	servers, path, ok := strings.Cut(zooKeeper, "/")
	if !ok {
		return
	}
	conn, _, err := zk.Connect(strings.Split(servers, ","), zooKeeperSession, zk.WithLogger(noLogger{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Create("/"+path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		t.Fatalf("make %s in ZooKeeper: %v", path, err)
	}
}

type noLogger struct{}

func (noLogger) Printf(string, ...any) {}

// StartCluster starts brokers of ours that meet in a ZooKeeper: its addresses and
// a path of one name, which is made.
func StartCluster(t testing.TB, zooKeeper string, cfg ClusterConfig) *Cluster {
	t.Helper()
	binary := Sluice(t)
	if cfg.WallClock {
		binary = SluiceWithWallClock(t)
	}
	makeChroot(t, zooKeeper)
	c := &Cluster{Name: "sluice"}
	for id := range int32(cfg.nodes()) {
		n := cfg.newNode(t, c.Name, id+1)
		n.Metrics = fmt.Sprintf("%s:%d", n.Host.IP, FreePort(t))
		file := filepath.Join(n.logs, "broker.yaml")
		content := cfg.properties(map[string]string{
			"node.id":                          fmt.Sprint(n.ID),
			"zookeeper.connect":                zooKeeper,
			"zookeeper.connection.timeout.ms":  "60000", // a busy machine's ZooKeeper takes its time
			"default.replication.factor":       "3",
			"min.insync.replicas":              "2",
			"offsets.topic.replication.factor": "3",
			"offsets.topic.num.partitions":     "4",
			"group.initial.rebalance.delay.ms": "0",
		}, "%s: %q\n")
		if err := os.WriteFile(file, content, 0o644); err != nil {
			t.Fatal(err)
		}
		n.command = Command{Name: n.Host.Name, Path: binary, Dir: n.logs,
			Args:  []string{"broker", "--config", file, "--data", n.DataDir, "--listen", n.Addr, "--metrics", n.Metrics},
			Ready: func(ctx context.Context) error { return PingKafka(ctx, n.Addr) }}
		c.Nodes = append(c.Nodes, n)
	}
	c.start(t)
	return c
}

// kafkaDirectoryIDs are arbitrary; the nodes of a new cluster must be told those
// of each other.
var kafkaDirectoryIDs = []string{
	"Lpf3kOUWSQmYseBL3Sk4Ag", "Lpf3kOUWSQmYseBL3Sk4Bg", "Lpf3kOUWSQmYseBL3Sk4Cg", "Lpf3kOUWSQmYseBL3Sk4Dg", "Lpf3kOUWSQmYseBL3Sk4Eg",
}

// StartKafkaCluster starts nodes of Apache Kafka that are brokers and
// controllers in one.
func StartKafkaCluster(t testing.TB, cfg ClusterConfig) *Cluster {
	t.Helper()
	parts := need(t, kafkaPart)
	c := &Cluster{Name: "kafka"}
	var controllers, voters []string
	for i := range cfg.nodes() {
		n := cfg.newNode(t, c.Name, int32(i+1))
		controller := fmt.Sprintf("%s:%d", n.Host.IP, FreePort(t))
		controllers = append(controllers, controller)
		voters = append(voters, fmt.Sprintf("%d@%s:%s", n.ID, controller, kafkaDirectoryIDs[i]))
		c.Nodes = append(c.Nodes, n)
	}
	for i, n := range c.Nodes {
		listeners := fmt.Sprintf("PLAINTEXT://%s,CONTROLLER://%s", n.Addr, controllers[i])
		properties := filepath.Join(n.logs, "server.properties")
		content := cfg.properties(kafkaDefaults(map[string]string{
			"node.id":                             fmt.Sprint(n.ID),
			"controller.quorum.bootstrap.servers": strings.Join(controllers, ","),
			"listeners":                           listeners,
			"advertised.listeners":                listeners,
			"log.dirs":                            n.DataDir,
			"default.replication.factor":          "3",
			"min.insync.replicas":                 "2",
			"offsets.topic.replication.factor":    "3",
		}), "%s=%s\n")
		if err := os.WriteFile(properties, content, 0o644); err != nil {
			t.Fatal(err)
		}
		format := n.Host.In(Command{Path: "java", Args: toolArgs(parts, "kafka.tools.StorageTool",
			"format", "--initial-controllers", strings.Join(voters, ","), "--cluster-id", kafkaClusterID, "--config", properties)})
		if out, err := exec.CommandContext(t.Context(), format.Path, format.Args...).CombinedOutput(); err != nil {
			t.Fatalf("format Kafka's storage: %v\n%s", err, out)
		}
		n.command = kafkaCommand(n.Host.Name, parts, properties, n.logs, n.Addr, KafkaConfig{Measured: cfg.Measured})
	}
	c.start(t)
	return c
}
