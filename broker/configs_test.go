package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	ofTopic  = kmsg.ConfigResourceTypeTopic
	ofBroker = kmsg.ConfigResourceTypeBroker
)

// change is NAME=VALUE to set, NAME+=WORDS, NAME-=WORDS, or NAME to delete.
func change(text string) kmsg.IncrementalAlterConfigsRequestResourceConfig {
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	name, value, set := strings.Cut(text, "=")
	c.Name = strings.TrimRight(name, "+-")
	switch {
	case !set:
		c.Op = kmsg.IncrementalAlterConfigOpDelete
		return c
	case strings.HasSuffix(name, "+"):
		c.Op = kmsg.IncrementalAlterConfigOpAppend
	case strings.HasSuffix(name, "-"):
		c.Op = kmsg.IncrementalAlterConfigOpSubtract
	}
	if value != "null" {
		c.Value = &value
	}
	return c
}

// alter changes the settings of one resource and returns the message and the code.
func (n *node) alter(t *testing.T, kind kmsg.ConfigResourceType, name string, validateOnly bool, changes ...string) (why string, err error) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.ValidateOnly = validateOnly
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kind, name
	for _, c := range changes {
		r.Configs = append(r.Configs, change(c))
	}
	req.Resources = append(req.Resources, r)
	resp, err := n.client(t).Broker(1).RetriableRequest(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	got := resp.(*kmsg.IncrementalAlterConfigsResponse).Resources[0]
	return deref(got.ErrorMessage), kerr.ErrorForCode(got.ErrorCode)
}

func (n *node) mustAlter(t *testing.T, kind kmsg.ConfigResourceType, name string, changes ...string) {
	t.Helper()
	if why, err := n.alter(t, kind, name, false, changes...); err != nil {
		t.Fatalf("%v: %v: %s", changes, err, why)
	}
}

