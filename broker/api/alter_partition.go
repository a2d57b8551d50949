package api

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// alterErrors maps what the controller says to brokers.
func alterErrors() []errorCode {
	return []errorCode{
		{cluster.ErrNotController, kerr.NotController.Code},
		{cluster.ErrStaleBrokerEpoch, kerr.StaleBrokerEpoch.Code},
		{cluster.ErrUnknownTopic, kerr.UnknownTopicID.Code},
		{cluster.ErrUnknownPartition, kerr.UnknownTopicOrPartition.Code},
		{cluster.ErrFencedLeaderEpoch, kerr.FencedLeaderEpoch.Code},
		{cluster.ErrInvalidUpdateVersion, kerr.InvalidUpdateVersion.Code},
		{cluster.ErrIneligibleReplica, kerr.IneligibleReplica.Code},
		{cluster.ErrInvalidRequest, kerr.InvalidRequest.Code},
	}
}

func alterCode(err error) int16 {
	if err == nil {
		return 0
	}
	for _, m := range alterErrors() {
		if errors.Is(err, m.err) {
			return m.code
		}
	}
	return kerr.UnknownServerError.Code
}

// AlterPartition, version 3 (KIP-497, KIP-903): a leader asks for other in-sync replicas.
func alterPartition(a *API, _ *server.Request, req *kmsg.AlterPartitionRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AlterPartitionResponse)
	ctx, cancel := timeout(int32(alterConfigsTimeout.Milliseconds()))
	defer cancel()
	var asked []cluster.AlterPartition
	im := a.Image()
	for _, t := range req.Topics {
		name := ""
		if topic := im.TopicByID(t.TopicID); topic != nil {
			name = topic.Name
		}
		for _, p := range t.Partitions {
			one := cluster.AlterPartition{
				TopicPartition: cluster.TopicPartition{Topic: name, Partition: p.Partition}, TopicID: t.TopicID,
				Leader: req.BrokerID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
			}
			for _, r := range p.NewEpochISR {
				one.ISR = append(one.ISR, cluster.InSyncReplica{ID: r.BrokerID, Epoch: r.BrokerEpoch})
			}
			asked = append(asked, one)
		}
	}
	results := a.Controller.AlterPartitions(ctx, req.BrokerID, req.BrokerEpoch, asked)
	if resp.ErrorCode = refusedAll(results); resp.ErrorCode != 0 {
		return resp
	}
	next := 0
	for _, t := range req.Topics {
		out := kmsg.NewAlterPartitionResponseTopic()
		out.TopidID = t.TopicID
		for range t.Partitions {
			out.Partitions = append(out.Partitions, altered(results[next]))
			next++
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// refusedAll is the code of an error that concerns the broker, not a partition.
func refusedAll(results []cluster.AlterPartitionResult) int16 {
	for _, r := range results {
		for _, whole := range []error{cluster.ErrNotController, cluster.ErrStaleBrokerEpoch} {
			if errors.Is(r.Err, whole) {
				return alterCode(whole)
			}
		}
	}
	return 0
}

// tagReplicas carries the replicas in the answer, and which of them a reassignment adds
// and removes, which Kafka's lacks; the other brokers' side knows it under the same number.
const tagReplicas = 1010

func altered(result cluster.AlterPartitionResult) kmsg.AlterPartitionResponseTopicPartition {
	out := kmsg.NewAlterPartitionResponseTopicPartition()
	out.Partition, out.ErrorCode = result.TopicPartition.Partition, alterCode(result.Err)
	out.LeaderID, out.LeaderEpoch, out.PartitionEpoch = -1, -1, -1
	if result.Err == nil {
		p := result.Partition
		out.LeaderID, out.LeaderEpoch, out.PartitionEpoch, out.ISR = p.Leader, p.LeaderEpoch, p.PartitionEpoch, p.ISR
		w := writer{}
		for _, ids := range [][]int32{p.Replicas, p.Adding, p.Removing} {
			w.uvarint(len(ids))
			for _, id := range ids {
				w.uvarint(int(uint32(id)))
			}
		}
		out.UnknownTags.Set(tagReplicas, w.b)
	}
	return out
}

// ControlledShutdown, version 3: a broker that stops has its leaderships moved.
func controlledShutdown(a *API, _ *server.Request, req *kmsg.ControlledShutdownRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ControlledShutdownResponse)
	ctx, cancel := timeout(int32(alterConfigsTimeout.Milliseconds()))
	defer cancel()
	remaining, err := a.Controller.ControlledShutdown(ctx, req.BrokerID, req.BrokerEpoch)
	if resp.ErrorCode = alterCode(err); err != nil {
		a.Log.Warn("controlled shutdown refused", "broker", req.BrokerID, "error", err)
		return resp
	}
	for _, p := range remaining {
		one := kmsg.NewControlledShutdownResponsePartitionsRemaining()
		one.Topic, one.Partition = p.Topic, p.Partition
		resp.PartitionsRemaining = append(resp.PartitionsRemaining, one)
	}
	return resp
}
