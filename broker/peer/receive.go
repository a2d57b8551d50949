package peer

import (
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
)

// Receiver is the other side of Push: it puts the requests of a push together
// again. It is safe for concurrent use.
type Receiver struct {
	meta    *cluster.Metadata
	epoch   func() int64
	offline func(topic string, partition int32) bool

	mu      sync.Mutex // held while an update is taken
	pending *cluster.Update
	next    part // of pending, the one that is due
}

// NewReceiver returns a receiver for a broker whose picture of the cluster is
// meta. epoch is the broker's present registration; offline tells whether it
// cannot serve a partition that it holds.
func NewReceiver(meta *cluster.Metadata, epoch func() int64, offline func(topic string, partition int32) bool) *Receiver {
	return &Receiver{meta: meta, epoch: epoch, offline: offline}
}

// StopReplica takes the first request of a push that deletes topics.
func (r *Receiver) StopReplica(req *kmsg.StopReplicaRequest) *kmsg.StopReplicaResponse {
	resp := req.ResponseKind().(*kmsg.StopReplicaResponse)
	resp.ErrorCode = pushCode(r.take(req.BrokerEpoch, req.ControllerID, req.ControllerEpoch, req.UnknownTags, func(u *cluster.Update) error {
		return readStopReplica(req, u)
	}))
	return resp
}

// UpdateMetadata takes the request that every push has.
func (r *Receiver) UpdateMetadata(req *kmsg.UpdateMetadataRequest) *kmsg.UpdateMetadataResponse {
	resp := req.ResponseKind().(*kmsg.UpdateMetadataResponse)
	resp.ErrorCode = pushCode(r.take(req.BrokerEpoch, req.ControllerID, req.ControllerEpoch, req.UnknownTags, func(u *cluster.Update) error {
		return readUpdateMetadata(req, u)
	}))
	return resp
}

