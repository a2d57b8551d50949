package api

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// CreatePartitions, versions 0 to 3, which differ only in their encoding.

func (a *API) createPartitions(_ *server.Request, req *kmsg.CreatePartitionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	asked := make([]cluster.NewPartitions, 0, len(req.Topics))
	for _, t := range req.Topics {
		asked = append(asked, newPartitions(t))
	}
	ctx, cancel := timeout(req.TimeoutMillis)
	defer cancel()
	answered := map[string]bool{}
	for i, err := range a.Controller.CreatePartitions(ctx, asked, req.ValidateOnly) {
		if answered[asked[i].Topic] { // asked for twice, refused once
			continue
		}
		answered[asked[i].Topic] = true
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic = asked[i].Topic
		out.ErrorCode, out.ErrorMessage = topicError(err)
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func newPartitions(t kmsg.CreatePartitionsRequestTopic) cluster.NewPartitions {
	out := cluster.NewPartitions{Topic: t.Topic, Total: t.Count}
	for _, p := range t.Assignment {
		out.Assignment = append(out.Assignment, p.Replicas)
	}
	return out
}
