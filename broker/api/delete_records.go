package api

// DeleteRecords, versions 0 to 2 (KIP-107).
//
//	2  flexible
//
// The log start moves at once, and is stored with the next checkpoint of the log
// starts, as in Apache Kafka. The answer waits until it has moved on all replicas
// in sync.

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
)

// toHighWatermark stands for the high watermark as the offset before which
// records are deleted.
const toHighWatermark = -1

// lowWatermarkCheck is how often it is looked whether the other replicas in sync
// have followed. They do with their next fetches.
const lowWatermarkCheck = 10 * time.Millisecond

func deleteRecords(a *API, r *server.Request, req *kmsg.DeleteRecordsRequest) {
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	var pending []*deletedPart
	for i := range req.Topics {
		t := &req.Topics[i]
		out := kmsg.NewDeleteRecordsResponseTopic()
		out.Topic = t.Topic
		out.Partitions = make([]kmsg.DeleteRecordsResponseTopicPartition, len(t.Partitions))
		for j, asked := range t.Partitions {
			p := &out.Partitions[j]
			p.Partition = asked.Partition
			var of *replica.Partition
			of, p.LowWatermark, p.ErrorCode = a.deleteBefore(t.Topic, asked.Partition, asked.Offset)
			if p.ErrorCode == 0 && of.LowWatermark() < p.LowWatermark {
				pending = append(pending, &deletedPart{of, p})
			}
		}
		resp.Topics = append(resp.Topics, out)
	}
	if len(pending) == 0 {
		reply(r, resp)
		return
	}
	go func() {
		awaitDeleted(pending, a.Now().Add(time.Duration(req.TimeoutMillis)*time.Millisecond), a.Now)
		reply(r, resp)
	}()
}

// deletedPart is a partition whose start has moved on this replica only, so far.
type deletedPart struct {
	partition *replica.Partition
	answer    *kmsg.DeleteRecordsResponseTopicPartition
}

// awaitDeleted waits until all replicas in sync have moved their starts too.
func awaitDeleted(pending []*deletedPart, until time.Time, now func() time.Time) {
	for {
		pending = slices.DeleteFunc(pending, func(p *deletedPart) bool {
			if err := p.partition.Check(replica.NoEpoch); err != nil {
				p.answer.LowWatermark, p.answer.ErrorCode = -1, dataCode(err)
				return true
			}
			return p.partition.LowWatermark() >= p.answer.LowWatermark
		})
		if len(pending) == 0 {
			return
		}
		if now().After(until) {
			break
		}
		time.Sleep(lowWatermarkCheck)
	}
	for _, p := range pending {
		p.answer.LowWatermark, p.answer.ErrorCode = -1, kerr.RequestTimedOut.Code
	}
}

// deleteBefore moves a partition's start on this replica up to an offset and
// returns the start; -1 with an error.
func (a *API) deleteBefore(topic string, partition int32, offset int64) (p *replica.Partition, start int64, code int16) {
	if t := a.Image().Topic(topic); t != nil && t.Internal {
		return nil, -1, kerr.InvalidTopicException.Code
	}
	p, code = a.find(topic, cluster.TopicID{}, false, partition)
	if code == 0 {
		code = dataCode(p.Check(replica.NoEpoch))
	}
	if code != 0 {
		return nil, -1, code
	}
	if p.Config().NoDelete {
		return nil, -1, kerr.PolicyViolation.Code
	}
	mark := p.HighWatermark()
	if offset == toHighWatermark {
		offset = mark
	}
	if offset < 0 || offset > mark {
		return nil, -1, kerr.OffsetOutOfRange.Code
	}
	if err := p.Log().SetStartOffset(offset); err != nil {
		return nil, -1, dataCode(err)
	}
	return p, p.Log().StartOffset(), 0
}
