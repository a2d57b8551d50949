package api

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// LeaveGroup, versions 0 to 5: up to 2 for one member, whose error is the request's; from 3 for
// several; from 5 with a reason for each.

func leaveGroup(a *API, r *server.Request, req *kmsg.LeaveGroupRequest) {
	leave := group.LeaveRequest{Group: req.Group}
	if req.Version < 3 {
		leave.Members = []group.LeavingMember{{MemberID: req.MemberID}}
	}
	for _, m := range req.Members {
		leave.Members = append(leave.Members, group.LeavingMember{
			MemberID: m.MemberID, InstanceID: orEmpty(m.InstanceID), Reason: orEmpty(m.Reason),
		})
	}
	a.Groups.Leave(leave, func(res group.LeaveResponse) {
		resp := kmsg.NewPtrLeaveGroupResponse()
		resp.ErrorCode = groupErrorCode(res.Err)
		if req.Version < 3 && res.Err == nil {
			resp.ErrorCode = groupErrorCode(res.Members[0])
		}
		for i, m := range req.Members {
			answer := kmsg.NewLeaveGroupResponseMember()
			answer.MemberID, answer.InstanceID = m.MemberID, m.InstanceID
			if res.Err == nil {
				answer.ErrorCode = groupErrorCode(res.Members[i])
			}
			resp.Members = append(resp.Members, answer)
		}
		reply(r, resp)
	})
}
