package api

import (
	"errors"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// DescribeGroups, versions 0 to 6: from 3 with authorised operations, from 4 with instance ids,
// from 6 a group that does not exist, or is of the consumer protocol, is GROUP_ID_NOT_FOUND with a message; before, it is Dead and
// no error.

// groupOperations is what can be done with a group, as a bit for each of Kafka's ACL operations:
// read, delete, describe, describe and alter configs. Without authorisation everybody may.
const groupOperations = 1<<3 | 1<<6 | 1<<8 | 1<<10 | 1<<11

func describeGroups(a *API, _ *server.Request, req *kmsg.DescribeGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeGroupsResponse()
	for _, name := range req.Groups {
		d, err := a.Groups.Describe(name)
		g := describedGroup(d)
		switch {
		case !errors.Is(err, group.ErrGroupNotFound):
			g.ErrorCode = groupErrorCode(err)
		case req.Version >= 6:
			g.ErrorCode = groupErrorCode(err)
			g.ErrorMessage = nullable(fmt.Sprintf("Group %s not found.", name))
		}
		if req.IncludeAuthorizedOperations && err == nil {
			g.AuthorizedOperations = groupOperations
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}

func describedGroup(d group.Description) kmsg.DescribeGroupsResponseGroup {
	g := kmsg.NewDescribeGroupsResponseGroup()
	g.Group, g.State, g.ProtocolType, g.Protocol = d.Group, d.State, d.ProtocolType, d.Protocol
	g.AuthorizedOperations = math.MinInt32
	for _, m := range d.Members {
		out := kmsg.NewDescribeGroupsResponseGroupMember()
		out.MemberID, out.InstanceID, out.ClientID, out.ClientHost = m.ID, nullable(m.InstanceID), m.ClientID, m.ClientHost
		out.ProtocolMetadata, out.MemberAssignment = m.Metadata, m.Assignment
		g.Members = append(g.Members, out)
	}
	return g
}