// LeaderAndISR takes the last request of a push that concerns partitions of this broker.
func (r *Receiver) LeaderAndISR(req *kmsg.LeaderAndISRRequest) *kmsg.LeaderAndISRResponse {
	resp := req.ResponseKind().(*kmsg.LeaderAndISRResponse)
	err := r.take(req.BrokerEpoch, req.ControllerID, req.ControllerEpoch, req.UnknownTags, func(u *cluster.Update) error {
		return readLeaderAndISR(req, u)
	})
	if resp.ErrorCode = pushCode(err); err != nil {
		return resp
	}
	for _, t := range req.TopicStates {
		out := kmsg.NewLeaderAndISRResponseTopic()
		out.TopicID = t.TopicID
		for _, p := range t.PartitionStates {
			state := kmsg.NewLeaderAndISRResponseTopicPartition()
			state.Partition = p.Partition
			if r.offline(t.Topic, p.Partition) {
				state.ErrorCode = kerr.KafkaStorageError.Code
			}
			out.Partitions = append(out.Partitions, state)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// take adds a request to the push that it is part of, and has the update taken
// if it was the last part.
func (r *Receiver) take(brokerEpoch int64, controllerID, controllerEpoch int32, tags kmsg.Tags, read func(*cluster.Update) error) error {
	p, err := partOf(tags)
	if err != nil {
		return err
	}
	if own := r.epoch(); brokerEpoch < own {
		return fmt.Errorf("%w: the update is for epoch %d of this broker, which is in epoch %d", cluster.ErrStaleBrokerEpoch, brokerEpoch, own)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.index == 0 {
		r.pending = &cluster.Update{ControllerID: controllerID, ControllerEpoch: controllerEpoch, Seq: p.seq}
		r.next = p
	}
	u := r.pending
	if u == nil || p != r.next || u.ControllerEpoch != controllerEpoch {
		return fmt.Errorf("%w: part %d of %d came without those before it", cluster.ErrStaleUpdate, p.index+1, p.total)
	}
	if err := read(u); err != nil {
		r.pending = nil
		return err
	}
	if r.next.index++; r.next.index < p.total {
		return nil
	}
	r.pending = nil
	if err := checkTopics(u.Topics); err != nil {
		return err
	}
	return r.meta.Receive(u)
}

func readStopReplica(req *kmsg.StopReplicaRequest, u *cluster.Update) error {
	for _, t := range req.Topics {
		d, ok := tagged(t.UnknownTags, tagTopicID)
		if !ok || len(d.b) != len(cluster.TopicID{}) {
			return fmt.Errorf("%w: id of topic %s", errBadUpdate, t.Topic)
		}
		u.Deleted = append(u.Deleted, cluster.DeletedTopic{Name: t.Topic, ID: cluster.TopicID(d.b)})
	}
	return nil
}

func readUpdateMetadata(req *kmsg.UpdateMetadataRequest, u *cluster.Update) error {
	d, ok := tagged(req.UnknownTags, tagUpdate)
	if !ok {
		return fmt.Errorf("%w: what kind of update it is", errBadUpdate)
	}
	u.ClusterID, u.Full = d.string(), d.bool()
	if err := d.err(); err != nil {
		return err
	}
	if d, ok := tagged(req.UnknownTags, tagBrokerConfigs); ok {
		n := d.count()
		u.BrokerConfigs = make(map[string]map[string]string, n)
		for range n {
			name := d.string()
			u.BrokerConfigs[name] = d.settings()
		}
		if err := d.err(); err != nil {
			return err
		}
	}
	for _, b := range req.LiveBrokers {
		broker, err := readBroker(b)
		if err != nil {
			return err
		}
		u.Brokers = append(u.Brokers, broker)
	}
	for _, t := range req.TopicStates {
		topic, err := readMetadataTopic(t)
		if err != nil {
			return err
		}
		u.Topics = append(u.Topics, topic)
	}
	return nil
}

func readBroker(b kmsg.UpdateMetadataRequestLiveBroker) (out cluster.Broker, err error) {
	out.ID = b.ID
	if b.Rack != nil {
		out.Rack = *b.Rack
	}
	for _, e := range b.Endpoints {
		out.Endpoints = append(out.Endpoints, cluster.Endpoint{Listener: e.ListenerName, Host: e.Host, Port: e.Port})
	}
	if len(out.Endpoints) > 0 {
		out.Host, out.Port = out.Endpoints[0].Host, out.Endpoints[0].Port
	}
	d, ok := tagged(b.UnknownTags, tagBroker)
	if !ok {
		return out, fmt.Errorf("%w: epoch of broker %d", errBadUpdate, b.ID)
	}
	out.Epoch, out.ShuttingDown = int64(d.uint()), d.bool()
	return out, d.err()
}

func readMetadataTopic(t kmsg.UpdateMetadataRequestTopicState) (out cluster.TopicUpdate, err error) {
	out.Name, out.ID = t.Topic, t.TopicID
	for _, p := range t.PartitionStates {
		state := cluster.PartitionUpdate{Index: p.Partition, Partition: cluster.Partition{
			Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.ZKVersion,
			Replicas: p.Replicas, ISR: p.ISR, Offline: p.OfflineReplicas,
		}}
		if d, ok := tagged(p.UnknownTags, tagReassignment); ok {
			state.Adding, state.Removing = d.ids(), d.ids()
			if err := d.err(); err != nil {
				return out, err
			}
		}
		out.Partitions = append(out.Partitions, state)
	}
	if d, ok := tagged(t.UnknownTags, tagTopicConfig); ok {
		out.Config = d.settings()
		return out, d.err()
	}
	return out, nil
}

// readLeaderAndISR adds the partitions that this broker holds to those of the
// topics that are there already.
func readLeaderAndISR(req *kmsg.LeaderAndISRRequest, u *cluster.Update) error {
	held := make([]cluster.TopicUpdate, 0, len(req.TopicStates))
	for _, t := range req.TopicStates {
		topic := cluster.TopicUpdate{Name: t.Topic, ID: t.TopicID}
		for _, p := range t.PartitionStates {
			state := cluster.PartitionUpdate{Index: p.Partition, Partition: cluster.Partition{
				Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.ZKVersion,
				Replicas: p.Replicas, ISR: p.ISR, Adding: p.AddingReplicas, Removing: p.RemovingReplicas,
			}}
			if d, ok := tagged(p.UnknownTags, tagOffline); ok {
				state.Offline = d.ids()
				if err := d.err(); err != nil {
					return err
				}
			}
			topic.Partitions = append(topic.Partitions, state)
		}
		held = append(held, topic)
	}
	u.Topics = merge(u.Topics, held)
	return nil
}
