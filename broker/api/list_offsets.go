package api

// ListOffsets, versions 1 to 11.
//
//	2   isolation level: the end is the last stable offset for read_committed
//	4   leader epochs (KIP-320)
//	5   OFFSET_NOT_AVAILABLE (KIP-207)
//	6   flexible
//	7   timestamp -3: the record with the largest timestamp (KIP-734)
//	8   timestamp -4: the earliest offset on this node's own disk (KIP-405)
//	9   timestamp -5: the latest offset in remote storage (KIP-1005)
//	10  timeout, which we have no use for: nothing here waits
//	11  timestamp -6: the earliest offset that is yet to go to remote storage (KIP-1023)

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
)

// Timestamps that stand for something else.
const (
	latestOffset          = -1
	earliestOffset        = -2
	maxTimestampOffset    = -3
	earliestLocalOffset   = -4
	latestTieredOffset    = -5
	earliestPendingUpload = -6
)

// specialSince is the first version in which a special timestamp is known.
var specialSince = map[int64]int16{
	maxTimestampOffset:    7,
	earliestLocalOffset:   8,
	latestTieredOffset:    9,
	earliestPendingUpload: 11,
}

const readCommitted = 1

func listOffsets(a *API, _ *server.Request, req *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := kmsg.NewPtrListOffsetsResponse()
	for i := range req.Topics {
		t := &req.Topics[i]
		out := kmsg.NewListOffsetsResponseTopic()
		out.Topic = t.Topic
		seen := make(map[int32]int, len(t.Partitions))
		for _, p := range t.Partitions {
			seen[p.Partition]++
		}
		for j := range t.Partitions {
			part := a.listOffset(req, t.Topic, &t.Partitions[j])
			if seen[part.Partition] > 1 {
				part = refusedOffset(part.Partition, kerr.InvalidRequest.Code)
			}
			out.Partitions = append(out.Partitions, part)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func refusedOffset(partition int32, code int16) kmsg.ListOffsetsResponseTopicPartition {
	out := kmsg.NewListOffsetsResponseTopicPartition()
	out.Partition, out.ErrorCode = partition, code
	return out
}

func (a *API) listOffset(req *kmsg.ListOffsetsRequest, topic string, asked *kmsg.ListOffsetsRequestTopicPartition) kmsg.ListOffsetsResponseTopicPartition {
	p, code := a.find(topic, cluster.TopicID{}, false, asked.Partition)
	if code == 0 {
		code = dataCode(p.Check(asked.CurrentLeaderEpoch))
	}
	if req.Version < specialSince[asked.Timestamp] {
		code = kerr.UnsupportedVersion.Code
	}
	if code != 0 {
		return refusedOffset(asked.Partition, code)
	}
	end, err := p.ListableEnd()
	if err != nil && asked.Timestamp != earliestOffset && asked.Timestamp != earliestLocalOffset {
		return refusedOffset(asked.Partition, dataCode(err)) // KIP-207
	}
	if req.IsolationLevel == readCommitted {
		end = p.LastStableOffset()
	}
	found, err := findOffset(p, asked.Timestamp, end)
	if err != nil {
		a.Log.Error("list offsets", "topic", topic, "partition", asked.Partition, "timestamp", asked.Timestamp, "error", err)
		return refusedOffset(asked.Partition, dataCode(err))
	}
	out := kmsg.NewListOffsetsResponseTopicPartition()
	out.Partition = asked.Partition
	out.Offset, out.Timestamp, out.LeaderEpoch = found.offset, found.timestamp, found.epoch
	return out
}

type foundOffset struct {
	offset, timestamp int64
	epoch             int32
}

var nothingFound = foundOffset{offset: -1, timestamp: -1, epoch: -1}

// findOffset answers for one partition, of whose records those below end count.
func findOffset(p *replica.Partition, timestamp, end int64) (foundOffset, error) {
	log := p.Log()
	switch timestamp {
	case latestOffset:
		return foundOffset{offset: end, timestamp: -1, epoch: p.LeaderEpoch()}, nil
	case earliestOffset, earliestLocalOffset:
		start := log.StartOffset()
		return foundOffset{offset: start, timestamp: -1, epoch: log.EpochForOffset(start)}, nil
	case latestTieredOffset, earliestPendingUpload:
		return nothingFound, nil // there is no remote storage
	case maxTimestampOffset:
		return foundRecord(log.MaxTimestamp(end))
	}
	return foundRecord(log.OffsetForTimestamp(timestamp, end))
}

func foundRecord(offset, timestamp int64, epoch int32, ok bool, err error) (foundOffset, error) {
	if err != nil || !ok {
		return nothingFound, err
	}
	return foundOffset{offset: offset, timestamp: timestamp, epoch: epoch}, nil
}
