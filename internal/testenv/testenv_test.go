package testenv

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestKafka(t *testing.T) {
	start := time.Now()
	kafka := Kafka(t)
	t.Logf("Kafka answered after %.1f s", time.Since(start).Seconds())
	if again := Kafka(t); again != kafka {
		t.Error("a second server was started")
	}
	produceOne(t, kafka.Addr, "shared")

	start = time.Now()
	out, err := KafkaTool(t, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.Addr, "--list").CombinedOutput()
	if err != nil {
		t.Fatalf("kafka-topics: %v\n%s", err, out)
	}
	t.Logf("kafka-topics took %.1f s", time.Since(start).Seconds())
	if !strings.Contains(string(out), "shared") {
		t.Errorf("kafka-topics --list: %s", out)
	}
}

func TestKafkaKillRestart(t *testing.T) {
	kafka := StartKafka(t, KafkaConfig{Properties: map[string]string{"num.partitions": "3"}})
	produceOne(t, kafka.Addr, "kept")
	kafka.Kill()
	kafka.Restart(t)
	out, err := KafkaTool(t, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.Addr, "--describe", "--topic", "kept").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PartitionCount: 3") {
		t.Errorf("topic after kill and restart: %v\n%s", err, out)
	}
}

func produceOne(t *testing.T, addr, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func TestClickHouseSurvivesKill(t *testing.T) {
	start := time.Now()
	ch := ClickHouse(t)
	t.Logf("ClickHouse answered after %.1f s", time.Since(start).Seconds())
	ch.Query(t, "CREATE DATABASE logs")
	ch.Query(t, "CREATE TABLE logs.t (n UInt32) ENGINE = MergeTree ORDER BY n")
	ch.Query(t, "INSERT INTO logs.t SELECT number FROM numbers(1000)")
	ch.Kill()
	ch.Restart(t)
	if got := ch.Query(t, "SELECT count(), sum(n) FROM logs.t"); got != "1000\t499500" {
		t.Errorf("rows after kill and restart: %q", got)
	}
	ch.Kill() // nobody starts it again but the next query
	ch.Query(t, "SELECT 1")
}

func TestClickHouseUsers(t *testing.T) {
	reader := ClickHouseUser{Name: "reader", Password: "secret", ReadOnly: true}
	writer := ClickHouseUser{Name: "writer", Password: "other"}
	ch := StartClickHouse(t, ClickHouseConfig{Users: []ClickHouseUser{reader, writer}})
	const create = "CREATE TABLE t (n UInt32) ENGINE = MergeTree ORDER BY n"
	if _, err := ch.query(t.Context(), reader, create); err == nil {
		t.Error("the reader created a table")
	}
	if _, err := ch.query(t.Context(), writer, create); err != nil {
		t.Error(err)
	}
	if got, err := ch.query(t.Context(), reader, "SELECT count() FROM t"); err != nil || got != "0" {
		t.Errorf("the reader read %q, %v", got, err)
	}
	if _, err := ch.query(t.Context(), ClickHouseUser{Name: "reader", Password: "wrong"}, "SELECT 1"); err == nil {
		t.Error("a wrong password was taken")
	}
}

func TestPrometheus(t *testing.T) {
	start := time.Now()
	prometheus := Prometheus(t, "global: {scrape_interval: 1s}\n")
	t.Logf("Prometheus answered after %.1f s", time.Since(start).Seconds())
	series, err := prometheus.Query(t.Context(), "vector(7)")
	if err != nil || len(series) != 1 || series[0].Value != "7" {
		t.Errorf("vector(7): %v, %v", series, err)
	}
	if _, err := prometheus.Query(t.Context(), "rate("); err == nil {
		t.Error("a broken expression gave no error")
	}
}

func TestClientsRun(t *testing.T) {
	if out, err := exec.Command(Kcat(t), "-V").CombinedOutput(); err != nil || !strings.Contains(string(out), kcatPart.Version) {
		t.Errorf("kcat: %v\n%s", err, out)
	}
	out, err := Python(t, "-c", "import confluent_kafka; print(confluent_kafka.__version__)").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != librdkafkaPart.Version {
		t.Errorf("confluent-kafka: %v\n%s", err, out)
	}
}

func TestStartReportsEarlyEnd(t *testing.T) {
	notShort(t)
	_, err := launch(t.Context(), Command{
		Name:  "mayfly",
		Path:  "/bin/sh",
		Args:  []string{"-c", "echo cannot bind; exit 3"},
		Ready: func(context.Context) error { return errors.New("no answer") },
	}, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "cannot bind") {
		t.Errorf("error of a program that ended early: %v", err)
	}
}

// TestLeash starts a test binary that starts a process and is then killed: the
// process must not outlive it. It holds a connection to us that ends with it.
func TestLeash(t *testing.T) {
	notShort(t)
	switch addr := os.Getenv("LEASH_ADDR"); os.Getenv("LEASH_ROLE") {
	case "holder":
		<-Start(t, Command{Name: "held", Path: os.Args[0], Args: []string{"-test.run=^TestLeash$"}, Env: []string{"LEASH_ROLE=held"}}).Done()
		return
	case "held":
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Read(make([]byte, 1)) // for ever
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	holder := exec.Command(os.Args[0], "-test.run=^TestLeash$")
	holder.Env = append(os.Environ(), "LEASH_ROLE=holder", "LEASH_ADDR="+l.Addr().String(), "TMPDIR="+t.TempDir())
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = holder.Process.Kill()
	_ = holder.Wait()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a process outlived the test binary that started it")
	}
}

func TestEnsureFetchesOnce(t *testing.T) {
	t.Setenv("SLUICE_TESTENV", t.TempDir())
	var fetches atomic.Int32
	p := Part{Name: "thing", Version: "1", From: "hand", fetch: func(_ context.Context, dir, _ string) error {
		fetches.Add(1)
		return os.WriteFile(filepath.Join(dir, "file"), []byte("whole"), 0o644)
	}}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := p.Ensure(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if b, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(b) != "whole" {
				t.Errorf("the part's file: %q, %v", b, err)
			}
		})
	}
	wg.Wait()
	if n := fetches.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
}

