package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

const replicas = 3 // and brokers

// TestClusterRuns starts the example as `make cluster` does, uses it, and
// interrupts it: nothing may be left behind.
func TestClusterRuns(t *testing.T) {
	sluice, jars, dir := testenv.Sluice(t), testenv.ZooKeeperJars(t), t.TempDir()
	program := filepath.Join(dir, "cluster")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var ports []string
	for range replicas {
		ports = append(ports, strconv.Itoa(testenv.FreePort(t)))
	}
	addr := "127.0.0.1:" + ports[0]
	p := testenv.Start(t, testenv.Command{Name: "cluster", Path: program,
		Args: []string{"-sluice", sluice, "-zookeeper", jars, "-dir", filepath.Join(dir, "data"),
			"-ports", strings.Join(ports, ","), "-zookeeper-port", strconv.Itoa(testenv.FreePort(t))},
		Ready: func(ctx context.Context) error { return allKnown(ctx, addr) }})

	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, -1, nil, "lines"); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "lines", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	topics, err := kadm.NewClient(client).ListTopics(t.Context(), "lines")
	if err != nil || len(topics["lines"].Partitions[0].Replicas) != replicas {
		t.Errorf("topic: %+v, %v", topics["lines"], err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, p.Output())
	}
	if err := testenv.PingKafka(t.Context(), addr); err == nil {
		t.Error("a broker still runs")
	}
}

func allKnown(ctx context.Context, addr string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer client.Close()
	known, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err == nil && len(known.Brokers) != replicas {
		err = fmt.Errorf("%d brokers are known", len(known.Brokers))
	}
	return err
}
