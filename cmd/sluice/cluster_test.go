package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/broker"
	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/internal/admin"
	"github.com/sluice-io/sluice/internal/testenv"
)

// startTestCluster starts brokers over a ZooKeeper in this process.
func startTestCluster(t *testing.T, n int) (brokers []*broker.Broker) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	server := testenv.ZooKeeper(t)
	store, err := cluster.OpenZooKeeper(t.Context(), log, cluster.ZooKeeperConfig{Servers: []string{server.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	chroot := fmt.Sprintf("/cmd-%d", time.Now().UnixNano())
	if err := store.Txn(t.Context(), cluster.Create(chroot, nil)); err != nil {
		t.Fatal(err)
	}
	for id := range int32(n) {
		b, err := broker.New(log, newRegistry(), broker.Config{
			NodeID: id + 1, Listen: []string{"127.0.0.1:0"}, DataDir: t.TempDir(), ZooKeeperConnect: server.Addr + chroot,
			OffsetsPartitions: 4, ReplicaFetchBackoff: 50 * time.Millisecond, NoControlledShutdown: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stopBroker(log, b) })
		brokers = append(brokers, b)
	}
	return brokers
}

func clusterStatus(t *testing.T, addr string) (status admin.ClusterStatus) {
	t.Helper()
	if err := json.Unmarshal([]byte(sluice(t, "cluster", "status", "--json", "--brokers", addr)), &status); err != nil {
		t.Fatal(err)
	}
	return status
}

func TestClusterStatusOfOneBroker(t *testing.T) {
	addr := startTestBroker(t)
	sluice(t, "topics", "create", "orders", "--partitions", "3", "--brokers", addr)
	mustSay(t, sluice(t, "cluster", "status", "--brokers", addr), "live, controller", "1 topics, 3 partitions; 0 offline, 0 under min ISR, 0 under-replicated, 0 being moved")
	mustSay(t, sluice(t, "cluster", "elect", "--brokers", addr), "moved 0 leaderships")

	_, err := trySluice(t, "cluster", "decommission", "1", "--brokers", addr)
	mustFail(t, err, "3 partitions have a replica on every broker", "add a broker first")
	_, err = trySluice(t, "cluster", "decommission", "7", "--brokers", addr)
	mustFail(t, err, "there is no broker 7")
	for _, args := range [][]string{{"reassign", "orders:0"}, {"reassign", "orders:0", "--cancel", "--replicas", "1"}, {"reassign", "orders", "--cancel"}, {"decommission", "one"}, {"decommission"}} {
		if _, err := trySluice(t, append([]string{"cluster"}, args...)...); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
	_, err = trySluice(t, "cluster", "reassign", "orders:0", "--cancel", "--brokers", addr)
	mustFail(t, err, "orders-0", "NO_REASSIGNMENT_IN_PROGRESS")
}

// A broker is emptied while a producer writes, and the others have all of it.
func TestDecommission(t *testing.T) {
	brokers := startTestCluster(t, 4)
	addr := brokers[0].Addr()
	sluice(t, "topics", "create", "orders", "--partitions", "6", "--replicas", "3", "--brokers", addr)
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 500 {
		if err := client.ProduceSync(t.Context(), kgo.StringRecord("value")).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	mustSay(t, sluice(t, "cluster", "decommission", "2", "--brokers", addr), "broker 2 has no replicas any more: stop it")
	status := clusterStatus(t, addr)
	if len(status.Troubles)+len(status.Moves) != 0 {
		t.Errorf("afterwards: %+v", status)
	}
	for _, b := range status.Brokers {
		if left := b.ID == 2; left != (b.Replicas == 0) || left != b.Cordoned || b.InSync != b.Replicas {
			t.Errorf("%+v", b)
		}
	}
	sluice(t, "topics", "create", "later", "--partitions", "3", "--replicas", "3", "--brokers", addr)
	if b := clusterStatus(t, addr).Brokers[1]; b.Replicas != 0 {
		t.Errorf("a broker that is to get nothing new: %+v", b)
	}
	mustSay(t, sluice(t, "cluster", "recommission", "2", "--brokers", addr), "broker 2 gets new replicas again")
	mustSay(t, sluice(t, "cluster", "reassign", "later:0", "--replicas", "2,1,3", "--brokers", addr), "begun")
}
