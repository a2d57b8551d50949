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

	"github.com/twmb/franz-go/pkg/kgo"

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
