package broker

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func ptr[T any](v T) *T { return &v }

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// brokerAt stands for a broker in another process.
func brokerAt(addr string) *Broker {
	b := &Broker{}
	b.addr.Store(&addr)
	return b
}

func TestConfigFile(t *testing.T) {
	cfg, err := ParseConfig("broker.yaml", []byte(`
# a comment
node.id: 3
listeners: [PLAINTEXT://127.0.0.1:9093, "127.0.0.1:9094"]
log.dirs: /tmp/x
num.partitions: 6
auto.create.topics.enable: false
offsets.retention.minutes: 60
group.initial.rebalance.delay.ms: 0
group.consumer.session.timeout.ms: 30000
group.consumer.heartbeat.interval.ms: 3000
group.consumer.max.size: 9
group.consumer.assignors: [range]
group.consumer.assignment.interval.ms: 0
group.consumer.migration.policy: DISABLED
log.retention.hours: 24
message.max.bytes: 2000000
connections.max.idle.ms: 5000
`))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.NodeID != 3 || len(cfg.Listen) != 2 || cfg.Listen[1] != "127.0.0.1:9094" || cfg.DataDir != "/tmp/x" || cfg.NumPartitions != 6 ||
		!cfg.NoAutoCreateTopics || cfg.OffsetsRetention != time.Hour || cfg.GroupInitialRebalanceDelay != -1 ||
		cfg.ConsumerGroupSessionTimeout != 30*time.Second || cfg.ConsumerGroupHeartbeatInterval != 3*time.Second ||
		cfg.ConsumerGroupMembersMax != 9 || !slices.Equal(cfg.ConsumerGroupAssignors, []string{"range"}) || cfg.ConsumerGroupAssignmentInterval != -1 ||
		cfg.TopicDefaults["log.retention.hours"] != "24" || cfg.ConnectionIdleMax != 5*time.Second {
		t.Errorf("%+v", cfg)
	}
}

func TestEmptyConfigFile(t *testing.T) {
	for _, src := range []string{"", "# nothing\n", "\n"} {
		if _, err := ParseConfig("f", []byte(src)); err != nil {
			t.Errorf("%q: %v", src, err)
		}
	}
}

func TestBadConfigFiles(t *testing.T) {
	for _, test := range []struct{ src, want string }{
		{"num.partition: 3\n", `f.yaml:1:1: unknown property "num.partition", did you mean "num.partitions"?`},
		{"group.consumer.assignors: sticky\n", `f.yaml:1:27: group.consumer.assignors: there is no assignor "sticky"; there are uniform, range`},
		{"group.consumer.migration.policy: both\n", `f.yaml:1:34: group.consumer.migration.policy: "both" is none of bidirectional, upgrade, downgrade, disabled`},
		{"node.id: 1\nnum.partitions: many\n", `f.yaml:2:17: num.partitions: "many" is not a whole number`},
		{"num.partitions: 0\n", `f.yaml:1:17: num.partitions: 0 is out of bounds`},
		{"node.id: 1\nnode.id: 2\n", `f.yaml:2:1: `},
		{"log:\n  dirs: x\n", `f.yaml:2:7: log must be a single value; properties are written flat`},
		{"log.dirs:\n  a: b\n", `log.dirs must be a single value`},
		{"log.dirs:\n", `log.dirs has no value`},
		{"- a\n", `a broker's configuration is a mapping`},
		{"auto.create.topics.enable: maybe\n", `"maybe" is not true or false`},
		{"log.cleanup.policy: keep\n", `it must be one of compact, delete`},
		{"log.retention.hours: x\n", `it must be a whole number`},
		{"log.segment.bytes: 10\n", `it must be at least 1048576`},
		{"completely.unknown.thing: 1\n", `f.yaml:1:1: unknown property "completely.unknown.thing"`},
		{"a: [\n", `f.yaml:`},
		{"node.id: 1\n---\nnode.id: 2\n", `one document`},
	} {
		_, err := ParseConfig("f.yaml", []byte(test.src))
		var place *ConfigError
		if err == nil || !strings.Contains(err.Error(), test.want) || !errors.As(err, &place) {
			t.Errorf("%q gives %v, want %s", test.src, err, test.want)
		}
	}
}

