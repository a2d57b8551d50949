package broker

import (
	"fmt"
	"testing"

	"github.com/sluice-io/sluice/broker/cluster"
)

// BenchmarkStartEmpty is the time from nothing to serving, over an empty
// directory, and the stop.
func BenchmarkStartEmpty(b *testing.B) {
	for b.Loop() {
		n := startBench(b, EmbeddedConfig(b.TempDir(), ""))
		stopBench(b, n)
	}
}

// BenchmarkStart2000Partitions is a clean start with 2,000 partitions, and the stop.
func BenchmarkStart2000Partitions(b *testing.B) {
	cfg := EmbeddedConfig(b.TempDir(), "")
	n := startBench(b, cfg)
	createMany(b, n, 0, 200, 10)
	stopBench(b, n)
	for b.Loop() {
		stopBench(b, startBench(b, cfg))
	}
}

// BenchmarkCreate1000Partitions makes 100 topics of 10 partitions in one request.
func BenchmarkCreate1000Partitions(b *testing.B) {
	n := startBench(b, EmbeddedConfig(b.TempDir(), ""))
	topics := 0
	for b.Loop() {
		createMany(b, n, topics, 100, 10)
		topics += 100
	}
	stopBench(b, n)
}

func createMany(b *testing.B, n *Broker, from, topics int, partitions int32) {
	b.Helper()
	var asked []cluster.NewTopic
	for i := range topics {
		asked = append(asked, cluster.NewTopic{Name: fmt.Sprintf("topic-%d", from+i), Partitions: partitions, ReplicationFactor: 1})
	}
	for _, done := range n.controller.CreateTopics(b.Context(), asked, false) {
		if done.Err != nil {
			b.Fatal(done.Err)
		}
	}
}

func startBench(b *testing.B, cfg Config) *Broker {
	b.Helper()
	n, err := New(discardLog(), nil, cfg)
	if err != nil {
		b.Fatal(err)
	}
	if err := n.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	return n
}

func stopBench(b *testing.B, n *Broker) {
	b.Helper()
	if err := n.Shutdown(b.Context()); err != nil {
		b.Fatal(err)
	}
}
