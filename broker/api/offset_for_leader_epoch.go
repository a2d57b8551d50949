package api

// OffsetForLeaderEpoch, versions 2 to 4 (KIP-320).
//
//	3  replica id; consumers send -1
//	4  flexible

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

func offsetForLeaderEpoch(a *API, _ *server.Request, req *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	for i := range req.Topics {
		t := &req.Topics[i]
		out := kmsg.NewOffsetForLeaderEpochResponseTopic()
		out.Topic = t.Topic
		for j := range t.Partitions {
			out.Partitions = append(out.Partitions, a.epochEnd(t.Topic, &t.Partitions[j]))
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// epochEnd tells where the largest epoch at or below the one asked for ends.
func (a *API) epochEnd(topic string, asked *kmsg.OffsetForLeaderEpochRequestTopicPartition) kmsg.OffsetForLeaderEpochResponseTopicPartition {
	out := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
	out.Partition = asked.Partition
	p, code := a.find(topic, cluster.TopicID{}, false, asked.Partition)
	if code == 0 {
		code = dataCode(p.Check(asked.CurrentLeaderEpoch))
	}
	if out.ErrorCode = code; code == 0 {
		out.LeaderEpoch, out.EndOffset = p.Log().EndOffsetForEpoch(asked.LeaderEpoch)
	}
	return out
}
