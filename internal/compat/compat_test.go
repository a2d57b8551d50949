// Package compat holds no code: its tests drive the broker, started as the
// binary a user starts, with the clients and tools that others wrote: Apache
// Kafka's own tools, kcat and confluent-kafka (librdkafka), kafka-python,
// aiokafka, kafkajs, sarama, segmentio/kafka-go and franz-go's public tests.
// What they exercise is the table of docs/compatibility.md. Two more tests are
// of what no client should meet: garbage, and a broker that is killed.
//
// With -against=kafka the same tests run against an Apache Kafka, which tells a
// fault of the broker from a wrong expectation here:
//
//	go test ./internal/compat -args -against=kafka
package compat

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

const (
	commandTimeout = 60 * time.Second
	waitTimeout    = 30 * time.Second
	waitPoll       = 20 * time.Millisecond

	// consumerHeartbeat makes members of the consumer protocol learn in a
	// second, not in five, that they shall hand over.
	consumerHeartbeat = "1000"
)

var against = flag.String("against", "sluice", "the broker to test: sluice or kafka")

var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// broker is the server under test.
type broker struct {
	addr string
	logs string // directory of the partitions' directories
	*testenv.Process
	command testenv.Command      // how to start it again
	kafka   *testenv.KafkaServer // if that is what is tested
}

func startBroker(t *testing.T) *broker {
	t.Helper()
	if *against == "kafka" {
		k := testenv.StartKafka(t, testenv.KafkaConfig{Properties: map[string]string{
			"num.partitions":                           "1",
			"group.consumer.heartbeat.interval.ms":     consumerHeartbeat,
			"group.consumer.min.heartbeat.interval.ms": consumerHeartbeat,
		}})
		return &broker{addr: k.Addr, logs: k.LogDir(), Process: k.Process, kafka: k}
	}
	b := &broker{addr: fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), logs: t.TempDir()}
	b.command = testenv.Command{
		Name:  "broker",
		Path:  testenv.Sluice(t),
		Args:  []string{"broker", "--config", writeConfig(t), "--data", b.logs, "--listen", b.addr, "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, b.addr) },
	}
	b.Process = testenv.Start(t, b.command)
	return b
}

// restart starts a broker that was killed again, on its address and data.
func (b *broker) restart(t *testing.T) {
	t.Helper()
	if b.kafka != nil {
		b.kafka.Restart(t)
		b.Process = b.kafka.Process
		return
	}
	b.Process = testenv.Start(t, b.command)
}

// writeConfig takes the 3 s out of each new group that Kafka's default waits for
// more members.
func writeConfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "broker.yaml")
	settings := "group.initial.rebalance.delay.ms: 0\ngroup.consumer.heartbeat.interval.ms: " + consumerHeartbeat + "\n"
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// output runs a command to its end and returns what it wrote on its standard
// output. stdin is what it reads.
func output(t *testing.T, cmd *exec.Cmd, stdin string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(commandTimeout, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() {
		t.Fatalf("%s: no end after %s\n%s\n%s", describe(cmd), commandTimeout, stdout.String(), stderr.String())
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", describe(cmd), err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// describe names a command without the long options of the JVM.
func describe(cmd *exec.Cmd) string {
	args := cmd.Args[1:]
	for i, a := range args {
		if a == "-cp" {
			args = args[i+2:]
			break
		}
	}
	return filepath.Base(cmd.Path) + " " + strings.Join(args, " ")
}

// numbered returns n lines "PREFIX-0" to "PREFIX-(n-1)".
func numbered(prefix string, n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return lines
}

func text(lines []string) string { return strings.Join(lines, "\n") + "\n" }

func linesOf(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' })
}

// eventually waits for a condition on another process.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not after %s", what, waitTimeout)
		}
	}
}

// checkSame compares two sets of lines that should hold each line once.
func checkSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	count := map[string]int{}
	for _, l := range want {
		count[l]++
	}
	for _, l := range got {
		count[l]--
	}
	var missing, extra int
	var example string
	for l, n := range count {
		switch {
		case n > 0:
			missing, example = missing+n, l
		case n < 0:
			extra, example = extra-n, l
		}
	}
	if missing+extra > 0 {
		t.Errorf("%s: %d of %d lines missing, %d too many, such as %q", what, missing, len(want), extra, example)
	}
}
