package testenv

import (
	"context"
	"embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	mavenCopyDependencies = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
	javaMin               = 17
	kafkaHeap             = "512m"
	// formatted storage needs some cluster ID; every server here is a cluster.
	kafkaClusterID = "MkU3OEVBNTcwNTJENDM2Qk"
)

//go:embed kafka
var kafkaFiles embed.FS

var kafkaPart = Part{
	Name:    "kafka",
	Version: "4.4.0",
	From:    "mvn",
	toFetch: []string{"mvn"},
	toRun:   []string{"java"},
	check:   checkJava,
	fetch:   fetchKafka,
}

func fetchKafka(ctx context.Context, dir, version string) error {
	if err := os.CopyFS(dir, kafkaFiles); err != nil {
		return err
	}
	return runIn(ctx, filepath.Join(dir, "kafka"), "mvn", "--batch-mode", "--quiet", mavenCopyDependencies,
		"-Dkafka.version="+version, "-DoutputDirectory="+filepath.Join(dir, "jars"))
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

func checkJava(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "java", "-version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("run java -version: %w", err)
	}
	m := javaVersion.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("java -version says no version: %s", lastLines(string(out), 1))
	}
	if have, _ := strconv.Atoi(string(m[1])); have < javaMin {
		return fmt.Errorf("it takes Java %d, java is %d", javaMin, have)
	}
	return nil
}

// KafkaServer is an Apache Kafka of one node, broker and controller in one.
type KafkaServer struct {
	Addr string // host:port of the client listener
	again
}

// KafkaConfig says what is particular about a server; its zero value is usable.
type KafkaConfig struct {
	// Properties are added to the server's, as in server.properties.
	Properties map[string]string
	// Measured runs the server as Kafka's own start script does, with its
	// heap, collector and compilers, for a fair comparison. Otherwise it is
	// started to be up soon and small.
	Measured bool
}

func (cfg KafkaConfig) javaArgs() []string {
	if cfg.Measured {
		return []string{"-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
			"-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"}
	}
	return []string{"-Xms" + kafkaHeap, "-Xmx" + kafkaHeap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
}

var sharedKafka struct {
	sync.Once
	server *KafkaServer
	err    error
}

// Kafka returns a running Apache Kafka that all tests of this test binary
// share, since one takes seconds to start: use topics and groups of your own,
// and do not stop it. It ends with the test binary.
func Kafka(t testing.TB) *KafkaServer {
	t.Helper()
	parts := need(t, kafkaPart)
	sharedKafka.Do(func() {
		sharedKafka.server, sharedKafka.err = startSharedKafka(parts)
	})
	if sharedKafka.err != nil {
		t.Fatal(sharedKafka.err)
	}
	printOnFailure(t, sharedKafka.server.Process)
	return sharedKafka.server
}

func startSharedKafka(parts string) (*KafkaServer, error) {
	dir, err := os.MkdirTemp("", "sluice-test-kafka-*")
	if err != nil {
		return nil, err
	}
	// Not the test's context and directory: the server outlives the test that
	// came first.
	return startKafka(context.Background(), parts, dir, dir, KafkaConfig{})
}

// StartKafka starts an Apache Kafka for t alone, which may be stopped, killed
// and restarted.
func StartKafka(t testing.TB, cfg KafkaConfig) *KafkaServer {
	t.Helper()
	parts := need(t, kafkaPart)
	s, err := startKafka(t.Context(), parts, t.TempDir(), "", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Kill() }) // its data goes too: no need to wait for a clean stop
	printOnFailure(t, s.Process)
	return s
}

