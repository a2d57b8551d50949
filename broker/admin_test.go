package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestDescribeProducers(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 1, nil)
	cl := n.client(t)
	produce(t, cl, "t", 0, 10)
	produce(t, cl, "t", 10, 20)
	id, epoch, err := cl.ProducerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req := kmsg.NewPtrDescribeProducersRequest()
	for _, name := range []string{"t", "a/b"} {
		topic := kmsg.NewDescribeProducersRequestTopic()
		topic.Topic, topic.Partitions = name, []int32{0, 4}
		req.Topics = append(req.Topics, topic)
	}
	got, err := cl.Broker(1).RetriableRequest(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	topics := got.(*kmsg.DescribeProducersResponse).Topics
	known, unknown := topics[0].Partitions[0], topics[0].Partitions[1]
	if known.ErrorCode != 0 || len(known.ActiveProducers) != 1 || unknown.ErrorCode != kerr.UnknownTopicOrPartition.Code ||
		topics[1].Partitions[0].ErrorCode != kerr.InvalidTopicException.Code {
		t.Fatalf("%+v", topics)
	}
	p := known.ActiveProducers[0]
	if p.ProducerID != id || p.ProducerEpoch != int32(epoch) || p.LastSequence != 19 || p.LastTimestamp <= 0 || p.CoordinatorEpoch != -1 || p.CurrentTxnStartOffset != -1 {
		t.Errorf("%+v", p)
	}
}

func TestElectLeaders(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 1, nil)
	for version := int16(0); version <= 2; version++ {
		for _, kind := range []int8{0, 1} {
			req := kmsg.NewPtrElectLeadersRequest()
			req.ElectionType = kind
			topic := kmsg.NewElectLeadersRequestTopic()
			topic.Topic, topic.Partitions = "t", []int32{0, 3}
			req.Topics = append(req.Topics, topic)
			resp, err := req.RequestWith(t.Context(), n.client(t, kgo.MaxVersions(heldTo(43, version))))
			if err != nil || resp.ErrorCode != 0 {
				t.Fatalf("%+v, %v", resp, err)
			}
			got := resp.Topics[0].Partitions
			if got[0].ErrorCode != kerr.ElectionNotNeeded.Code || got[1].ErrorCode != kerr.UnknownTopicOrPartition.Code {
				t.Errorf("version %d, kind %d: %+v", version, kind, got)
			}
		}
	}
	resp, err := kmsg.NewPtrElectLeadersRequest().RequestWith(t.Context(), n.client(t))
	if err != nil || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 0 {
		t.Errorf("of all partitions: %+v, %v", resp, err)
	}
}

func TestReassignments(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 1, nil)
	for _, c := range []struct {
		topic     string
		partition int32
		replicas  []int32
		want      *kerr.Error
	}{
		{"t", 0, []int32{1}, nil},
		{"t", 0, []int32{1, 2}, kerr.InvalidReplicaAssignment},
		{"t", 0, []int32{1, 1}, kerr.InvalidReplicaAssignment},
		{"t", 0, []int32{}, kerr.InvalidReplicaAssignment},
		{"t", 0, []int32{-1}, kerr.InvalidReplicaAssignment},
		{"t", 0, nil, kerr.NoReassignmentInProgress},
		{"t", 5, []int32{1}, kerr.UnknownTopicOrPartition},
		{"gone", 0, []int32{1}, kerr.UnknownTopicOrPartition},
	} {
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		req.TimeoutMillis = 5000
		topic := kmsg.NewAlterPartitionAssignmentsRequestTopic()
		p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
		p.Partition, p.Replicas = c.partition, c.replicas
		topic.Topic, topic.Partitions = c.topic, append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(t.Context(), n.client(t))
		if err != nil || resp.ErrorCode != 0 {
			t.Fatalf("%+v, %v", resp, err)
		}
		if got := resp.Topics[0].Partitions[0]; kerr.TypedErrorForCode(got.ErrorCode) != c.want {
			t.Errorf("%s-%d to %v: %v %s, want %v", c.topic, c.partition, c.replicas, kerr.ErrorForCode(got.ErrorCode), deref(got.ErrorMessage), c.want)
		}
	}
	under, err := kmsg.NewPtrListPartitionReassignmentsRequest().RequestWith(t.Context(), n.client(t))
	if err != nil || under.ErrorCode != 0 || len(under.Topics) != 0 {
		t.Errorf("%+v, %v", under, err)
	}
}

