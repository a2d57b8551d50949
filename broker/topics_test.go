package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
)

func createTopicsRequest(topics ...kmsg.CreateTopicsRequestTopic) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 5000
	req.Topics = topics
	return req
}

func topicNamed(name string, change ...func(*kmsg.CreateTopicsRequestTopic)) kmsg.CreateTopicsRequestTopic {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, 1, 1
	for _, c := range change {
		c(&t)
	}
	return t
}

func withConfig(name string, value *string) func(*kmsg.CreateTopicsRequestTopic) {
	return func(t *kmsg.CreateTopicsRequestTopic) {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = name, value
		t.Configs = append(t.Configs, c)
	}
}

func withAssignment(replicas ...[]int32) func(*kmsg.CreateTopicsRequestTopic) {
	return func(t *kmsg.CreateTopicsRequestTopic) {
		t.NumPartitions, t.ReplicationFactor = -1, -1
		for p, r := range replicas {
			a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
			a.Partition, a.Replicas = int32(p), r
			t.ReplicaAssignment = append(t.ReplicaAssignment, a)
		}
	}
}

// Each topic of a request answers for itself, with Kafka's code and a message
// that says what is wrong.
func TestCreateTopics(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "there", 1, nil)
	n.createTopic(t, "with.dot", 1, nil)
	parts := func(n int32) func(*kmsg.CreateTopicsRequestTopic) {
		return func(t *kmsg.CreateTopicsRequestTopic) { t.NumPartitions = n }
	}
	factor := func(n int16) func(*kmsg.CreateTopicsRequestTopic) {
		return func(t *kmsg.CreateTopicsRequestTopic) { t.ReplicationFactor = n }
	}
	cases := []struct {
		topic kmsg.CreateTopicsRequestTopic
		err   *kerr.Error
		words string
	}{
		{topicNamed("fine"), nil, ""},
		{topicNamed("defaults", parts(-1), factor(-1)), nil, ""},
		{topicNamed("assigned", withAssignment([]int32{1}, []int32{1}, []int32{1})), nil, ""},
		{topicNamed("configured", withConfig("retention.ms", ptr("5000"))), nil, ""},
		{topicNamed("there"), kerr.TopicAlreadyExists, `"there"`},
		{topicNamed("with_dot"), kerr.InvalidTopicException, "collides"},
		{topicNamed("."), kerr.InvalidTopicException, "allowed"},
		{topicNamed(".."), kerr.InvalidTopicException, "allowed"},
		{topicNamed(""), kerr.InvalidTopicException, "empty"},
		{topicNamed("a/b"), kerr.InvalidTopicException, "'/'"},
		{topicNamed("a b"), kerr.InvalidTopicException, "' '"},
		{topicNamed(strings.Repeat("x", 250)), kerr.InvalidTopicException, "250 characters"},
		{topicNamed(strings.Repeat("x", 249)), nil, ""},
		{topicNamed("p0", parts(0)), kerr.InvalidPartitions, "at least 1"},
		{topicNamed("p-2", parts(-2)), kerr.InvalidPartitions, "at least 1"},
		{topicNamed("pmany", parts(1_000_000)), kerr.InvalidPartitions, "at most"},
		{topicNamed("rf3", factor(3)), kerr.InvalidReplicationFactor, "available brokers, 1"},
		{topicNamed("rf0", factor(0)), kerr.InvalidReplicationFactor, "at least 1"},
		{topicNamed("a2", withAssignment([]int32{2})), kerr.InvalidReplicaAssignment, "broker 2"},
		{topicNamed("a11", withAssignment([]int32{1, 1})), kerr.InvalidReplicaAssignment, "twice"},
		{topicNamed("both", withAssignment([]int32{1}), parts(1)), kerr.InvalidRequest, "must be -1"},
		{topicNamed("c1", withConfig("retention.mss", ptr("1"))), kerr.InvalidConfig, "did you mean retention.ms"},
		{topicNamed("c2", withConfig("retention.ms", ptr("soon"))), kerr.InvalidConfig, "retention.ms"},
		{topicNamed("c3", withConfig("cleanup.policy", ptr("keep"))), kerr.InvalidConfig, "compact, delete"},
		{topicNamed("c4", withConfig("retention.ms", nil)), kerr.InvalidConfig, "retention.ms"},
		{topicNamed("c5", withConfig("min.cleanable.dirty.ratio", ptr("2"))), kerr.InvalidConfig, "from 0 to 1"},
	}
	req := createTopicsRequest()
	for _, c := range cases {
		req.Topics = append(req.Topics, c.topic)
	}
	req.Topics = append(req.Topics, topicNamed("twice"), topicNamed("twice"))
	resp, err := req.RequestWith(t.Context(), n.client(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Topics) != len(cases)+1 {
		t.Fatalf("%d answers", len(resp.Topics))
	}
	for i, c := range cases {
		got := resp.Topics[i]
		var want int16
		if c.err != nil {
			want = c.err.Code
		}
		if got.Topic != c.topic.Topic || got.ErrorCode != want {
			t.Errorf("%q: %v, want %v", got.Topic, kerr.TypedErrorForCode(got.ErrorCode), c.err)
		}
		if c.err != nil && (got.ErrorMessage == nil || !strings.Contains(*got.ErrorMessage, c.words)) {
			t.Errorf("%q: message %v does not say %q", got.Topic, deref(got.ErrorMessage), c.words)
		}
		if c.err == nil && (got.TopicID == [16]byte{} || got.NumPartitions < 1 || len(got.Configs) == 0) {
			t.Errorf("%+v", got)
		}
	}
	if last := resp.Topics[len(cases)]; last.Topic != "twice" || last.ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("%+v", last)
	}
	if assigned := n.metadata.Image().Topic("assigned"); len(assigned.Partitions) != 3 {
		t.Errorf("%+v", assigned)
	}
}

