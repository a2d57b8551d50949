package api

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// Heartbeat, versions 0 to 4: from 3 with an instance id.

func heartbeat(a *API, _ *server.Request, req *kmsg.HeartbeatRequest) kmsg.Response {
	err := a.Groups.Heartbeat(group.HeartbeatRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: orEmpty(req.InstanceID), Generation: req.Generation,
	})
	resp := kmsg.NewPtrHeartbeatResponse()
	resp.ErrorCode = groupErrorCode(err)
	return resp
}
