package broker

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/internal/testenv"
)

// memberConfig is that of a broker of a cluster whose sessions last a while.
func memberConfig(t *testing.T, connect string, id int32) Config {
	cfg := testConfig(t)
	cfg.NodeID, cfg.ZooKeeperConnect, cfg.ZooKeeperSessionTimeout = id, connect, 10*time.Second
	return cfg
}

func TestBrokerOnZooKeeper(t *testing.T) {
	server := testenv.StartZooKeeper(t)
	cfg := memberConfig(t, newChroot(t, server), 1)
	n := startNode(t, cfg)
	n.createTopic(t, "kept", 2, map[string]*string{"retention.ms": ptr("3600000")})
	cl := n.client(t)
	produce(t, cl, "kept", 0, 100)
	if series(t, n.reg, "sluice_broker_zookeeper_connected")[""] != 1 {
		t.Error("not connected")
	}

	// Without ZooKeeper records are written and read; nothing is changed.
	server.Kill()
	produce(t, cl, "kept", 100, 200)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	answer, err := n.admin(t).CreateTopic(ctx, 1, 1, nil, "refused")
	if err == nil || !strings.Contains(answer.ErrMessage, "ZooKeeper at "+server.Addr) {
		t.Errorf("a topic without ZooKeeper: %v, %q", err, answer.ErrMessage)
	}
	if took := time.Since(begun); took > cfg.ZooKeeperSessionTimeout {
		t.Errorf("refused after %s", took)
	}
	if series(t, n.reg, "sluice_broker_zookeeper_connected")[""] != 0 {
		t.Error("still connected")
	}
	if got := consume(t, n.client(t, kgo.ConsumeTopics("kept")), 200); len(got) != 200 {
		t.Errorf("%d records", len(got))
	}

	// It heals without a restart.
	epoch := n.member.Epoch()
	server.Restart(t)
	n.createTopic(t, "after", 1, nil)
	if n.member.Epoch() != epoch {
		t.Error("the registration did not outlive ZooKeeper")
	}

	n.stop(t)
	n = startNode(t, cfg)
	topic := n.metadata.Image().Topic("kept")
	if topic == nil || topic.Config["retention.ms"] != "3600000" {
		t.Errorf("after a restart: %+v", topic)
	}
	if got := consume(t, n.client(t, kgo.ConsumeTopics("kept")), 200); len(got) != 200 {
		t.Errorf("%d records", len(got))
	}
}

// Without ZooKeeper records are written, copied and read as before, and nothing
// is changed; when it is back, all goes on without a restart.
func TestThreeBrokersWithoutZooKeeper(t *testing.T) {
	server := testenv.StartZooKeeper(t)
	bs := startBrokersOn(t, server, 3, func(cfg *Config) { cfg.ZooKeeperSessionTimeout = 9 * time.Second })
	bs.createTopic("kept", 3, 3, map[string]*string{"min.insync.replicas": ptr("3")})
	cl := bs.client()
	produce(t, cl, "kept", 0, 100)
	var epochs []int64
	for _, n := range bs.nodes {
		epochs = append(epochs, n.member.Epoch())
		if series(t, n.reg, "sluice_broker_zookeeper_connected")[""] != 1 {
			t.Error("not connected")
		}
	}

	server.Kill()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	answer, err := kadm.NewClient(bs.client()).CreateTopic(ctx, 1, 3, nil, "refused")
	if err == nil || !strings.Contains(answer.ErrMessage, "no connection to ZooKeeper at "+server.Addr) {
		t.Errorf("a topic without ZooKeeper: %v, %q", err, answer.ErrMessage)
	}
	if took := time.Since(begun); took > 9*time.Second {
		t.Errorf("refused after %s", took)
	}
	produce(t, cl, "kept", 100, 200)
	if got := consume(t, bs.client(kgo.ConsumeTopics("kept")), 200); len(got) != 200 {
		t.Errorf("%d records", len(got))
	}
	for _, n := range bs.nodes {
		if series(t, n.reg, "sluice_broker_zookeeper_connected")[""] != 0 {
			t.Error("still connected")
		}
	}

	server.Restart(t)
	bs.createTopic("after", 1, 3, nil)
	bs.await("the new topic", inSync("after", 3))
	for i, n := range bs.nodes {
		if n.member.Epoch() != epochs[i] {
			t.Errorf("broker %d had to register again", i+1)
		}
	}
	bs.await("the topic that was refused", func(im *cluster.Image) bool { return im.Topic("refused") == nil })
}

// Brokers that were cut off from ZooKeeper for longer than a session register
// anew when they reach it again, and everything is led again. Meanwhile a
// partition whose replicas are all cut off is written and read on.
func TestBrokersOutliveTheirSessions(t *testing.T) {
	server := testenv.ZooKeeper(t)
	way := testenv.StartProxy(t, server.Addr)
	bs := startBrokersOn(t, server, 3, func(cfg *Config) {
		cfg.ZooKeeperConnect = strings.Replace(cfg.ZooKeeperConnect, server.Addr, way.Addr(), 1)
		cfg.ZooKeeperSessionTimeout = 2 * time.Second
	})
	bs.createTopic("kept", 3, 3, nil)
	cl := bs.client()
	produce(t, cl, "kept", 0, 100)
	before := map[int32]int64{}
	for _, n := range bs.nodes {
		before[n.cfg.NodeID] = n.member.Epoch()
	}
	session, err := bs.nodes[0].clusterStore.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	way.Cut()
	awaitNoBroker(t, bs.connect)
	produce(t, cl, "kept", 100, 200)
	way.Flow()
	select {
	case <-session.Ended:
	case <-time.After(time.Minute):
		t.Fatal("the session does not end")
	}
	bs.await("new registrations", func(im *cluster.Image) bool {
		for id, epoch := range before {
			if b, live := im.Broker(id); !live || b.Epoch <= epoch {
				return false
			}
		}
		return true
	})
	bs.await("all in sync", inSync("kept", 3))
	produce(t, cl, "kept", 200, 300)
	if got := consume(t, bs.client(kgo.ConsumeTopics("kept")), 300); len(got) != 300 {
		t.Errorf("%d records", len(got))
	}
}

