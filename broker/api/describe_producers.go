package api

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// DescribeProducers, version 0 (KIP-664): the idempotent producers that a
// partition remembers.
func (a *API) describeProducers(_ *server.Request, req *kmsg.DescribeProducersRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
	for _, t := range req.Topics {
		out := kmsg.NewDescribeProducersResponseTopic()
		out.Topic = t.Topic
		for _, index := range t.Partitions {
			out.Partitions = append(out.Partitions, a.producersOf(t.Topic, index))
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func (a *API) producersOf(topic string, partition int32) kmsg.DescribeProducersResponseTopicPartition {
	out := kmsg.NewDescribeProducersResponseTopicPartition()
	out.Partition = partition
	if err := cluster.CheckTopicName(topic); err != nil {
		out.ErrorCode, out.ErrorMessage = topicError(err)
		return out
	}
	p, code := a.find(topic, cluster.TopicID{}, false, partition)
	if p != nil {
		code = dataCode(p.Err())
	}
	if code != 0 {
		out.ErrorCode, out.ErrorMessage = code, nullable(kerr.TypedErrorForCode(code).Description)
		return out
	}
	for _, s := range p.Log().ActiveProducers() {
		d := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		d.ProducerID, d.ProducerEpoch, d.LastSequence, d.LastTimestamp = s.ProducerID, int32(s.Epoch), s.LastSequence, s.LastTimestamp
		d.CoordinatorEpoch, d.CurrentTxnStartOffset = -1, -1 // no transactions
		out.ActiveProducers = append(out.ActiveProducers, d)
	}
	return out
}