// described is a setting as "VALUE SOURCE [SYNONYM=VALUE(SOURCE) ...]", with the
// protocol's numbers of sources; empty if it is not listed.
func (n *node) described(t *testing.T, kind kmsg.ConfigResourceType, name, setting string) string {
	t.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kind, name, []string{setting}
	req.Resources, req.IncludeSynonyms = append(req.Resources, r), true
	resp, err := n.client(t).Broker(1).RetriableRequest(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	got := resp.(*kmsg.DescribeConfigsResponse).Resources[0]
	if got.ErrorCode != 0 {
		return kerr.ErrorForCode(got.ErrorCode).Error()
	}
	if len(got.Configs) == 0 {
		return ""
	}
	c := got.Configs[0]
	synonyms := []string{}
	for _, s := range c.ConfigSynonyms {
		synonyms = append(synonyms, fmt.Sprintf("%s=%s(%d)", s.Name, deref(s.Value), s.Source))
	}
	return fmt.Sprintf("%s %d %v", deref(c.Value), c.Source, synonyms)
}

// What Apache Kafka 4.4 answered to the same requests.
func TestSourcesAndSynonymsAreKafkas(t *testing.T) {
	cfg := testConfig(t)
	cfg.TopicDefaults = map[string]string{"log.retention.hours": "2"}
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, map[string]*string{"segment.bytes": ptr("3000000")})
	n.mustAlter(t, ofBroker, "1", "log.retention.ms=5000000")
	n.mustAlter(t, ofBroker, "1", "message.max.bytes=2000000")
	n.mustAlter(t, ofBroker, "", "message.max.bytes=1500000", "log.segment.bytes=5000000")
	n.mustAlter(t, ofBroker, "1", "max.connections=500", "log.cleanup.policy+=compact")
	check := func(t *testing.T) {
		for _, c := range []struct {
			kind          kmsg.ConfigResourceType
			name, setting string
			want          string
		}{
			{ofTopic, "t", "segment.bytes", "3000000 1 [segment.bytes=3000000(1) log.segment.bytes=5000000(3) log.segment.bytes=1073741824(5)]"},
			{ofTopic, "t", "retention.ms", "5000000 2 [log.retention.ms=5000000(2) log.retention.hours=2(4) log.retention.hours=168(5)]"},
			{ofTopic, "t", "max.message.bytes", "2000000 2 [message.max.bytes=2000000(2) message.max.bytes=1500000(3) message.max.bytes=1048588(5)]"},
			{ofTopic, "t", "cleanup.policy", "delete,compact 2 [log.cleanup.policy=delete,compact(2) log.cleanup.policy=delete(5)]"},
			{ofTopic, "t", "segment.ms", "604800000 5 []"},
			{ofTopic, "t", "index.interval.bytes", "4096 5 [log.index.interval.bytes=4096(5)]"},
			{ofTopic, "t", "remote.storage.enable", "false 5 []"},
			{ofBroker, "", "message.max.bytes", "1500000 3 [message.max.bytes=1500000(3)]"},
			{ofBroker, "", "log.retention.ms", ""},
			{ofBroker, "1", "message.max.bytes", "2000000 2 [message.max.bytes=2000000(2) message.max.bytes=1500000(3) message.max.bytes=1048588(5)]"},
			{ofBroker, "1", "log.segment.bytes", "5000000 3 [log.segment.bytes=5000000(3) log.segment.bytes=1073741824(5)]"},
			{ofBroker, "1", "log.roll.hours", "168 5 [log.roll.hours=168(5)]"},
			{ofBroker, "1", "log.roll.ms", "(none) 5 []"},
			{ofBroker, "1", "log.retention.hours", "2 4 [log.retention.hours=2(4) log.retention.hours=168(5)]"},
			{ofBroker, "1", "max.connections", "500 2 [max.connections=500(2) max.connections=10000(5)]"},
			{ofBroker, "1", "num.partitions", "1 5 [num.partitions=1(5)]"},
			{ofBroker, "2", "num.partitions", kerr.InvalidRequest.Error()},
		} {
			if got := n.described(t, c.kind, c.name, c.setting); got != c.want {
				t.Errorf("%v %q %s: %s\nwant %s", c.kind, c.name, c.setting, got, c.want)
			}
		}
	}
	check(t)
	n.stop(t)
	n = startNode(t, cfg) // they are stored
	t.Run("after a restart", check)
}

func TestRefusedConfigs(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 1, nil)
	for _, c := range []struct {
		kind    kmsg.ConfigResourceType
		name    string
		changes []string
		err     error
		words   string
	}{
		{ofBroker, "1", []string{"num.partitions=5"}, kerr.InvalidRequest, "cannot be changed while the broker runs"},
		{ofBroker, "1", []string{"log.retention.hours=5"}, kerr.InvalidRequest, "log.retention.hours"},
		{ofBroker, "1", []string{"max.connections=x"}, kerr.InvalidRequest, "whole number"},
		{ofBroker, "1", []string{"max.connections=0"}, kerr.InvalidRequest, "at least 1"},
		{ofBroker, "1", []string{"max.connections=null"}, kerr.InvalidRequest, "no value"},
		{ofBroker, "1", []string{"no.such"}, nil, ""},
		{ofBroker, "1", []string{"leader.replication.throttled.rate=1000"}, nil, ""},
		{ofBroker, "2", []string{"max.connections=5"}, kerr.InvalidRequest, "this is broker 1"},
		{ofTopic, "t", []string{"cleanup.policy+=nope"}, kerr.InvalidConfig, "compact, delete"},
		{ofTopic, "t", []string{"retention.ms+=1"}, kerr.InvalidConfig, "lists only"},
		{ofTopic, "t", []string{"no.such=1"}, kerr.InvalidConfig, "no.such"},
		{ofTopic, "t", []string{"no.such"}, nil, ""},
		{ofTopic, "t", []string{"retention.ms=null"}, kerr.InvalidRequest, "retention.ms"},
		{ofTopic, "t", []string{"retention.ms=1", "retention.ms=2"}, kerr.InvalidRequest, "more than once"},
		{ofTopic, "t", []string{"min.compaction.lag.ms=10", "max.compaction.lag.ms=5"}, kerr.InvalidConfig, "min.compaction.lag.ms"},
		{ofTopic, "gone", []string{"retention.ms=1"}, kerr.UnknownTopicOrPartition, "gone"},
		{ofTopic, "a/b", []string{"retention.ms=1"}, kerr.InvalidTopicException, "a/b"},
		{ofTopic, "", []string{"retention.ms=1"}, kerr.InvalidRequest, "all topics"},
		{kmsg.ConfigResourceTypeBrokerLogger, "1", []string{"root=INFO"}, kerr.InvalidRequest, "not supported"},
	} {
		for _, validateOnly := range []bool{true, false} {
			if why, err := n.alter(t, c.kind, c.name, validateOnly, c.changes...); err != c.err || !strings.Contains(why, c.words) {
				t.Errorf("%v %q %v: %v: %s; want %v with %q", c.kind, c.name, c.changes, err, why, c.err, c.words)
			}
		}
	}
	if config := n.metadata.Image().Topic("t").Config; len(config) != 0 {
		t.Errorf("refused settings are there: %v", config)
	}
}

