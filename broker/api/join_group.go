package api

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// JoinGroup, versions 0 to 9: from 1 with a rebalance timeout, from 4 a first join is given a
// member id to come back with, from 5 with an instance id, from 7 the answer has the protocol type
// and may have no protocol, from 8 with a reason, from 9 a leader may be told to skip the
// assignment.

func joinGroup(a *API, r *server.Request, req *kmsg.JoinGroupRequest) {
	join := group.JoinRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: orEmpty(req.InstanceID),
		ClientID: r.ClientID, ClientHost: clientHost(r),
		SessionTimeout:    time.Duration(req.SessionTimeoutMillis) * time.Millisecond,
		RebalanceTimeout:  time.Duration(max(req.RebalanceTimeoutMillis, 0)) * time.Millisecond,
		ProtocolType:      req.ProtocolType,
		Reason:            orEmpty(req.Reason),
		RequireMemberID:   req.Version >= 4,
		CanSkipAssignment: req.Version >= 9,
	}
	if req.Version == 0 {
		join.RebalanceTimeout = join.SessionTimeout
	}
	for _, p := range req.Protocols {
		join.Protocols = append(join.Protocols, group.Protocol{Name: p.Name, Metadata: p.Metadata})
	}
	a.Groups.Join(join, func(res group.JoinResponse) { reply(r, joinResponse(res)) })
	r.ReleaseBody() // the wait can be long, and the coordinator has its own copies
}

func joinResponse(res group.JoinResponse) kmsg.Response {
	resp := kmsg.NewPtrJoinGroupResponse()
	resp.ErrorCode, resp.Generation = groupErrorCode(res.Err), res.Generation
	resp.ProtocolType, resp.Protocol = nullable(res.ProtocolType), nullable(res.Protocol)
	resp.LeaderID, resp.MemberID, resp.SkipAssignment = res.Leader, res.MemberID, res.SkipAssignment
	for _, mem := range res.Members {
		m := kmsg.NewJoinGroupResponseMember()
		m.MemberID, m.InstanceID, m.ProtocolMetadata = mem.ID, nullable(mem.InstanceID), mem.Metadata
		resp.Members = append(resp.Members, m)
	}
	return resp
}
