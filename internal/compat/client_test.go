package compat

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// newClient is the tests' own client, which prepares and looks up what the
// clients under test change.
func newClient(t *testing.T, b *broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.addr), kgo.AllowAutoTopicCreation()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func newAdmin(t *testing.T, b *broker) *kadm.Client { return kadm.NewClient(newClient(t, b)) }

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}

func makeTopic(t *testing.T, b *broker, name string, partitions int32, config ...string) {
	t.Helper()
	settings := map[string]*string{}
	for i := 0; i < len(config); i += 2 {
		settings[config[i]] = &config[i+1]
	}
	if _, err := newAdmin(t, b).CreateTopic(limited(t), partitions, 1, settings, name); err != nil {
		t.Fatal(err)
	}
}

// fill writes n records to each partition, the first dated start, each a minute
// after the one before.
func fill(t *testing.T, b *broker, topic string, partitions int32, n int, start time.Time) {
	t.Helper()
	c := newClient(t, b, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var records []*kgo.Record
	for p := range partitions {
		for i := range n {
			records = append(records, &kgo.Record{Topic: topic, Partition: p, Timestamp: start.Add(time.Duration(i) * time.Minute),
				Key: []byte(strconv.Itoa(i)), Value: fmt.Appendf(nil, "%d/%d", p, i)})
		}
	}
	if err := c.ProduceSync(limited(t), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// commit stores the same offset for each partition, for a group without members.
func commit(t *testing.T, b *broker, group, topic string, partitions int32, offset int64) {
	t.Helper()
	offsets := kadm.Offsets{}
	for p := range partitions {
		offsets.AddOffset(topic, p, offset, -1)
	}
	if err := newAdmin(t, b).CommitAllOffsets(limited(t), group, offsets); err != nil {
		t.Fatal(err)
	}
}

// committed returns what a group committed for partitions 0, 1, ...; -1: nothing.
func committed(t *testing.T, b *broker, group, topic string, partitions int32) []int64 {
	t.Helper()
	fetched, err := newAdmin(t, b).FetchOffsets(limited(t), group)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]int64, partitions)
	for p := range all {
		all[p] = -1
		if o, ok := fetched.Lookup(topic, int32(p)); ok && o.Err == nil {
			all[p] = o.At
		}
	}
	return all
}