func TestDescribeTopicPartitions(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "a", 3, nil)
	n.createTopic(t, "b", 1, nil)
	n.createTopic(t, "c", 2, nil)
	// pages returns what each page of an answer has, until there is no cursor.
	pages := func(limit int32, names ...string) (out []string) {
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.ResponsePartitionLimit = limit
		for _, name := range names {
			topic := kmsg.NewDescribeTopicPartitionsRequestTopic()
			topic.Topic = name
			req.Topics = append(req.Topics, topic)
		}
		for len(out) < 10 {
			resp, err := req.RequestWith(t.Context(), n.client(t))
			if err != nil {
				t.Fatal(err)
			}
			var page []string
			for _, topic := range resp.Topics {
				page = append(page, fmt.Sprintf("%s/%d", *topic.Topic, topic.ErrorCode))
				for _, p := range topic.Partitions {
					page = append(page, fmt.Sprint(p.Partition))
					if p.LeaderID != 1 || !slices.Equal(p.ISR, []int32{1}) || len(p.OfflineReplicas) != 0 || topic.TopicID == [16]byte{} {
						t.Errorf("%+v", p)
					}
				}
			}
			out = append(out, strings.Join(page, " "))
			if resp.NextCursor == nil {
				return out
			}
			cursor := kmsg.NewDescribeTopicPartitionsRequestCursor()
			cursor.Topic, cursor.Partition = resp.NextCursor.Topic, resp.NextCursor.Partition
			req.Cursor = &cursor
		}
		return out
	}
	check := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	check(pages(2000), "a/0 0 1 2 b/0 0 c/0 0 1")
	check(pages(2), "a/0 0 1", "a/0 2 b/0 0", "c/0 0 1")
	check(pages(3), "a/0 0 1 2", "b/0 0 c/0 0 1")
	check(pages(10, "c", "nope", "a", "x/y"), "a/0 0 1 2 c/0 0 1 nope/3 x/y/17")
}

func TestListConfigResources(t *testing.T) {
	n := startNode(t, testConfig(t))
	n.createTopic(t, "t", 1, nil)
	list := func(version int16, kinds ...int8) string {
		req := kmsg.NewPtrListConfigResourcesRequest()
		req.ResourceTypes = kinds
		resp, err := req.RequestWith(t.Context(), n.client(t, kgo.MaxVersions(heldTo(74, version))))
		if err != nil {
			t.Fatal(err)
		}
		out := []string{}
		for _, r := range resp.ConfigResources {
			out = append(out, fmt.Sprintf("%d %s", r.Type, r.Name))
		}
		return fmt.Sprint(resp.ErrorCode, out)
	}
	for got, want := range map[string]string{
		list(1):     "0 [4 1 2 t]",
		list(1, 2):  "0 [2 t]",
		list(1, 32): "0 []",
		list(1, 99): "35 []",
		list(0):     "0 []",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestUnregisterBroker(t *testing.T) {
	n := startNode(t, testConfig(t))
	for id, want := range map[int32]*kerr.Error{1: kerr.InvalidRequest, 9: kerr.BrokerIDNotRegistered} {
		req := kmsg.NewPtrUnregisterBrokerRequest()
		req.BrokerID = id
		resp, err := req.RequestWith(t.Context(), n.client(t))
		if err != nil || kerr.TypedErrorForCode(resp.ErrorCode) != want {
			t.Errorf("%d: %+v, %v", id, resp, err)
		}
	}
}

// What is not there yet is not advertised: clients take what is advertised for
// usable, and fall back or say so where it is not.
func TestUnsupportedRequestsAreNotAdvertised(t *testing.T) {
	n := startNode(t, testConfig(t))
	resp, err := kmsg.NewPtrApiVersionsRequest().RequestWith(t.Context(), n.client(t))
	if err != nil {
		t.Fatal(err)
	}
	absent := map[int16]string{
		17: "SaslHandshake", 36: "SaslAuthenticate", 24: "AddPartitionsToTxn", 25: "AddOffsetsToTxn", 26: "EndTxn", 27: "WriteTxnMarkers",
		28: "TxnOffsetCommit", 29: "DescribeAcls", 30: "CreateAcls", 31: "DeleteAcls", 38: "CreateDelegationToken", 48: "DescribeClientQuotas",
		49: "AlterClientQuotas", 50: "DescribeUserScramCredentials", 55: "DescribeQuorum", 65: "DescribeTransactions", 66: "ListTransactions",
		71: "GetTelemetrySubscriptions", 72: "PushTelemetry",
	}
	for _, k := range resp.ApiKeys {
		if name, bad := absent[k.ApiKey]; bad {
			t.Errorf("%s is advertised", name)
		}
	}
}
