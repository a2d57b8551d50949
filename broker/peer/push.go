package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
)

// A push is one cluster.Update, spread over Kafka's three requests in this
// order, on one connection:
//
//	StopReplica     the topics that are deleted, if any are
//	UpdateMetadata  the brokers, the settings, and the partitions that the receiver does not hold
//	LeaderAndIsr    the partitions that it holds, if there are any
//
// The last of them makes the receiver take the whole update, and its answer says
// that it has.

// versions of the requests of a push.
const (
	stopReplicaVersion    = 4
	updateMetadataVersion = 8
	leaderAndISRVersion   = 7

	leaderAndISRFull        = 2 // its field Type (KIP-516)
	leaderAndISRIncremental = 1
)

// part tells the requests of a push from those of another.
type part struct {
	seq          int64
	index, total int // from 0
}

func (p part) tag(tags *kmsg.Tags) {
	var e encoder
	e.uint(uint64(p.seq))
	e.uint(uint64(p.index))
	e.uint(uint64(p.total))
	tags.Set(tagPart, e.b)
}

func partOf(tags kmsg.Tags) (p part, err error) {
	d, ok := tagged(tags, tagPart)
	if !ok {
		return p, fmt.Errorf("%w: it is not numbered", errBadUpdate)
	}
	p = part{seq: int64(d.uint()), index: int(d.uint()), total: int(d.uint())}
	return p, d.err()
}

// Push implements cluster.Pusher: it sends an update to a broker and returns,
// once the broker has taken it, which of its partitions the broker cannot serve
// for its storage has failed. It takes as long as the broker does, and ends
// with ctx.
func (c *Client) Push(ctx context.Context, to cluster.Broker, u *cluster.Update) (offline []cluster.TopicPartition, err error) {
	requests := pushRequests(to, u)
	err = c.with(ctx, to, func(ctx context.Context, conn *conn) error {
		for _, req := range requests {
			resp, err := conn.roundTrip(ctx, req)
			if err != nil {
				return fmt.Errorf("%s: %w", kmsg.NameForKey(req.Key()), err)
			}
			if err := pushAnswer(resp); err != nil {
				return fmt.Errorf("%s: %w", kmsg.NameForKey(req.Key()), err)
			}
			offline = offlineIn(resp, u)
		}
		return nil
	})
	return offline, err
}

func pushRequests(to cluster.Broker, u *cluster.Update) []kmsg.Request {
	var requests []kmsg.Request
	held, rest := split(u.Topics, to.ID)
	total := 1
	if len(u.Deleted) > 0 {
		total++
	}
	if len(held) > 0 {
		total++
	}
	next := func() part { return part{u.Seq, len(requests), total} }
	if len(u.Deleted) > 0 {
		requests = append(requests, stopReplica(to, u, next()))
	}
	requests = append(requests, updateMetadata(to, u, rest, next()))
	if len(held) > 0 {
		requests = append(requests, leaderAndISR(to, u, held, next()))
	}
	return requests
}

// split parts the partitions that a broker holds from the others. A topic with
// settings is among the others in any case, since only those carry them.
func split(topics []cluster.TopicUpdate, broker int32) (held, rest []cluster.TopicUpdate) {
	for _, t := range topics {
		here, there := t, t
		here.Config, here.Partitions, there.Partitions = nil, nil, nil
		for _, p := range t.Partitions {
			if slices.Contains(p.Replicas, broker) {
				here.Partitions = append(here.Partitions, p)
			} else {
				there.Partitions = append(there.Partitions, p)
			}
		}
		if len(here.Partitions) > 0 {
			held = append(held, here)
		}
		if len(there.Partitions) > 0 || t.Config != nil {
			rest = append(rest, there)
		}
	}
	return held, rest
}

func stopReplica(to cluster.Broker, u *cluster.Update, p part) *kmsg.StopReplicaRequest {
	req := kmsg.NewPtrStopReplicaRequest()
	req.Version = stopReplicaVersion
	req.ControllerID, req.ControllerEpoch, req.BrokerEpoch = u.ControllerID, u.ControllerEpoch, to.Epoch
	for _, d := range u.Deleted {
		t := kmsg.NewStopReplicaRequestTopic()
		t.Topic = d.Name
		t.UnknownTags.Set(tagTopicID, slices.Clone(d.ID[:]))
		req.Topics = append(req.Topics, t)
	}
	p.tag(&req.UnknownTags)
	return req
}

func updateMetadata(to cluster.Broker, u *cluster.Update, topics []cluster.TopicUpdate, p part) *kmsg.UpdateMetadataRequest {
	req := kmsg.NewPtrUpdateMetadataRequest()
	req.Version = updateMetadataVersion
	req.ControllerID, req.ControllerEpoch, req.BrokerEpoch = u.ControllerID, u.ControllerEpoch, to.Epoch
	for _, b := range u.Brokers {
		req.LiveBrokers = append(req.LiveBrokers, liveBroker(b))
	}
	for _, t := range topics {
		out := kmsg.NewUpdateMetadataRequestTopicState()
		out.Topic, out.TopicID = t.Name, t.ID
		for _, state := range t.Partitions {
			out.PartitionStates = append(out.PartitionStates, metadataState(u.ControllerEpoch, state))
		}
		if t.Config != nil {
			var e encoder
			e.settings(t.Config)
			out.UnknownTags.Set(tagTopicConfig, e.b)
		}
		req.TopicStates = append(req.TopicStates, out)
	}
	p.tag(&req.UnknownTags)
	var e encoder
	e.string(u.ClusterID)
	e.bool(u.Full)
	req.UnknownTags.Set(tagUpdate, e.b)
	if u.BrokerConfigs != nil {
		req.UnknownTags.Set(tagBrokerConfigs, encodeBrokerConfigs(u.BrokerConfigs))
	}
	return req
}