func TestPropertiesAreDescribed(t *testing.T) {
	cfg, err := ParseConfig("f", []byte("num.partitions: 3\nlog.retention.hours: 24\n"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range cfg.Properties() {
		if p.Doc == "" || p.Type == 0 {
			t.Errorf("%s: %+v", p.Name, p)
		}
		if seen[p.Name] {
			t.Errorf("%s is there twice", p.Name)
		}
		seen[p.Name] = true
		if wantSet := p.Name == "num.partitions" || p.Name == "log.retention.hours"; (p.Static != nil) != wantSet {
			t.Errorf("%s: set is %v", p.Name, p.Static != nil)
		}
	}
	for _, name := range PropertyNames() {
		if !seen[name] && propertyAliases()[name] == "" {
			t.Errorf("%s is not described", name)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	for _, test := range []struct {
		cfg  Config
		want string
	}{
		{Config{Listen: []string{"localhost"}}, "must be host:port"},
		{Config{Listen: []string{"SSL://localhost:1"}}, "only PLAINTEXT"},
		{Config{Listen: []string{"localhost:99999"}}, "from 0 to 65535"},
		{Config{Advertise: []string{"nowhere"}}, "must be host:port"},
		{Config{Listen: []string{"INTERNAL://localhost:1"}}, "add INTERNAL:PLAINTEXT to listener.security.protocol.map"},
		{Config{ListenerProtocols: []string{"INTERNAL"}}, "NAME:PROTOCOL"},
		{Config{Listen: []string{"IN://localhost:1"}, ListenerProtocols: []string{"IN:SSL"}}, "only PLAINTEXT"},
		{Config{ListenerProtocols: []string{"OUT:PLAINTEXT"}, Advertise: []string{"OUT://example.org:1"}}, "no listener OUT"},
		{Config{Advertise: []string{"example.org:1", "example.org:2"}}, "two addresses"},
		{Config{TopicDefaults: map[string]string{"log.retention.hour": "1"}}, "did you mean"},
		{Config{TopicDefaults: map[string]string{"log.retention.ms": "-7"}}, "at least -1"},
	} {
		if _, err := New(discardLog(), nil, test.cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v gives %v, want %s", test.cfg, err, test.want)
		}
	}
}

func startError(t *testing.T, cfg Config) string {
	t.Helper()
	n, err := tryStart(t, cfg)
	if err == nil {
		n.stop(t)
		t.Fatal("it started")
	}
	return err.Error()
}

func wantWords(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}

func TestTwoBrokersOnOneDirectory(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	wantWords(t, startError(t, cfg), cfg.DataDir, "in use by another broker", "--data")
	// The first one is not disturbed.
	n.createTopic(t, "still", 1, nil)
	produce(t, n.client(t), "still", 0, 10)
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.stop(t)
	cfg.Listen = []string{l.Addr().String()}
	wantWords(t, startError(t, cfg), l.Addr().String(), "address already in use", "--listen")
	// The failed start does not count as an unclean stop.
	cfg.Listen = []string{"127.0.0.1:0"}
	if n = startNode(t, cfg); n.metadata.Image() == nil {
		t.Error("no image")
	}
}

func TestBadDirectories(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.DataDir = filepath.Join(file, "data")
	wantWords(t, startError(t, cfg), cfg.DataDir, "cannot make the data directory", "--data")

	if os.Getuid() == 0 {
		t.Log("an unwritable directory is not tried: root may write everywhere")
		return
	}
	cfg.DataDir = t.TempDir()
	if err := os.Chmod(cfg.DataDir, 0o500); err != nil {
		t.Fatal(err)
	}
	wantWords(t, startError(t, cfg), cfg.DataDir, "cannot write", "--data")
}

func TestDirectoryOfAnotherBroker(t *testing.T) {
	cfg := testConfig(t)
	startNode(t, cfg).stop(t)
	cfg.NodeID = 7
	wantWords(t, startError(t, cfg), cfg.DataDir, "belongs to broker 1", "node.id")
}

func TestDirectoryOfAnotherCluster(t *testing.T) {
	cfg, other := testConfig(t), testConfig(t)
	startNode(t, cfg).stop(t)
	startNode(t, other).stop(t)
	if err := os.Rename(filepath.Join(cfg.DataDir, clusterDir), filepath.Join(cfg.DataDir, "old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(other.DataDir, clusterDir), filepath.Join(cfg.DataDir, clusterDir)); err != nil {
		t.Fatal(err)
	}
	wantWords(t, startError(t, cfg), "belongs to cluster")
}
