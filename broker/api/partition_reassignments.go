package api

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// AlterPartitionReassignments (KIP-455), versions 0 and 1. Version 1 says whether
// the number of replicas may change.
//
// A partition's replicas are what they are as long as there is one broker:
// the same replicas again are granted at once, others refused.
func (a *API) alterReassignments(_ *server.Request, req *kmsg.AlterPartitionAssignmentsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AlterPartitionAssignmentsResponse)
	if req.Version >= 1 {
		resp.AllowReplicationFactorChange = req.AllowReplicationFactorChange
	}
	im := a.Image()
	for _, t := range req.Topics {
		out := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			done := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			done.Partition = p.Partition
			state, ok := im.Partition(t.Topic, p.Partition)
			switch {
			case !ok:
				done.ErrorCode, done.ErrorMessage = kerr.UnknownTopicOrPartition.Code, nullable("there is no such partition")
			case p.Replicas == nil:
				done.ErrorCode = kerr.NoReassignmentInProgress.Code
			default:
				mayGrow := req.Version < 1 || req.AllowReplicationFactorChange
				done.ErrorCode, done.ErrorMessage = topicError(cluster.CheckReassignment(im, p.Partition, state, p.Replicas, mayGrow))
			}
			out.Partitions = append(out.Partitions, done)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// ListPartitionReassignments (KIP-455), version 0: none is ever under way.
func (a *API) listReassignments(_ *server.Request, req *kmsg.ListPartitionReassignmentsRequest) kmsg.Response {
	return req.ResponseKind()
}
