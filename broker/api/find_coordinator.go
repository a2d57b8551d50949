package api

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// FindCoordinator, versions 0 to 6: from 1 with a key type, from 4 for several keys at once. 5 and
// 6 change nothing here (they are for transactions and share groups).

// Key types of FindCoordinator.
const (
	groupKey       = 0
	transactionKey = 1
)

// Defaults of the offsets topic.
const (
	offsetsTopicPartitionsDefault  = 50
	offsetsTopicReplicationDefault = 3
	offsetsTopicSegmentBytes       = "104857600"
)

// createOffsetsTopicTimeout bounds the making of the offsets topic; the client asks again.
const createOffsetsTopicTimeout = 15 * time.Second

// coordinatorPlace is where a coordinator is, or why that cannot be said.
type coordinatorPlace struct {
	broker  cluster.Broker
	err     *kerr.Error
	message string
}

func findCoordinator(a *API, r *server.Request, req *kmsg.FindCoordinatorRequest) {
	if req.CoordinatorType != groupKey || a.Image().Topic(cluster.OffsetsTopic) != nil {
		reply(r, a.coordinatorResponse(req, r.Conn.ListenerName()))
		return
	}
	go func() { // once in a cluster's life: the topic is made by a transaction of the store
		a.createOffsetsTopic()
		reply(r, a.coordinatorResponse(req, r.Conn.ListenerName()))
	}()
}

func (a *API) coordinatorResponse(req *kmsg.FindCoordinatorRequest, listener string) kmsg.Response {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	if req.Version < 4 {
		p := a.placeCoordinator(req.CoordinatorType, req.CoordinatorKey)
		resp.NodeID = p.broker.ID
		resp.Host, resp.Port = p.broker.At(listener)
		resp.ErrorCode, resp.ErrorMessage = p.code(), nullable(p.message)
		return resp
	}
	for _, key := range req.CoordinatorKeys {
		p := a.placeCoordinator(req.CoordinatorType, key)
		c := kmsg.NewFindCoordinatorResponseCoordinator()
		c.Key, c.NodeID = key, p.broker.ID
		c.Host, c.Port = p.broker.At(listener)
		c.ErrorCode, c.ErrorMessage = p.code(), nullable(p.message)
		resp.Coordinators = append(resp.Coordinators, c)
	}
	return resp
}

func (p coordinatorPlace) code() int16 {
	if p.err == nil {
		return 0
	}
	return p.err.Code
}

// placeCoordinator finds the broker that leads the group's partition of the offsets topic.
func (a *API) placeCoordinator(kind int8, key string) coordinatorPlace {
	nowhere := cluster.Broker{ID: -1, Port: -1}
	switch kind {
	case groupKey:
	case transactionKey:
		return coordinatorPlace{nowhere, kerr.UnsupportedVersion, "transactions are not supported by this broker"}
	default:
		return coordinatorPlace{nowhere, kerr.InvalidRequest, fmt.Sprintf("unknown coordinator key type %d", kind)}
	}
	image := a.Image()
	topic := image.Topic(cluster.OffsetsTopic)
	if topic == nil || len(topic.Partitions) == 0 {
		return coordinatorPlace{nowhere, kerr.CoordinatorNotAvailable, "the offsets topic is being created"}
	}
	leader := topic.Partitions[group.PartitionFor(key, int32(len(topic.Partitions)))].Leader
	for _, b := range image.Brokers {
		if b.ID == leader {
			return coordinatorPlace{broker: b}
		}
	}
	return coordinatorPlace{nowhere, kerr.CoordinatorNotAvailable, "the group's partition of the offsets topic has no leader"}
}

// createOffsetsTopic makes the offsets topic with the settings that Kafka gives it. That it exists
// already is no error.
func (a *API) createOffsetsTopic() {
	image := a.Image()
	if image == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), createOffsetsTopicTimeout)
	defer cancel()
	compact, segment, codec := "compact", offsetsTopicSegmentBytes, "producer"
	_, err := a.createTopic(ctx, cluster.NewTopic{
		Name:              cluster.OffsetsTopic,
		Partitions:        a.cfg.offsetsTopicPartitions(),
		ReplicationFactor: a.cfg.offsetsTopicReplication(len(image.Brokers)),
		Config: map[string]*string{
			"cleanup.policy": &compact, "segment.bytes": &segment, "compression.type": &codec,
		},
	})
	if err != nil {
		a.Log.Warn("could not create the offsets topic", "topic", cluster.OffsetsTopic, "error", err)
	}
}

func (c *Config) offsetsTopicPartitions() int32 {
	if c.OffsetsTopicPartitions > 0 {
		return c.OffsetsTopicPartitions
	}
	return offsetsTopicPartitionsDefault
}

// offsetsTopicReplication is what is set, but not more than there are brokers.
func (c *Config) offsetsTopicReplication(brokers int) int16 {
	wanted := c.OffsetsTopicReplicationFactor
	if wanted <= 0 {
		wanted = offsetsTopicReplicationDefault
	}
	return max(min(wanted, int16(brokers)), 1)
}
