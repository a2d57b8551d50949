package testenv

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestKafkaCluster(t *testing.T) {
	start := time.Now()
	c := StartKafkaCluster(t, ClusterConfig{Network: NewNetwork(t)})
	t.Logf("three nodes of Kafka answered after %.1f s", time.Since(start).Seconds())
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 3, 3, nil, "kept"); err != nil {
		t.Fatal(err)
	}
	produceOne(t, c.Addrs()[0], "kept")
	c.Nodes[0].Kill()
	produceOne(t, c.Addrs()[1], "kept")
	if err := c.Nodes[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	produceOne(t, c.Addrs()[0], "kept")
}
