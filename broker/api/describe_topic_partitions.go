package api

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// describePartitionsMax bounds the partitions of one answer, as Kafka's
// max.request.partition.size.limit does by default.
const describePartitionsMax = 2000

// DescribeTopicPartitions, version 0 (KIP-966): topics in the order of their
// names, all if none is named, in pages. The cursor of a page's end is where the
// next begins.
func (a *API) describeTopicPartitions(_ *server.Request, req *kmsg.DescribeTopicPartitionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeTopicPartitionsResponse)
	im := a.Image()
	room := describePartitionsMax
	if req.ResponsePartitionLimit > 0 {
		room = min(room, int(req.ResponsePartitionLimit))
	}
	fromTopic, fromPartition := "", 0
	if c := req.Cursor; c != nil {
		fromTopic, fromPartition = c.Topic, int(max(c.Partition, 0))
	}
	for _, name := range describedTopics(im, req) {
		if name < fromTopic {
			continue
		}
		first := 0
		if name == fromTopic {
			first = fromPartition
		}
		if room == 0 {
			resp.NextCursor = cursorAt(name, first)
			return resp
		}
		out, next := a.describePartitions(im, name, first, room)
		resp.Topics = append(resp.Topics, out)
		room -= len(out.Partitions)
		if next >= 0 {
			resp.NextCursor = cursorAt(name, next)
			return resp
		}
	}
	return resp
}

func describedTopics(im *cluster.Image, req *kmsg.DescribeTopicPartitionsRequest) []string {
	var names []string
	for _, t := range req.Topics {
		names = append(names, t.Topic)
	}
	if len(names) == 0 {
		for _, t := range im.Topics() {
			names = append(names, t.Name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return slices.Compact(names)
}

func cursorAt(topic string, partition int) *kmsg.DescribeTopicPartitionsResponseNextCursor {
	c := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
	c.Topic, c.Partition = topic, int32(partition)
	return &c
}

// describePartitions describes up to room partitions of a topic; next is the
// first that is left, -1 if none is.
func (a *API) describePartitions(im *cluster.Image, name string, first, room int) (out kmsg.DescribeTopicPartitionsResponseTopic, next int) {
	out = kmsg.NewDescribeTopicPartitionsResponseTopic()
	out.Topic, out.AuthorizedOperations = &name, topicOperations
	t := im.Topic(name)
	if t == nil {
		out.ErrorCode = kerr.UnknownTopicOrPartition.Code
		if err := cluster.CheckTopicName(name); err != nil {
			out.ErrorCode, _ = topicError(err)
		}
		return out, -1
	}
	out.TopicID, out.IsInternal = t.ID, t.Internal
	end := min(first+room, len(t.Partitions))
	for i := first; i < end; i++ {
		p := t.Partitions[i]
		d := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
		d.Partition, d.LeaderID, d.LeaderEpoch = int32(i), leaderIn(im, p), p.LeaderEpoch
		d.Replicas, d.ISR, d.OfflineReplicas = p.Replicas, p.ISR, a.offlineReplicas(im, name, int32(i), p)
		d.EligibleLeaderReplicas, d.LastKnownELR = []int32{}, []int32{}
		if d.LeaderID == cluster.NoLeader {
			d.ErrorCode = kerr.LeaderNotAvailable.Code
		}
		out.Partitions = append(out.Partitions, d)
	}
	if end < len(t.Partitions) {
		return out, end
	}
	return out, -1
}
