package api

import (
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/server"
)

// DeleteGroups, versions 0 to 3: from 3 with a message for each error.

func deleteGroups(a *API, r *server.Request, req *kmsg.DeleteGroupsRequest) {
	resp := kmsg.NewPtrDeleteGroupsResponse()
	resp.Groups = make([]kmsg.DeleteGroupsResponseGroup, len(req.Groups))
	var left atomic.Int64
	left.Store(int64(len(req.Groups)))
	if len(req.Groups) == 0 {
		reply(r, resp)
		return
	}
	for i, name := range req.Groups {
		resp.Groups[i].Group = name
		a.Groups.Delete(name, func(err error) {
			resp.Groups[i].ErrorCode = groupErrorCode(err)
			if err != nil {
				resp.Groups[i].ErrorMessage = nullable(err.Error())
			}
			if left.Add(-1) == 0 {
				reply(r, resp)
			}
		})
	}
}