// startKafka formats and starts a server in dir. The directory dirRemoved, if
// any, is removed when the test binary is gone.
func startKafka(ctx context.Context, parts, dir, dirRemoved string, cfg KafkaConfig) (*KafkaServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	controllerPort, err := freePort()
	if err != nil {
		return nil, err
	}
	properties := filepath.Join(dir, "server.properties")
	if err := os.WriteFile(properties, serverProperties(dir, port, controllerPort, cfg), 0o644); err != nil {
		return nil, err
	}
	format := exec.CommandContext(ctx, "java", toolArgs(parts, "kafka.tools.StorageTool",
		"format", "--standalone", "--cluster-id", kafkaClusterID, "--config", properties)...)
	if out, err := format.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("format Kafka's storage: %w\n%s", err, out)
	}
	s := &KafkaServer{Addr: fmt.Sprintf("127.0.0.1:%d", port), again: again{Dir: dir}}
	s.command = kafkaCommand("kafka", parts, properties, dir, s.Addr, cfg)
	s.command.dirRemoved = dirRemoved
	if s.Process, err = launch(ctx, s.command, dir); err != nil {
		return nil, err
	}
	return s, nil
}

func kafkaCommand(name, parts, properties, dir, addr string, cfg KafkaConfig) Command {
	return Command{
		Name: name,
		Path: "java",
		Args: append(cfg.javaArgs(), "-Djava.awt.headless=true",
			"-Dlog4j2.configurationFile="+filepath.Join(parts, "kafka/server-log4j2.properties"),
			"-cp", filepath.Join(parts, "jars", "*"), "kafka.Kafka", properties),
		Dir:   dir,
		Ready: func(ctx context.Context) error { return PingKafka(ctx, addr) },
	}
}

func serverProperties(dir string, port, controllerPort int, cfg KafkaConfig) []byte {
	listeners := fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, controllerPort)
	properties := kafkaDefaults(map[string]string{
		"node.id":                             "1",
		"controller.quorum.bootstrap.servers": fmt.Sprintf("127.0.0.1:%d", controllerPort),
		"listeners":                           listeners,
		"advertised.listeners":                listeners,
		"log.dirs":                            filepath.Join(dir, "data"),
		"offsets.topic.replication.factor":    "1",
	})
	for k, v := range cfg.Properties {
		properties[k] = v
	}
	var b strings.Builder
	for k, v := range properties {
		fmt.Fprintf(&b, "%s=%s\n", k, v)
	}
	return []byte(b.String())
}

// kafkaDefaults adds to a node's properties those that all tests share.
func kafkaDefaults(node map[string]string) map[string]string {
	shared := map[string]string{
		"process.roles":                  "broker,controller",
		"inter.broker.listener.name":     "PLAINTEXT",
		"controller.listener.names":      "CONTROLLER",
		"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",

		"offsets.topic.num.partitions":                     "4", // fewer files, faster start
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "4",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"group.initial.rebalance.delay.ms":                 "0",
		// A killed server may register again only when its old session is over.
		"broker.session.timeout.ms":    "3000",
		"broker.heartbeat.interval.ms": "500",
	}
	maps.Copy(shared, node)
	return shared
}

// PingKafka returns nil if a broker at addr answers ApiVersions and Metadata.
func PingKafka(ctx context.Context, addr string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Ping(ctx)
}

// KafkaTool returns a command that runs one of Kafka's own tools, by its class,
// such as org.apache.kafka.tools.TopicCommand (kafka-topics). The command is
// killed when t ends.
func KafkaTool(t testing.TB, class string, args ...string) *exec.Cmd {
	t.Helper()
	parts := need(t, kafkaPart)
	return exec.CommandContext(t.Context(), "java", toolArgs(parts, class, args...)...)
}

func toolArgs(parts, class string, args ...string) []string {
	return append([]string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dlog4j2.configurationFile=" + filepath.Join(parts, "kafka/tools-log4j2.properties"),
		"-cp", filepath.Join(parts, "jars", "*"), class}, args...)
}

// printOnFailure shows the end of a server's log if t fails.
func printOnFailure(t testing.TB, p *Process) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s (pid %d) printed:\n%s", p.name, p.PID(), p.tail())
		}
	})
}

// LogDir is the directory of the partitions' directories.
func (s *KafkaServer) LogDir() string { return filepath.Join(s.Dir, "data") }