func TestTopicConfigTakesEffect(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 1, nil)
	cl := n.client(t, kgo.ProducerBatchCompression(kgo.NoCompression()))
	produce(t, cl, "t", 0, 10)
	large := &kgo.Record{Topic: "t", Value: make([]byte, 5000)}

	if _, err := n.alter(t, ofTopic, "t", true, "max.message.bytes=1000"); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), large).FirstErr(); err != nil {
		t.Errorf("a setting that was only validated is in force: %v", err)
	}
	n.mustAlter(t, ofTopic, "t", "max.message.bytes=1000", "cleanup.policy+=compact", "retention.ms=1000")
	if err := cl.ProduceSync(t.Context(), large).FirstErr(); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("a record of 5,000 bytes where 1,000 are allowed: %v", err)
	}
	p := n.partitions.Get("t", 0)
	if got := p.Log().Config().RetentionAge; got != time.Second || !p.Config().Compacted {
		t.Errorf("retention of %v, compacted %v", got, p.Config().Compacted)
	}
	n.mustAlter(t, ofTopic, "t", "max.message.bytes", "cleanup.policy-=compact")
	if err := cl.ProduceSync(t.Context(), large).FirstErr(); err != nil {
		t.Errorf("after the setting was deleted: %v", err)
	}
	if want := "delete 1 [cleanup.policy=delete(1) log.cleanup.policy=delete(5)]"; n.described(t, ofTopic, "t", "cleanup.policy") != want {
		t.Errorf("%s", n.described(t, ofTopic, "t", "cleanup.policy"))
	}

	// AlterConfigs replaces them all.
	req := kmsg.NewPtrAlterConfigsRequest()
	r := kmsg.NewAlterConfigsRequestResource()
	c := kmsg.NewAlterConfigsRequestResourceConfig()
	r.ResourceType, r.ResourceName = ofTopic, "t"
	c.Name, c.Value = "segment.ms", ptr("5000")
	r.Configs, req.Resources = append(r.Configs, c), append(req.Resources, r)
	req.Resources[0].Configs = r.Configs
	resp, err := req.RequestWith(t.Context(), n.client(t))
	if err != nil || resp.Resources[0].ErrorCode != 0 {
		t.Fatalf("%+v, %v", resp, err)
	}
	if config := n.metadata.Image().Topic("t").Config; len(config) != 1 || config["segment.ms"] != "5000" {
		t.Errorf("%v", config)
	}
}