func encodeBrokerConfigs(configs map[string]map[string]string) []byte {
	var e encoder
	e.uint(uint64(len(configs)))
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		e.string(name)
		e.settings(configs[name])
	}
	return e.b
}

func liveBroker(b cluster.Broker) kmsg.UpdateMetadataRequestLiveBroker {
	out := kmsg.NewUpdateMetadataRequestLiveBroker()
	out.ID = b.ID
	if b.Rack != "" {
		out.Rack = &b.Rack
	}
	endpoints := b.Endpoints
	if len(endpoints) == 0 {
		endpoints = []cluster.Endpoint{{Host: b.Host, Port: b.Port}}
	}
	for _, e := range endpoints {
		at := kmsg.NewUpdateMetadataRequestLiveBrokerEndpoint()
		at.Host, at.Port, at.ListenerName = e.Host, e.Port, e.Listener
		out.Endpoints = append(out.Endpoints, at)
	}
	var e encoder
	e.uint(uint64(b.Epoch))
	e.bool(b.ShuttingDown)
	out.UnknownTags.Set(tagBroker, e.b)
	return out
}

func metadataState(controllerEpoch int32, p cluster.PartitionUpdate) kmsg.UpdateMetadataRequestTopicPartition {
	out := kmsg.NewUpdateMetadataRequestTopicPartition()
	out.Partition, out.ControllerEpoch = p.Index, controllerEpoch
	out.Leader, out.LeaderEpoch, out.ZKVersion = p.Leader, p.LeaderEpoch, p.PartitionEpoch
	out.ISR, out.Replicas, out.OfflineReplicas = p.ISR, p.Replicas, p.Offline
	if len(p.Adding)+len(p.Removing) > 0 {
		var e encoder
		e.ids(p.Adding)
		e.ids(p.Removing)
		out.UnknownTags.Set(tagReassignment, e.b)
	}
	return out
}

func leaderAndISR(to cluster.Broker, u *cluster.Update, topics []cluster.TopicUpdate, p part) *kmsg.LeaderAndISRRequest {
	req := kmsg.NewPtrLeaderAndISRRequest()
	req.Version = leaderAndISRVersion
	req.ControllerID, req.ControllerEpoch, req.BrokerEpoch = u.ControllerID, u.ControllerEpoch, to.Epoch
	req.Type = leaderAndISRIncremental
	if u.Full {
		req.Type = leaderAndISRFull
	}
	for _, t := range topics {
		out := kmsg.NewLeaderAndISRRequestTopicState()
		out.Topic, out.TopicID = t.Name, t.ID
		for _, state := range t.Partitions {
			out.PartitionStates = append(out.PartitionStates, leaderState(u.ControllerEpoch, state))
		}
		req.TopicStates = append(req.TopicStates, out)
	}
	p.tag(&req.UnknownTags)
	return req
}

func leaderState(controllerEpoch int32, p cluster.PartitionUpdate) kmsg.LeaderAndISRRequestTopicPartition {
	out := kmsg.NewLeaderAndISRRequestTopicPartition()
	out.Partition, out.ControllerEpoch = p.Index, controllerEpoch
	out.Leader, out.LeaderEpoch, out.ZKVersion = p.Leader, p.LeaderEpoch, p.PartitionEpoch
	out.ISR, out.Replicas = p.ISR, p.Replicas
	out.AddingReplicas, out.RemovingReplicas = p.Adding, p.Removing
	if len(p.Offline) > 0 {
		var e encoder
		e.ids(p.Offline)
		out.UnknownTags.Set(tagOffline, e.b)
	}
	return out
}

// pushAnswer reads what a broker says to one request of a push.
func pushAnswer(resp kmsg.Response) error {
	switch resp := resp.(type) {
	case *kmsg.StopReplicaResponse:
		return pushError(resp.ErrorCode)
	case *kmsg.UpdateMetadataResponse:
		return pushError(resp.ErrorCode)
	case *kmsg.LeaderAndISRResponse:
		return pushError(resp.ErrorCode)
	}
	return fmt.Errorf("%w: %T", errMalformed, resp)
}

// offlineIn are the partitions of the update that the broker cannot serve.
func offlineIn(resp kmsg.Response, u *cluster.Update) (offline []cluster.TopicPartition) {
	answer, ok := resp.(*kmsg.LeaderAndISRResponse)
	if !ok {
		return nil
	}
	names := make(map[cluster.TopicID]string, len(u.Topics))
	for i := range u.Topics {
		names[u.Topics[i].ID] = u.Topics[i].Name
	}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if name := names[t.TopicID]; name != "" && p.ErrorCode != 0 {
				offline = append(offline, cluster.TopicPartition{Topic: name, Partition: p.Partition})
			}
		}
	}
	return offline
}

// pushErrors are what a broker may say to a push.
var pushErrors = []struct {
	err  error
	code *kerr.Error
}{
	{cluster.ErrStaleControllerEpoch, kerr.StaleControllerEpoch},
	{cluster.ErrStaleUpdate, kerr.InvalidUpdateVersion},
	{cluster.ErrStaleBrokerEpoch, kerr.StaleBrokerEpoch},
	{errBadUpdate, kerr.InvalidRequest},
}

func pushError(code int16) error {
	if code == 0 {
		return nil
	}
	for _, e := range pushErrors {
		if e.code.Code == code {
			return e.err
		}
	}
	return kerr.ErrorForCode(code)
}

func pushCode(err error) int16 {
	if err == nil {
		return 0
	}
	for _, e := range pushErrors {
		if errors.Is(err, e.err) {
			return e.code.Code
		}
	}
	return kerr.UnknownServerError.Code
}
