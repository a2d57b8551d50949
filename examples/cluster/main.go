// Command cluster runs a ZooKeeper and three brokers on this machine until it
// is interrupted, to try what a cluster does when one of them dies: it starts
// again what ends. Everything it writes lies in one directory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	startTimeout  = 60 * time.Second // a JVM on a busy machine takes its time
	startPoll     = 100 * time.Millisecond
	stopTimeout   = 20 * time.Second
	restartAfter  = 10 * time.Second // long enough to see what the others do meanwhile
	zooKeeperHeap = "128m"
)

// zooKeeperLogging keeps ZooKeeper from logging every packet.
const zooKeeperLogging = `<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %level %msg%n</pattern></encoder></appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
`

func main() {
	c := cluster{}
	flag.StringVar(&c.sluice, "sluice", "bin/sluice", "the sluice `binary`")
	flag.StringVar(&c.dir, "dir", "build/cluster", "`directory` of all data and logs")
	ports := flag.String("ports", "9092,9093,9094", "`ports` of the brokers, one for each")
	flag.IntVar(&c.zooKeeperPort, "zookeeper-port", 2181, "`port` of ZooKeeper")
	flag.StringVar(&c.zooKeeper, "zookeeper", "", "`directory` of an unpacked ZooKeeper; empty: $ZOOKEEPER_HOME, an installed one, or the one of `make parts`")
	flag.Parse()
	c.ports = strings.Split(*ports, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// cluster is what runs, with its flags. Its fields do not change after the start.
type cluster struct {
	sluice, dir, zooKeeper string
	ports                  []string
	zooKeeperPort          int
}

func (c *cluster) run(ctx context.Context) error {
	jars, err := c.zooKeeperJars()
	if err != nil {
		return err
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	zooKeeper, err := c.startZooKeeper(jars)
	if err != nil {
		return err
	}
	defer end(zooKeeper)

	var running sync.WaitGroup
	for id := 1; id <= len(c.ports); id++ {
		running.Go(func() { c.keepRunning(ctx, id) })
	}
	defer running.Wait() // before ZooKeeper ends, so that the brokers stop cleanly
	if err := c.awaitAll(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	if ctx.Err() == nil {
		c.explain()
	}
	<-ctx.Done()
	return nil
}

func (c *cluster) addr(id int) string { return "127.0.0.1:" + c.ports[id-1] }

func (c *cluster) addrs() []string {
	var all []string
	for id := range c.ports {
		all = append(all, c.addr(id+1))
	}
	return all
}

// zooKeeperJars is the class path of the ZooKeeper to run.
func (c *cluster) zooKeeperJars() (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", errors.New("ZooKeeper takes java, which is not installed")
	}
	places := []string{filepath.Join(c.zooKeeper, "lib"), c.zooKeeper}
	if c.zooKeeper == "" {
		places = []string{"/usr/share/zookeeper/lib", "/usr/share/java"}
		if home := os.Getenv("ZOOKEEPER_HOME"); home != "" {
			places = append([]string{filepath.Join(home, "lib")}, places...)
		}
		if cache, err := os.UserCacheDir(); err == nil {
			fetched, _ := filepath.Glob(filepath.Join(cache, "sluice-testenv", "zookeeper-*", "jars"))
			places = append(places, fetched...)
		}
	}
	for _, dir := range places {
		if found, _ := filepath.Glob(filepath.Join(dir, "zookeeper*.jar")); len(found) > 0 {
			return filepath.Join(dir, "*"), nil
		}
	}
	return "", fmt.Errorf("no ZooKeeper in %s: name one by -zookeeper, or fetch one by `make parts`", strings.Join(places, ", "))
}

func (c *cluster) startZooKeeper(jars string) (*exec.Cmd, error) {
	data, config := filepath.Join(c.dir, "zookeeper"), filepath.Join(c.dir, "zoo.cfg")
	text := fmt.Sprintf("tickTime=500\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n", data, c.zooKeeperPort)
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	logging := filepath.Join(c.dir, "logback.xml")
	if err := os.WriteFile(logging, []byte(zooKeeperLogging), 0o644); err != nil {
		return nil, err
	}
	return c.start("zookeeper", "java", "-Xmx"+zooKeeperHeap, "-Dlogback.configurationFile="+logging, "-cp", jars,
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
}

// start starts a program out of the terminal's signals, with its output in a
// file of its name.
func (c *cluster) start(name, program string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return cmd, nil
}

// end stops a program by SIGTERM, and by SIGKILL if that does not help.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(stopTimeout, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	_ = cmd.Wait()
}

// keepRunning runs a broker until ctx ends, and starts it again when it dies.
func (c *cluster) keepRunning(ctx context.Context, id int) {
	for ctx.Err() == nil {
		cmd, err := c.startBroker(id)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		fmt.Printf("broker %d listens on %s, pid %d\n", id, c.addr(id), cmd.Process.Pid)
		died := make(chan error, 1)
		go func() { died <- cmd.Wait() }()
		select {
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-died
			return
		case err := <-died:
			fmt.Printf("broker %d is dead (%v): another leads what it led; it is started again in %s\n", id, err, restartAfter)
		}
		select {
		case <-ctx.Done():
		case <-time.After(restartAfter):
		}
	}
}

func (c *cluster) startBroker(id int) (*exec.Cmd, error) {
	name := fmt.Sprintf("broker-%d", id)
	config := filepath.Join(c.dir, name+".yaml")
	text := fmt.Sprintf(`node.id: %d
zookeeper.connect: 127.0.0.1:%d
zookeeper.session.timeout.ms: 6000
default.replication.factor: 3
min.insync.replicas: 2
offsets.topic.replication.factor: 3
controlled.shutdown.retry.backoff.ms: 500
`, id, c.zooKeeperPort)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	return c.start(name, c.sluice, "broker", "--config", config, "--data", filepath.Join(c.dir, name), "--listen", c.addr(id), "--metrics", "")
}

// awaitAll waits until every broker is known to the cluster.
func (c *cluster) awaitAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs()...))
	if err != nil {
		return err
	}
	defer client.Close()
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for {
		known, err := kadm.NewClient(client).BrokerMetadata(ctx)
		if err == nil && len(known.Brokers) == len(c.ports) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d brokers are known after %s: the logs in %s say why", len(known.Brokers), len(c.ports), startTimeout, c.dir)
		}
	}
}

func (c *cluster) explain() {
	all := strings.Join(c.addrs(), ",")
	fmt.Printf(`
A ZooKeeper and the brokers run; their data and logs are in %s.
In another terminal:

  bin/sluice bench produce --brokers %s --topic lines --rate 1000 --duration 1m
  bin/sluice topics describe lines --brokers %s

and kill -9 one of the brokers meanwhile, by its pid above. Ctrl-C here ends all.
`, c.dir, all, all)
}
