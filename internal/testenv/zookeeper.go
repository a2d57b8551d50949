package testenv

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

//go:embed zookeeper
var zooKeeperFiles embed.FS

var zooKeeperPart = Part{
	Name:    "zookeeper",
	Version: "3.8.6",
	From:    "mvn",
	toFetch: []string{"mvn"},
	toRun:   []string{"java"},
	check:   checkJava,
	fetch:   fetchZooKeeper,
}

func fetchZooKeeper(ctx context.Context, dir, version string) error {
	if err := os.CopyFS(dir, zooKeeperFiles); err != nil {
		return err
	}
	return runIn(ctx, filepath.Join(dir, "zookeeper"), "mvn", "--batch-mode", "--quiet", mavenCopyDependencies,
		"-Dzookeeper.version="+version, "-DoutputDirectory="+filepath.Join(dir, "jars"))
}

const (
	zooKeeperHeap = "128m"
	// A tick of 100 ms allows sessions from 200 ms on. The limits, in ticks, are
	// as wide as with ZooKeeper's usual tick, for machines that are busy.
	zooKeeperConfig = `tickTime=100
initLimit=100
syncLimit=30
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
`
)

// ZooKeeperServer is an Apache ZooKeeper, alone or one of an ensemble. It takes
// session timeouts from 200 ms to 60 s.
type ZooKeeperServer struct {
	Addr string // host:port of the client listener
	Host *Host
	*Process
	dir     string
	command Command
}

var sharedZooKeeper struct {
	sync.Once
	server *ZooKeeperServer
	err    error
}

// ZooKeeper returns a running Apache ZooKeeper that all tests of this test
// binary share: use a chroot of your own, and do not stop it.
func ZooKeeper(t testing.TB) *ZooKeeperServer {
	t.Helper()
	parts := need(t, zooKeeperPart)
	sharedZooKeeper.Do(func() {
		dir, err := os.MkdirTemp("", "sluice-test-zookeeper-*")
		if err == nil {
			sharedZooKeeper.server, err = prepareZooKeeper(parts, dir, "", loopback)
		}
		if err == nil {
			sharedZooKeeper.server.command.dirRemoved = dir
			err = sharedZooKeeper.server.start(context.Background())
		}
		sharedZooKeeper.err = err
	})
	if sharedZooKeeper.err != nil {
		t.Fatal(sharedZooKeeper.err)
	}
	printOnFailure(t, sharedZooKeeper.server.Process)
	return sharedZooKeeper.server
}

// ZooKeeperJars is the directory of the jars of a ZooKeeper, for a program that
// starts one itself.
func ZooKeeperJars(t testing.TB) string {
	t.Helper()
	return filepath.Join(need(t, zooKeeperPart), "jars")
}

// StartZooKeeper starts a ZooKeeper for t alone, which may be stopped, killed
// and restarted.
func StartZooKeeper(t testing.TB) *ZooKeeperServer {
	t.Helper()
	return StartZooKeeperOn(t, loopback)[0]
}

// StartZooKeeperEnsemble starts an ensemble of three for t alone.
func StartZooKeeperEnsemble(t testing.TB) []*ZooKeeperServer {
	t.Helper()
	return StartZooKeeperOn(t, loopback, loopback, loopback)
}

// StartZooKeeperOn starts a server on each host, one alone or several as an
// ensemble, for t alone.
func StartZooKeeperOn(t testing.TB, hosts ...*Host) []*ZooKeeperServer {
	t.Helper()
	parts := need(t, zooKeeperPart)
	var members strings.Builder
	for i, h := range hosts {
		if len(hosts) > 1 {
			fmt.Fprintf(&members, "server.%d=%s:%d:%d\n", i+1, h.IP, FreePort(t), FreePort(t))
		}
	}
	var servers []*ZooKeeperServer
	for i, h := range hosts {
		s, err := prepareZooKeeper(parts, t.TempDir(), members.String(), h)
		if err == nil {
			err = os.WriteFile(filepath.Join(s.dir, "data", "myid"), fmt.Append(nil, i+1), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, s)
	}
	startZooKeepers(t, servers...)
	return servers
}

// RestartZooKeepers starts those that have ended, at once, since those of an
// ensemble are ready only when most of them run.
func RestartZooKeepers(ctx context.Context, servers ...*ZooKeeperServer) error {
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		if s.Process != nil {
			select {
			case <-s.Done():
			default:
				continue
			}
		}
		all.Go(func() { errs[i] = s.start(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func startZooKeepers(t testing.TB, servers ...*ZooKeeperServer) {
	t.Helper()
	err := RestartZooKeepers(t.Context(), servers...)
	for _, s := range servers {
		if s.Process != nil {
			t.Cleanup(func() { s.Kill() }) // its data goes too: no need to wait for a clean stop
			printOnFailure(t, s.Process)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// prepareZooKeeper configures a server of a host in dir; members has the lines of the
// ensemble, none for a server of its own.
func prepareZooKeeper(parts, dir, members string, host *Host) (*ZooKeeperServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	data, config := filepath.Join(dir, "data"), filepath.Join(dir, "zoo.cfg")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("%sdataDir=%s\nclientPort=%d\nclientPortAddress=%s\n%s", zooKeeperConfig, data, port, host.IP, members)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	s := &ZooKeeperServer{Addr: fmt.Sprintf("%s:%d", host.IP, port), Host: host, dir: dir}
	s.command = host.In(Command{
		Name: "zookeeper",
		Path: "java",
		Args: []string{"-Xms" + zooKeeperHeap, "-Xmx" + zooKeeperHeap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			"-Dlogback.configurationFile=" + filepath.Join(parts, "zookeeper/logback.xml"),
			"-Dzookeeper.preAllocSize=1024", "-Djava.awt.headless=true",
			"-cp", filepath.Join(parts, "jars", "*"),
			"org.apache.zookeeper.server.quorum.QuorumPeerMain", config},
		Dir:          dir,
		ReadyTimeout: clusterReadyTimeout,
		Ready: func(ctx context.Context) error {
			_, err := s.Mode(ctx)
			return err
		},
	})
	return s, nil
}

func (s *ZooKeeperServer) start(ctx context.Context) (err error) {
	s.Process, err = launch(ctx, s.command, s.dir)
	return err
}

// Restart starts a server that was stopped or killed again, on the same port
// and data.
func (s *ZooKeeperServer) Restart(t testing.TB) {
	t.Helper()
	<-s.Done()
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	printOnFailure(t, s.Process)
}

// Mode is what the server is: standalone, leader or follower. An error says
// that it serves nobody.
func (s *ZooKeeperServer) Mode(ctx context.Context) (string, error) {
	answer, err := s.ask(ctx, "srvr")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(answer) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode), nil
		}
	}
	return "", fmt.Errorf("ZooKeeper does not serve: %s", lastLines(answer, 1))
}

// ask sends one of ZooKeeper's commands of four letters.
func (s *ZooKeeperServer) ask(ctx context.Context, command string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.Addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(conn, command); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}
