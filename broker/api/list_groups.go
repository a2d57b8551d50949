package api

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/server"
)

// ListGroups, versions 0 to 5: from 4 with a filter of states, from 5 with one of types.

func listGroups(a *API, _ *server.Request, req *kmsg.ListGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrListGroupsResponse()
	all, err := a.Groups.List()
	resp.ErrorCode = groupErrorCode(err)
	for _, g := range all {
		if !passes(req.StatesFilter, g.State) || !passes(req.TypesFilter, g.Type) {
			continue
		}
		out := kmsg.NewListGroupsResponseGroup()
		out.Group, out.ProtocolType, out.GroupState, out.GroupType = g.Group, g.ProtocolType, g.State, g.Type
		resp.Groups = append(resp.Groups, out)
	}
	return resp
}

// passes says whether a filter lets a value through; an empty filter lets everything.
func passes(filter []string, value string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool { return strings.EqualFold(f, value) })
}
