package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/broker"
	"github.com/sluice-io/sluice/internal/admin"
)

// The administration and load commands, against a broker in this process.

func startTestBroker(t *testing.T) (addr string) {
	t.Helper()
	b, err := startBroker(t.Context(), slog.New(slog.DiscardHandler), newRegistry(), broker.EmbeddedConfig(t.TempDir(), "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopBroker(slog.New(slog.DiscardHandler), b) })
	return b.Addr()
}

// sluice runs a command of this binary in this process and returns what it printed.
func sluice(t *testing.T, args ...string) string {
	t.Helper()
	out, err := trySluice(t, args...)
	if err != nil {
		t.Fatalf("sluice %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func trySluice(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

func TestTopics(t *testing.T) {
	addr := startTestBroker(t)
	sluice(t, "topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=60000", "--brokers", addr)
	mustSay(t, sluice(t, "topics", "list", "--brokers", addr), "orders", "3")

	var topics []admin.Topic
	if err := json.Unmarshal([]byte(sluice(t, "topics", "describe", "orders", "--json", "--brokers", addr)), &topics); err != nil {
		t.Fatal(err)
	}
	if len(topics) != 1 || len(topics[0].Partitions) != 3 || topics[0].Config["retention.ms"] != "60000" || topics[0].Partitions[2].Leader != 1 {
		t.Errorf("described as %+v", topics)
	}

	_, err := trySluice(t, "topics", "create", "orders", "--brokers", addr)
	mustFail(t, err, "orders", "TOPIC_ALREADY_EXISTS")
	_, err = trySluice(t, "topics", "create", "a/b", "--brokers", addr)
	mustFail(t, err, "a/b", "INVALID_TOPIC_EXCEPTION")
	_, err = trySluice(t, "topics", "create", "x", "--config", "retention.msec=1", "--brokers", addr)
	mustFail(t, err, "retention.msec")
	_, err = trySluice(t, "topics", "describe", "nosuch", "--brokers", addr)
	mustFail(t, err, "nosuch", "UNKNOWN_TOPIC_OR_PARTITION")

	mustSay(t, sluice(t, "topics", "delete", "orders", "--brokers", addr), "deleted orders")
	if out := sluice(t, "topics", "list", "--brokers", addr); strings.Contains(out, "orders") {
		t.Errorf("a deleted topic is listed:\n%s", out)
	}
}

func mustFail(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want one that says %q", words)
		return
	}
	mustSay(t, err.Error(), words...)
}

func TestBenchProduceAndConsume(t *testing.T) {
	addr := startTestBroker(t)
	for _, codec := range []string{"none", "zstd"} {
		out := sluice(t, "bench", "produce", "--topic", codec, "--records", "20000", "--duration", "0", "--compression", codec, "--brokers", addr)
		mustSay(t, out, "acknowledged 20000 records", "0 errors", "p99")
		out = sluice(t, "bench", "consume", "--topic", codec, "--records", "20000", "--brokers", addr)
		mustSay(t, out, "consumed 20000 records", "p99")
	}
	out := sluice(t, "bench", "produce", "--topic", "paced", "--duration", "300ms", "--rate", "1000", "--record-bytes", "1024", "--payload", "random", "--brokers", addr)
	mustSay(t, out, "0 errors")
	out = sluice(t, "bench", "produce", "--raw", "--topic", "raw", "--duration", "300ms", "--compression", "lz4", "--brokers", addr)
	mustSay(t, out, "0 errors", "p99")
	out = sluice(t, "bench", "consume", "--raw", "--topic", "raw", "--duration", "300ms", "--brokers", addr)
	mustSay(t, out, "fetched", "0 errors")
	if strings.Contains(out, "fetched 0 records") {
		t.Errorf("nothing was fetched:\n%s", out)
	}
	for _, raw := range []string{"--raw=false", "--raw=true"} {
		_, err := trySluice(t, "bench", "consume", raw, "--topic", "nowhere", "--duration", "10s", "--brokers", addr)
		mustFail(t, err, "nowhere", "sluice topics list", "--topic")
	}
	_, err := trySluice(t, "bench", "produce", "--record-bytes", "3", "--brokers", addr)
	mustFail(t, err, "record size 3", "20")
	_, err = trySluice(t, "bench", "produce", "--acks", "2", "--brokers", addr)
	mustFail(t, err, "--acks", "all, 1 or 0")
}

// Lag is a number that is true, or it is said to be unknown.
func TestLag(t *testing.T) {
	addr := startTestBroker(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := t.Context()
	sluice(t, "topics", "create", "t", "--partitions", "4", "--brokers", addr)
	written := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	for n := range 10 {
		r := &kgo.Record{Topic: "t", Partition: 0, Value: []byte("v"), Timestamp: written.Add(time.Duration(n) * time.Second)}
		if err := client.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	counts, err := kadm.NewClient(client).ListEndOffsets(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	var full, empty int32 = -1, -1
	counts.Each(func(o kadm.ListedOffset) {
		if o.Offset == 10 {
			full = o.Partition
		} else {
			empty = o.Partition
		}
	})
	if full < 0 {
		t.Fatalf("the sticky partitioner spread ten records: %v", counts)
	}
	commit := func(partition int32, at int64) {
		t.Helper()
		offsets := kadm.Offsets{}
		offsets.AddOffset("t", partition, at, -1)
		if err := kadm.NewClient(client).CommitAllOffsets(ctx, "g", offsets); err != nil {
			t.Fatal(err)
		}
	}
	lags := func() map[int32]admin.GroupLag {
		t.Helper()
		var all []admin.GroupLag
		if err := json.Unmarshal([]byte(sluice(t, "lag", "g", "--json", "--brokers", addr)), &all); err != nil {
			t.Fatal(err)
		}
		out := map[int32]admin.GroupLag{}
		for _, l := range all {
			out[l.Partition] = l
		}
		return out
	}

	commit(full, 4)
	got := lags()[full]
	if got.Records == nil || *got.Records != 6 {
		t.Errorf("6 records behind, said %v", got)
	}
	if got.Seconds == nil || *got.Seconds < 50 || *got.Seconds > 120 {
		t.Errorf("the oldest uncommitted record is some 56 s old, said %v", got)
	}
	if _, ok := lags()[empty]; ok && lags()[empty].Records != nil {
		t.Errorf("never committed, but has a number: %+v", lags()[empty])
	}

	commit(full, 10)
	if got := lags()[full]; *got.Records != 0 || *got.Seconds != 0 {
		t.Errorf("nothing is behind, said %+v", got)
	}
	commit(full, 1000) // ahead of the end, as after the topic was made again
	if got := lags()[full]; *got.Records != 0 || *got.Seconds != 0 {
		t.Errorf("committed ahead of the end, said %+v", got)
	}
	mustSay(t, sluice(t, "lag", "--brokers", addr), "GROUP", "g", "Empty")
	joinGroup(t, addr, "new", "t")
	mustSay(t, sluice(t, "lag", "new", "--brokers", addr), "new", "0 ", "4")
	mustSay(t, sluice(t, "lag", "new", "--partitions", "--brokers", addr), "never", "10")
	_, err = trySluice(t, "lag", "nosuch", "--brokers", addr)
	mustFail(t, err, "nosuch", "GROUP_ID_NOT_FOUND")
	mustSay(t, sluice(t, "lag", "--partitions", "--brokers", addr), "COMMITTED", "1000")
}

// joinGroup starts a member that never commits, and returns when it has joined.
func joinGroup(t *testing.T, addr, group, topic string) {
	t.Helper()
	joined := make(chan struct{})
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { close(joined) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	select {
	case <-joined:
	case <-time.After(commandTimeout):
		t.Fatal("the member has not joined")
	}
}