// Threads that are wanted start at once; those that are too many stop when they look next.
func TestCleanerThreadsChange(t *testing.T) {
	n := startNode(t, testConfig(t))
	threads := func() int {
		n.cleaner.mu.Lock()
		defer n.cleaner.mu.Unlock()
		return len(n.cleaner.running)
	}
	n.mustAlter(t, ofBroker, "", "log.cleaner.threads=3")
	if got := threads(); got != 3 {
		t.Errorf("%d threads", got)
	}
	n.mustAlter(t, ofBroker, "", "log.cleaner.threads")
	for i, ends := range []bool{false, true, true} {
		if n.cleaner.ends(t.Context(), i) != ends {
			t.Errorf("thread %d ends: %t", i, !ends)
		}
	}
	n.mustAlter(t, ofBroker, "", "log.cleaner.threads=2")
	if got := threads(); got != 2 {
		t.Errorf("%d threads", got)
	}
}

// A second member waits for its share until the interval is over, which may be shortened meanwhile.
func TestAssignmentIntervalChanges(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 2, nil)
	n.mustAlter(t, ofBroker, "", "group.consumer.assignment.interval.ms=3600000")
	cl := n.client(t)
	beat := func(member string, epoch int32) *kmsg.ConsumerGroupHeartbeatResponse {
		t.Helper()
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Group, req.MemberID, req.MemberEpoch = "g", member, epoch
		if epoch == 0 {
			req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.Topics = 60_000, []string{"t"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		}
		answer, err := req.RequestWith(t.Context(), cl)
		if err == nil {
			err = kerr.ErrorForCode(answer.ErrorCode)
		}
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	partitions := func(answer *kmsg.ConsumerGroupHeartbeatResponse) (n int) {
		if answer.Assignment != nil {
			for _, topic := range answer.Assignment.Topics {
				n += len(topic.Partitions)
			}
		}
		return n
	}
	first, second := uuid.NewString(), uuid.NewString()
	alone := beat(first, 0)
	if got := partitions(alone); got != 2 {
		t.Fatalf("the first member has %d partitions", got)
	}
	joined := beat(second, 0)
	if again := beat(first, alone.MemberEpoch); again.Assignment != nil {
		t.Errorf("the first member is told of %d partitions before the interval is over", partitions(again))
	}
	n.mustAlter(t, ofBroker, "", "group.consumer.assignment.interval.ms=0")
	beat(second, joined.MemberEpoch)
	if got := partitions(beat(first, alone.MemberEpoch)); got != 1 {
		t.Errorf("the first member is told of %d partitions", got)
	}
}

func TestBrokerConfigTakesEffect(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 1, nil)
	n.createTopic(t, "own", 1, map[string]*string{"retention.ms": ptr("7000")})
	retention := func(topic string) time.Duration { return n.partitions.Get(topic, 0).Log().Config().RetentionAge }
	n.mustAlter(t, ofBroker, "", "log.retention.ms=5000")
	if retention("t") != 5*time.Second || retention("own") != 7*time.Second {
		t.Errorf("%v, %v", retention("t"), retention("own"))
	}
	n.mustAlter(t, ofBroker, "1", "log.retention.ms=6000", "producer.id.expiration.ms=90000", "num.recovery.threads.per.data.dir=3")
	if retention("t") != 6*time.Second || n.partitions.Get("t", 0).Log().Config().ProducerExpiry != 90*time.Second || n.recoveryThreads() != 3 {
		t.Errorf("%v, %+v", retention("t"), n.live.Load())
	}
	n.mustAlter(t, ofBroker, "1", "log.retention.ms")
	if retention("t") != 5*time.Second {
		t.Errorf("%v", retention("t"))
	}

	open := n.client(t)
	if err := open.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.mustAlter(t, ofBroker, "1", "max.connections=1")
	if err := n.client(t, kgo.RequestRetries(0), kgo.RetryTimeout(time.Second)).Ping(t.Context()); err == nil {
		t.Error("a second connection is accepted where one is allowed")
	}
}