// awaitNoBroker returns when ZooKeeper has ended the sessions of all brokers.
func awaitNoBroker(t *testing.T, connect string) {
	t.Helper()
	servers, chroot := splitZooKeeperConnect(connect)
	z, err := cluster.OpenZooKeeper(t.Context(), testLog(t), cluster.ZooKeeperConfig{Servers: servers, Chroot: chroot})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for deadline := time.After(time.Minute); ; {
		changed, err := z.Watch(t.Context(), "/brokers/ids", cluster.WatchChildren)
		if err != nil {
			t.Fatal(err)
		}
		if ids, err := z.Children(t.Context(), "/brokers/ids"); err != nil || len(ids) == 0 {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("the registrations do not end")
		}
	}
}

// A broker that was alone becomes one of several with all that it had.
func TestBrokerThatWasAloneJoinsACluster(t *testing.T) {
	connect := newChroot(t, testenv.ZooKeeper(t))
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "kept", 2, map[string]*string{"retention.ms": ptr("3600000")})
	produce(t, n.client(t), "kept", 0, 100)
	reader := n.client(t, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("kept"))
	consume(t, reader, 100)
	if err := reader.CommitUncommittedOffsets(t.Context()); err != nil {
		t.Fatal(err)
	}
	reader.Close()
	before, id := n.metadata.Image().Topic("kept"), n.identity.ClusterID
	n.stop(t)

	cfg.ZooKeeperConnect, cfg.ImportState = connect, true
	n = startNode(t, cfg)
	cfg.ImportState = false
	after := n.metadata.Image().Topic("kept")
	if after == nil || after.ID != before.ID || after.Config["retention.ms"] != "3600000" || n.identity.ClusterID != id {
		t.Errorf("%+v, before %+v", after, before)
	}
	other := startNode(t, clusterConfig(t, 2, connect))
	reader = other.client(t, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("kept"))
	produce(t, other.client(t), "kept", 100, 110)
	for _, r := range consume(t, reader, 10) {
		if string(r.Value) < "value-000100" {
			t.Errorf("%s was committed before", r.Value)
		}
	}
	reader.Close()
	n.stop(t)
	n = startNode(t, cfg)
	if got := consume(t, n.client(t, kgo.ConsumeTopics("kept")), 110); len(got) != 110 {
		t.Errorf("%d records", len(got))
	}
	n.stop(t)
	cfg.ZooKeeperConnect = ""
	refuse(t, cfg, "set zookeeper.connect")
}

// With the wrong place of the cluster's state every log would be that of no
// topic: what belongs elsewhere is refused, and nothing is changed.
func TestStoreRefusals(t *testing.T) {
	shared := testenv.ZooKeeper(t)
	server := shared.Addr
	connect, other := newChroot(t, shared), newChroot(t, shared)
	member := memberConfig(t, connect, 1)
	n := startNode(t, member)
	n.createTopic(t, "t", 1, nil)
	id := n.identity.ClusterID

	another := memberConfig(t, connect, 1)
	refuse(t, another, "id 1 is in use by 127.0.0.1:", "stop one of them, or give it another id")
	n.stop(t)
	refuse(t, another, "without what it had acknowledged there", "--replaced-disk")

	alone := testConfig(t)
	startNode(t, alone).stop(t)
	alone.ZooKeeperConnect = connect
	refuse(t, alone, "has the state of a broker that is alone", "take zookeeper.connect away")

	moved := member
	moved.ZooKeeperConnect = ""
	refuse(t, moved, "whose state is in ZooKeeper at "+connect, "set zookeeper.connect")
	moved.ZooKeeperConnect = other
	refuse(t, moved, "belongs to cluster "+id, "has no cluster: set zookeeper.connect")
	second := startNode(t, memberConfig(t, other, 1))
	refuse(t, moved, "belongs to cluster "+id, "has cluster "+second.identity.ClusterID)
	moved.ZooKeeperConnect = server + "/mistyped"
	refuse(t, moved, "no node /mistyped", "create it once")
	moved.ZooKeeperConnect, moved.ZooKeeperAuth = connect, "nocolon"
	refuse(t, moved, "user:password")

	another.ReplacedDisk = true
	startNode(t, another).stop(t)
}

// refuse fails the test unless a broker does not start, says so, and leaves its
// data directory as it was.
func refuse(t *testing.T, cfg Config, want ...string) {
	t.Helper()
	before := files(t, cfg.DataDir)
	n, err := tryStart(t, cfg)
	if err == nil {
		n.stop(t)
		t.Errorf("started, want a refusal: %q", want)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v, want %q", err, w)
		}
	}
	if after := files(t, cfg.DataDir); before != "" && after != before {
		t.Errorf("%v: it changed the data directory from\n%s to\n%s", err, before, after)
	}
}

// files lists a directory with the sizes of its files.
func files(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() == lockFile {
			return err
		}
		size := int64(0)
		if d.Type().IsRegular() {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			size = info.Size()
		}
		fmt.Fprintf(&out, "%s %d\n", path, size)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(out.String(), dir+" 0\n")
}
