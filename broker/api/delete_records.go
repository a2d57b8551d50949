package api

// DeleteRecords, versions 0 to 2 (KIP-107).
//
//	2  flexible
//
// The log start moves at once; it is stored with the next checkpoint of the log
// starts, as in Apache Kafka.

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
)

// toHighWatermark stands for the high watermark as the offset before which
// records are deleted.
const toHighWatermark = -1

func (a *API) deleteRecords(_ *server.Request, req *kmsg.DeleteRecordsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	for i := range req.Topics {
		t := &req.Topics[i]
		out := kmsg.NewDeleteRecordsResponseTopic()
		out.Topic = t.Topic
		for _, asked := range t.Partitions {
			p := kmsg.NewDeleteRecordsResponseTopicPartition()
			p.Partition = asked.Partition
			p.LowWatermark, p.ErrorCode = a.deleteBefore(t.Topic, asked.Partition, asked.Offset)
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// deleteBefore moves a partition's start up to an offset and returns the start;
// -1 with an error.
func (a *API) deleteBefore(topic string, partition int32, offset int64) (start int64, code int16) {
	if t := a.Image().Topic(topic); t != nil && t.Internal {
		return -1, kerr.InvalidTopicException.Code
	}
	p, code := a.find(topic, cluster.TopicID{}, false, partition)
	if code == 0 {
		code = dataCode(p.Check(replica.NoEpoch))
	}
	if code != 0 {
		return -1, code
	}
	if p.Config().NoDelete {
		return -1, kerr.PolicyViolation.Code
	}
	mark := p.HighWatermark()
	if offset == toHighWatermark {
		offset = mark
	}
	if offset < 0 || offset > mark {
		return -1, kerr.OffsetOutOfRange.Code
	}
	if err := p.Log().SetStartOffset(offset); err != nil {
		return -1, dataCode(err)
	}
	return p.Log().StartOffset(), 0
}
