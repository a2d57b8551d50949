package api

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// ConsumerGroupDescribe, versions 0 and 1 (KIP-848): from 1 with the protocol that each member
// speaks. A group of the classic protocol is not found.

// The protocols that a member can speak.
const (
	classicMemberType  = 0
	consumerMemberType = 1
)

func consumerGroupDescribe(a *API, r *server.Request, req *kmsg.ConsumerGroupDescribeRequest) {
	resp := kmsg.NewPtrConsumerGroupDescribeResponse()
	resp.Groups = make([]kmsg.ConsumerGroupDescribeResponseGroup, len(req.Groups))
	if len(req.Groups) == 0 {
		reply(r, resp)
		return
	}
	var left atomic.Int64
	left.Store(int64(len(req.Groups)))
	for i, name := range req.Groups {
		a.Groups.DescribeConsumer(name, func(d group.ConsumerDescription, err error) {
			g := a.describedConsumerGroup(d)
			g.ErrorCode = groupErrorCode(err)
			switch {
			case errors.Is(err, group.ErrGroupNotFound):
				g.ErrorMessage = nullable(fmt.Sprintf("Group %s is not a consumer group.", name))
			case err != nil:
				g.ErrorMessage = nullable(err.Error())
			case req.IncludeAuthorizedOperations:
				g.AuthorizedOperations = groupOperations
			}
			resp.Groups[i] = g
			if left.Add(-1) == 0 {
				reply(r, resp)
			}
		})
	}
}

func (a *API) describedConsumerGroup(d group.ConsumerDescription) kmsg.ConsumerGroupDescribeResponseGroup {
	g := kmsg.NewConsumerGroupDescribeResponseGroup()
	g.Group, g.State, g.Epoch, g.AssignmentEpoch, g.AssignorName = d.Group, d.State, d.Epoch, d.TargetEpoch, d.Assignor
	for _, m := range d.Members {
		out := kmsg.NewConsumerGroupDescribeResponseGroupMember()
		out.MemberID, out.InstanceID, out.RackID = m.ID, nullable(m.InstanceID), nullable(m.RackID)
		out.MemberEpoch, out.ClientID, out.ClientHost = m.Epoch, m.ClientID, m.ClientHost
		out.SubscribedTopics, out.SubscribedTopicRegex = m.Topics, nullable(m.Regex)
		out.Assignment, out.TargetAssignment = a.namedAssignment(m.Assignment), a.namedAssignment(m.Target)
		out.MemberType = consumerMemberType
		if m.Classic {
			out.MemberType = classicMemberType
		}
		g.Members = append(g.Members, out)
	}
	return g
}

// namedAssignment gives the topics their names; those that are no more have none and are left out.
func (a *API) namedAssignment(all []group.TopicPartitions) (as kmsg.Assignment) {
	image := a.Image()
	for _, tp := range all {
		topic := image.TopicByID(tp.TopicID)
		if topic == nil {
			continue
		}
		as.TopicPartitions = append(as.TopicPartitions, kmsg.AssignmentTopicPartition{
			TopicID: tp.TopicID, Topic: topic.Name, Partitions: tp.Partitions,
		})
	}
	return as
}
