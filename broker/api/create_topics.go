package api

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// CreateTopics, versions 2 to 7.
//
//	v5  partitions, replication factor and settings of what was made
//	v7  its topic id

func (a *API) createTopics(_ *server.Request, req *kmsg.CreateTopicsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	asked := make([]cluster.NewTopic, 0, len(req.Topics))
	for _, t := range req.Topics {
		asked = append(asked, newTopic(t))
	}
	ctx, cancel := timeout(req.TimeoutMillis)
	defer cancel()
	answered := map[string]bool{}
	for _, done := range a.Controller.CreateTopics(ctx, asked, req.ValidateOnly) {
		if answered[done.Name] { // asked for twice, refused once
			continue
		}
		answered[done.Name] = true
		resp.Topics = append(resp.Topics, a.createdTopic(done, req.ValidateOnly))
	}
	return resp
}

func newTopic(t kmsg.CreateTopicsRequestTopic) cluster.NewTopic {
	out := cluster.NewTopic{
		Name: t.Topic, Partitions: t.NumPartitions, ReplicationFactor: t.ReplicationFactor,
		Config: make(map[string]*string, len(t.Configs)),
	}
	for _, c := range t.Configs {
		out.Config[c.Name] = c.Value
	}
	if len(t.ReplicaAssignment) == 0 {
		return out
	}
	out.Assignment = make(map[int32][]int32, len(t.ReplicaAssignment))
	for _, p := range t.ReplicaAssignment {
		out.Assignment[p.Partition] = p.Replicas
	}
	return out
}

func (a *API) createdTopic(done cluster.CreateResult, validateOnly bool) kmsg.CreateTopicsResponseTopic {
	out := kmsg.NewCreateTopicsResponseTopic()
	out.Topic = done.Name
	out.NumPartitions, out.ReplicationFactor = -1, -1
	if out.ErrorCode, out.ErrorMessage = topicError(done.Err); done.Err != nil {
		return out
	}
	t := done.Topic
	if !validateOnly { // nothing was made that could have an id
		out.TopicID = t.ID
	}
	out.NumPartitions = int32(len(t.Partitions))
	out.ReplicationFactor = int16(len(t.Partitions[0].Replicas))
	broker := a.brokerSettings()
	for _, d := range cluster.TopicConfigs() {
		value, candidates := d.Resolve(t.Config, broker)
		c := kmsg.NewCreateTopicsResponseTopicConfig()
		c.Name, c.Value, c.Source = d.Name, &value, int8(candidates[0].Source)
		out.Configs = append(out.Configs, c)
	}
	return out
}