func deref(s *string) string {
	if s == nil {
		return "(none)"
	}
	return *s
}

func TestValidateOnlyMakesNothing(t *testing.T) {
	n := startNode(t, testConfig(t))
	req := createTopicsRequest(topicNamed("maybe"), topicNamed("bad name"))
	req.ValidateOnly = true
	resp, err := req.RequestWith(t.Context(), n.client(t))
	if err != nil || resp.Topics[0].ErrorCode != 0 || resp.Topics[1].ErrorCode != kerr.InvalidTopicException.Code {
		t.Fatalf("%+v, %v", resp, err)
	}
	if n.metadata.Image().Topic("maybe") != nil {
		t.Error("it was made")
	}
}

func TestCreatePartitions(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 2, nil)
	adm := n.admin(t)
	results, err := adm.UpdatePartitions(t.Context(), 5, "t", "absent")
	if err != nil {
		t.Fatal(err)
	}
	if results["t"].Err != nil || !errors.Is(results["absent"].Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("%+v", results)
	}
	produce(t, n.client(t, kgo.RecordPartitioner(kgo.RoundRobinPartitioner())), "t", 0, 100)
	for p := range int32(5) {
		if n.partitions.Get("t", p).HighWatermark() == 0 {
			t.Errorf("nothing in partition %d", p)
		}
	}
	for _, total := range []int{5, 3, 0, 1_000_000} {
		results, err := adm.UpdatePartitions(t.Context(), total, "t")
		if err != nil || !errors.Is(results["t"].Err, kerr.InvalidPartitions) {
			t.Errorf("%d: %+v, %v", total, results, err)
		}
	}
}

func TestMetadata(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "a", 2, nil)
	n.createTopic(t, "b", 1, nil)
	ask := func(version int16, mayCreate bool, topics ...string) *kmsg.MetadataResponse {
		t.Helper()
		req := kmsg.NewPtrMetadataRequest()
		req.AllowAutoTopicCreation = mayCreate
		if topics != nil {
			req.Topics = []kmsg.MetadataRequestTopic{}
		}
		for _, name := range topics {
			rt := kmsg.NewMetadataRequestTopic()
			rt.Topic = &name
			req.Topics = append(req.Topics, rt)
		}
		resp, err := n.client(t, kgo.MaxVersions(heldTo(3, version))).Request(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.MetadataResponse)
	}
	names := func(resp *kmsg.MetadataResponse) (out []string) {
		for _, rt := range resp.Topics {
			out = append(out, fmt.Sprintf("%s:%d:%v", *rt.Topic, len(rt.Partitions), rt.ErrorCode))
		}
		return out
	}
	check := func(what string, got []string, want ...string) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for version := int16(1); version <= 13; version++ {
		check("null is all", names(ask(version, false)), "a:2:0", "b:1:0")
		check("none is none", names(ask(version, false, []string{}...)))
		check("one", names(ask(version, false, "b")), "b:1:0")
	}
	check("version 0, none is all", names(ask(0, false, []string{}...)), "a:2:0", "b:1:0")
	check("not asked to create", names(ask(13, false, "new")), fmt.Sprintf("new:0:%d", kerr.UnknownTopicOrPartition.Code))
	check("bad name", names(ask(13, true, "a/b")), fmt.Sprintf("a/b:0:%d", kerr.InvalidTopicException.Code))
	check("created", names(ask(13, true, "new")), "new:1:0")
	resp := ask(13, false)
	if resp.ControllerID != 1 || *resp.ClusterID != n.identity.ClusterID || len(resp.Brokers) != 1 ||
		fmt.Sprintf("%s:%d", resp.Brokers[0].Host, resp.Brokers[0].Port) != n.Addr() {
		t.Errorf("%+v", resp)
	}
	byID := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.TopicID = n.metadata.Image().Topic("a").ID
	unknown := kmsg.NewMetadataRequestTopic()
	unknown.TopicID = [16]byte{1}
	byID.Topics = append(byID.Topics, rt, unknown)
	got, err := byID.RequestWith(t.Context(), n.client(t))
	if err != nil || *got.Topics[0].Topic != "a" || got.Topics[1].ErrorCode != kerr.UnknownTopicID.Code {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestNoAutoCreation(t *testing.T) {
	cfg := testConfig(t)
	cfg.NoAutoCreateTopics = true
	n := startNode(t, cfg)
	cl := n.client(t, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(0))
	err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "new", Value: []byte("x")}).FirstErr()
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("%v", err)
	}
}