func TestEnsureRemembersFailure(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("SLUICE_TESTENV", cache)
	fetches := 0
	p := Part{Name: "thing", Version: "1", From: "hand", fetch: func(context.Context, string, string) error {
		fetches++
		return errors.New("no\nnetwork")
	}}
	for range 2 {
		if _, err := p.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "no") {
			t.Errorf("error of a part that cannot be had: %v", err)
		}
	}
	if fetches != 1 {
		t.Errorf("tests tried %d times", fetches)
	}
	if _, err := p.Fetch(t.Context()); err == nil || fetches != 2 {
		t.Errorf("an explicit fetch: %v, %d tries in all", err, fetches)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*fetching*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	p.toFetch = []string{"no-such-command"}
	if _, err := p.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "no-such-command, which is not installed") {
		t.Errorf("error without a needed command: %v", err)
	}
}

func TestSkippedLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skipped")
	t.Setenv("SLUICE_SKIPPED_PARTS", file)
	noteSkipped(t, kcatPart, errors.New("it takes apt-get,\nwhich is not installed"))
	noteSkipped(t, kcatPart, errors.New("it takes apt-get, which is not installed"))
	noteSkipped(t, kafkaPart, errors.New("no java"))
	got, err := SkippedLine(file)
	want := "parts: tests skipped for want of one: kafka 1 (no java), kcat 2 (it takes apt-get, which is not installed)"
	if err != nil || got != want {
		t.Errorf("closing line:\n%s, %v\nwant\n%s", got, err, want)
	}
	if got, err := SkippedLine(file + ".none"); err != nil || !strings.Contains(got, "all there") {
		t.Errorf("closing line without notes: %q, %v", got, err)
	}
}

func TestComplaint(t *testing.T) {
	for out, want := range map[string]string{
		"[INFO] x\n[ERROR] Could not resolve a:b:1\n[ERROR] [Help 1]\n[ERROR] more\n": "[ERROR] Could not resolve a:b:1\n[ERROR] [Help 1]",
		"Reading lists\nE: Unable to locate package kcat\n":                           "E: Unable to locate package kcat",
		"a\nb\nc\nd\n": "b\nc\nd",
	} {
		if got := complaint(out); got != want {
			t.Errorf("%q: %q, want %q", out, got, want)
		}
	}
}

func TestFreePortsDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		p := FreePort(t)
		if seen[p] {
			t.Fatalf("port %d given twice", p)
		}
		seen[p] = true
	}
}
