package api

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// ConsumerGroupHeartbeat, versions 0 and 1 (KIP-848): from 1 with a regular expression for topics,
// and member ids that the members make themselves.

func consumerGroupHeartbeat(a *API, r *server.Request, req *kmsg.ConsumerGroupHeartbeatRequest) {
	heartbeat := group.ConsumerHeartbeat{
		Group: req.Group, MemberID: req.MemberID, Epoch: req.MemberEpoch,
		InstanceID: req.InstanceID, RackID: req.RackID,
		RebalanceTimeout: time.Duration(req.RebalanceTimeoutMillis) * time.Millisecond,
		Topics:           req.SubscribedTopicNames, Regex: req.SubscribedTopicRegex, Assignor: req.ServerAssignor,
		ClientID: r.ClientID, ClientHost: clientHost(r),
		MemberIDRequired: req.Version >= 1,
	}
	if req.Topics != nil {
		heartbeat.Owned = make([]group.TopicPartitions, len(req.Topics))
		for i, t := range req.Topics {
			heartbeat.Owned[i] = group.TopicPartitions{TopicID: t.TopicID, Partitions: slices.Clone(t.Partitions)}
		}
	}
	a.Groups.ConsumerHeartbeat(heartbeat, func(res group.ConsumerHeartbeatResponse) {
		reply(r, consumerHeartbeatResponse(res))
	})
}

func consumerHeartbeatResponse(res group.ConsumerHeartbeatResponse) kmsg.Response {
	resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
	resp.ErrorCode = groupErrorCode(res.Err)
	if res.Err != nil {
		resp.ErrorMessage = nullable(res.Err.Error())
	}
	resp.MemberID, resp.MemberEpoch = nullable(res.MemberID), res.Epoch
	resp.HeartbeatIntervalMillis = int32(res.HeartbeatInterval.Milliseconds())
	if res.Assigned {
		as := kmsg.NewConsumerGroupHeartbeatResponseAssignment()
		for _, tp := range res.Assignment {
			t := kmsg.NewConsumerGroupHeartbeatResponseAssignmentTopic()
			t.TopicID, t.Partitions = tp.TopicID, tp.Partitions
			as.Topics = append(as.Topics, t)
		}
		resp.Assignment = &as
	}
	return resp
}