func TestDeleteTopics(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "gone", 2, nil)
	n.createTopic(t, "stays", 1, nil)
	produce(t, n.client(t), "gone", 0, 10)
	dir := filepath.Join(n.cfg.DataDir, "gone-0")
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	results, err := n.admin(t).DeleteTopics(t.Context(), "gone", "absent")
	if err != nil || results["gone"].Err != nil || !errors.Is(results["absent"].Err, kerr.UnknownTopicOrPartition) {
		t.Fatalf("%+v, %v", results, err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
	n.createTopic(t, "gone", 1, nil)
	if end := n.partitions.Get("gone", 0).HighWatermark(); end != 0 {
		t.Errorf("the new topic has %d records of the old one", end)
	}
	// By id, and an id that is unknown.
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = 5000
	known, unknown := kmsg.NewDeleteTopicsRequestTopic(), kmsg.NewDeleteTopicsRequestTopic()
	known.TopicID, unknown.TopicID = n.metadata.Image().Topic("gone").ID, [16]byte{9}
	req.Topics = append(req.Topics, known, unknown)
	resp, err := req.RequestWith(t.Context(), n.client(t))
	if err != nil || resp.Topics[0].ErrorCode != 0 || deref(resp.Topics[0].Topic) != "gone" || resp.Topics[1].ErrorCode != kerr.UnknownTopicID.Code {
		t.Errorf("%+v, %v", resp, err)
	}
}

// Topics are deleted and made again while they are written and read.
func TestDeleteUnderLoad(t *testing.T) {
	n := startNode(t, testConfig(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var load sync.WaitGroup
	for range 2 {
		load.Go(func() {
			for ctx.Err() == nil {
				cl := n.client(t, kgo.AllowAutoTopicCreation(), kgo.ProducerLinger(0))
				r := &kgo.Record{Topic: "churn", Value: []byte("x")}
				_ = cl.ProduceSync(ctx, r, &kgo.Record{Topic: "churn", Value: make([]byte, 10_000)}).FirstErr() // deleted meanwhile
				cl.Close()
			}
		})
	}
	load.Go(func() {
		cl := n.client(t, kgo.ConsumeTopics("churn"))
		for ctx.Err() == nil {
			cl.PollFetches(ctx)
		}
	})
	adm := n.admin(t)
	deleted := 0
	eventually(t, "50 deletions", func() bool {
		results, err := adm.DeleteTopics(t.Context(), "churn")
		if err == nil && results["churn"].Err == nil {
			deleted++
		}
		return deleted == 50
	})
	cancel()
	load.Wait()
	n.createTopic(t, "after", 1, nil)
	produce(t, n.client(t), "after", 0, 10)
}

func TestDescribeConfigs(t *testing.T) {
	cfg := testConfig(t)
	cfg.TopicDefaults = map[string]string{"log.retention.hours": "2", "log.segment.bytes": "2000000"}
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, map[string]*string{"segment.bytes": ptr("3000000")})
	configs, err := n.admin(t).DescribeTopicConfigs(t.Context(), "t", "absent")
	if err != nil {
		t.Fatal(err)
	}
	topic, err := configs.On("t", nil)
	if err != nil || topic.Err != nil {
		t.Fatalf("%+v, %v", topic, err)
	}
	if absent, _ := configs.On("absent", nil); !errors.Is(absent.Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("%+v", absent)
	}
	got := map[string]kadm.Config{}
	for _, c := range topic.Configs {
		got[c.Key] = c
	}
	if c := got["segment.bytes"]; *c.Value != "3000000" || c.Source != kmsg.ConfigSourceDynamicTopicConfig || len(c.Synonyms) != 3 {
		t.Errorf("%+v", c)
	}
	if c := got["retention.ms"]; *c.Value != "7200000" || c.Source != kmsg.ConfigSourceStaticBrokerConfig || len(c.Synonyms) != 2 {
		t.Errorf("%+v", c)
	}
	if c := got["cleanup.policy"]; *c.Value != "delete" || c.Source != kmsg.ConfigSourceDefaultConfig {
		t.Errorf("%+v", c)
	}
	if len(got) != len(cluster.TopicConfigs()) {
		t.Errorf("%d settings", len(got))
	}
	brokers, err := n.admin(t).DescribeBrokerConfigs(t.Context(), 1)
	if err != nil || brokers[0].Err != nil || len(brokers[0].Configs) < 40 {
		t.Fatalf("%+v, %v", brokers, err)
	}
}
