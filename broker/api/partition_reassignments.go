package api

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// AlterPartitionReassignments (KIP-455), versions 0 and 1. Version 1 says whether
// the number of replicas may change. Null replicas take a reassignment back.
func (a *API) alterReassignments(_ *server.Request, req *kmsg.AlterPartitionAssignmentsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AlterPartitionAssignmentsResponse)
	mayChange := true
	if req.Version >= 1 {
		mayChange = req.AllowReplicationFactorChange
		resp.AllowReplicationFactorChange = mayChange
	}
	var asked []cluster.Reassignment
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			asked = append(asked, cluster.Reassignment{
				TopicPartition: cluster.TopicPartition{Topic: t.Topic, Partition: p.Partition}, Replicas: p.Replicas,
			})
		}
	}
	ctx, cancel := timeout(req.TimeoutMillis)
	defer cancel()
	results := a.Controller.AlterReassignments(ctx, asked, mayChange)
	for _, t := range req.Topics {
		out := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			done := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			done.Partition = p.Partition
			done.ErrorCode, done.ErrorMessage = topicError(results[0])
			results = results[1:]
			out.Partitions = append(out.Partitions, done)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// ListPartitionReassignments (KIP-455), version 0. Null topics mean all.
func (a *API) listReassignments(_ *server.Request, req *kmsg.ListPartitionReassignmentsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListPartitionReassignmentsResponse)
	ctx, cancel := timeout(req.TimeoutMillis)
	defer cancel()
	moves, err := a.Controller.ListReassignments(ctx)
	if resp.ErrorCode, resp.ErrorMessage = topicError(err); err != nil {
		return resp
	}
	asked := map[cluster.TopicPartition]bool{}
	for _, t := range req.Topics {
		for _, index := range t.Partitions {
			asked[cluster.TopicPartition{Topic: t.Topic, Partition: index}] = true
		}
	}
	for _, m := range moves {
		if req.Topics != nil && !asked[m.TopicPartition] {
			continue
		}
		if last := len(resp.Topics) - 1; last < 0 || resp.Topics[last].Topic != m.Topic { // they are sorted
			t := kmsg.NewListPartitionReassignmentsResponseTopic()
			t.Topic = m.Topic
			resp.Topics = append(resp.Topics, t)
		}
		p := kmsg.NewListPartitionReassignmentsResponseTopicPartition()
		p.Partition, p.Replicas = m.Partition, m.Replicas
		p.AddingReplicas, p.RemovingReplicas = m.Adding, m.Removing
		t := &resp.Topics[len(resp.Topics)-1]
		t.Partitions = append(t.Partitions, p)
	}
	return resp
}
