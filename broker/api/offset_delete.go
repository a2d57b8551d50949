package api

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// OffsetDelete, version 0 (KIP-496).

func offsetDelete(a *API, r *server.Request, req *kmsg.OffsetDeleteRequest) {
	resp := kmsg.NewPtrOffsetDeleteResponse()
	resp.Topics = make([]kmsg.OffsetDeleteResponseTopic, len(req.Topics))
	var slots []*kmsg.OffsetDeleteResponseTopicPartition
	var partitions []group.Partition
	for i, rt := range req.Topics {
		out := &resp.Topics[i]
		out.Topic = rt.Topic
		out.Partitions = make([]kmsg.OffsetDeleteResponseTopicPartition, len(rt.Partitions))
		topic := a.Image().Topic(rt.Topic)
		for j, p := range rt.Partitions {
			out.Partitions[j].Partition = p.Partition
			if topic == nil || p.Partition < 0 || int(p.Partition) >= len(topic.Partitions) {
				out.Partitions[j].ErrorCode = kerr.UnknownTopicOrPartition.Code
				continue
			}
			slots = append(slots, &out.Partitions[j])
			partitions = append(partitions, group.Partition{Topic: rt.Topic, TopicID: topic.ID, Partition: p.Partition})
		}
	}
	a.Groups.DeleteOffsets(req.Group, partitions, func(errs []error, err error) {
		if resp.ErrorCode = groupErrorCode(err); err != nil {
			resp.Topics = nil
		}
		for i, e := range errs {
			slots[i].ErrorCode = groupErrorCode(e)
		}
		reply(r, resp)
	})
}
