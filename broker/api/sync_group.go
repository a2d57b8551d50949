package api

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// SyncGroup, versions 0 to 5: from 3 with an instance id, from 5 with the protocol that the member
// believes in.

func syncGroup(a *API, r *server.Request, req *kmsg.SyncGroupRequest) {
	sync := group.SyncRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: orEmpty(req.InstanceID), Generation: req.Generation,
		ProtocolType: orEmpty(req.ProtocolType), Protocol: orEmpty(req.Protocol),
	}
	for _, as := range req.GroupAssignment {
		sync.Assignments = append(sync.Assignments, group.Assignment{MemberID: as.MemberID, Data: as.MemberAssignment})
	}
	a.Groups.Sync(sync, func(res group.SyncResponse) {
		resp := kmsg.NewPtrSyncGroupResponse()
		resp.ErrorCode, resp.MemberAssignment = groupErrorCode(res.Err), res.Assignment
		resp.ProtocolType, resp.Protocol = nullable(res.ProtocolType), nullable(res.Protocol)
		reply(r, resp)
	})
	r.ReleaseBody() // as in JoinGroup
}
