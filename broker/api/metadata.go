package api

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// Metadata, versions 0 to 13.
//
//	v0      an empty list of topics means all; from v1 on null means all and empty none
//	v4      the request says whether topics may be created; before, they may
//	v10     topic ids in the response; from v12 on topics may be asked for by id
//	v8-v10  operations on the cluster; v8 on: on topics
//	v13     an error code for the whole response

// operationsUnknown is the value of authorized operations that were not asked for.
const operationsUnknown = -1 << 31

// Bits of authorized operations (KIP-430): 1 shifted by the operation's code.
const (
	topicOperations   = 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<11
	clusterOperations = 1<<5 | 1<<7 | 1<<8 | 1<<9 | 1<<10 | 1<<11 | 1<<12
)

func metadata(a *API, r *server.Request, req *kmsg.MetadataRequest) {
	mayCreate := a.cfg.AutoCreateTopics && (req.Version < 4 || req.AllowAutoTopicCreation)
	if mayCreate && a.asksForNew(req) {
		go func() { reply(r, a.describeMetadata(r, req, true)) }() // the controller makes the topics, which takes a while
		return
	}
	reply(r, a.describeMetadata(r, req, false))
}

// asksForNew tells whether a topic is asked for, by name, that there is not.
func (a *API) asksForNew(req *kmsg.MetadataRequest) bool {
	im := a.Image()
	return slices.ContainsFunc(req.Topics, func(t kmsg.MetadataRequestTopic) bool {
		return t.Topic != nil && im.Topic(*t.Topic) == nil
	})
}

func (a *API) describeMetadata(r *server.Request, req *kmsg.MetadataRequest, mayCreate bool) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	for _, t := range a.metadataTopics(req, mayCreate) {
		if req.Version >= 8 {
			t.AuthorizedOperations = operationsUnknown
			if req.IncludeTopicAuthorizedOperations && t.ErrorCode == 0 {
				t.AuthorizedOperations = topicOperations
			}
		}
		resp.Topics = append(resp.Topics, t)
	}
	im := a.Image() // after topics were made
	resp.AuthorizedOperations = operationsUnknown
	if req.IncludeClusterAuthorizedOperations {
		resp.AuthorizedOperations = clusterOperations
	}
	resp.ControllerID = -1
	if im == nil {
		return resp
	}
	resp.ClusterID, resp.ControllerID = &im.ClusterID, im.ControllerID
	for _, b := range im.Brokers {
		host, port := b.At(r.Conn.ListenerName())
		resp.Brokers = append(resp.Brokers, kmsg.MetadataResponseBroker{NodeID: b.ID, Host: host, Port: port, Rack: nullable(b.Rack)})
	}
	return resp
}

func (a *API) metadataTopics(req *kmsg.MetadataRequest, mayCreate bool) []kmsg.MetadataResponseTopic {
	var out []kmsg.MetadataResponseTopic
	if req.Topics == nil || req.Version == 0 && len(req.Topics) == 0 {
		for _, t := range a.Image().Topics() {
			out = append(out, a.describeTopic(t))
		}
		return out
	}
	for _, asked := range req.Topics {
		out = append(out, a.metadataTopic(asked, mayCreate))
	}
	return out
}

func (a *API) metadataTopic(asked kmsg.MetadataRequestTopic, mayCreate bool) kmsg.MetadataResponseTopic {
	failed := kmsg.NewMetadataResponseTopic()
	failed.Topic, failed.TopicID = asked.Topic, asked.TopicID
	im := a.Image()
	switch {
	case asked.TopicID != [16]byte{}:
		if t := im.TopicByID(asked.TopicID); t != nil {
			return a.describeTopic(t)
		}
		failed.ErrorCode = kerr.UnknownTopicID.Code
		return failed
	case asked.Topic == nil:
		failed.ErrorCode = kerr.UnknownTopicID.Code
		return failed
	}
	t, err := im.Topic(*asked.Topic), error(nil)
	if t == nil {
		t, err = a.autoCreate(*asked.Topic, mayCreate)
	}
	if err != nil {
		failed.ErrorCode, _ = topicError(err)
		return failed
	}
	return a.describeTopic(t)
}

// autoCreateTimeout bounds how long a Metadata request waits for the cluster store.
const autoCreateTimeout = 10 * time.Second

// autoCreate makes a topic with the broker's defaults if it may.
func (a *API) autoCreate(name string, mayCreate bool) (*cluster.Topic, error) {
	if err := cluster.CheckTopicName(name); err != nil {
		return nil, err
	}
	if !mayCreate {
		return nil, cluster.ErrUnknownTopic
	}
	if name == cluster.OffsetsTopic {
		a.createOffsetsTopic()
		if t := a.Image().Topic(name); t != nil {
			return t, nil
		}
		return nil, cluster.ErrUnknownTopic
	}
	ctx, cancel := context.WithTimeout(context.Background(), autoCreateTimeout)
	defer cancel()
	return a.createTopic(ctx, cluster.NewTopic{Name: name, Partitions: -1, ReplicationFactor: -1})
}

func (a *API) describeTopic(t *cluster.Topic) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID, out.IsInternal = &t.Name, t.ID, t.Internal
	out.Partitions = make([]kmsg.MetadataResponseTopicPartition, len(t.Partitions))
	im := a.Image()
	for i, p := range t.Partitions {
		d := kmsg.NewMetadataResponseTopicPartition()
		d.Partition, d.Leader, d.LeaderEpoch = int32(i), leaderIn(im, p), p.LeaderEpoch
		d.Replicas, d.ISR, d.OfflineReplicas = p.Replicas, p.ISR, a.offlineReplicas(im, t.Name, int32(i), p)
		if d.Leader == cluster.NoLeader {
			d.ErrorCode = kerr.LeaderNotAvailable.Code
		}
		out.Partitions[i] = d
	}
	return out
}

// DescribeCluster, versions 0 to 2.
//
//	v1  the kind of endpoint: 1 brokers, 2 controllers
//	v2  fenced brokers on request; there are none here
func (a *API) describeCluster(r *server.Request, req *kmsg.DescribeClusterRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	resp.EndpointType = req.EndpointType
	resp.ControllerID = -1
	resp.ClusterAuthorizedOperations = operationsUnknown
	if req.Version >= 1 && req.EndpointType != 1 {
		resp.ErrorCode = kerr.MismatchedEndpointType.Code
		resp.ErrorMessage = nullable("this is an endpoint of brokers")
		return resp
	}
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = clusterOperations
	}
	im := a.Image()
	if im == nil {
		return resp
	}
	resp.ClusterID, resp.ControllerID = im.ClusterID, im.ControllerID
	for _, b := range im.Brokers {
		d := kmsg.NewDescribeClusterResponseBroker()
		d.NodeID, d.Rack = b.ID, nullable(b.Rack)
		d.Host, d.Port = b.At(r.Conn.ListenerName())
		resp.Brokers = append(resp.Brokers, d)
	}
	return resp
}

// nullable is null for an empty string.
func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
