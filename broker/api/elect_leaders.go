package api

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// ElectLeaders, versions 0 to 2 (KIP-183, KIP-460).
//
//	v1  the kind of election: 0 the preferred replica, 1 any, losing records
//
// Null topics mean all; of these only those are told that needed an election.
func (a *API) electLeaders(_ *server.Request, req *kmsg.ElectLeadersRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ElectLeadersResponse)
	kind := cluster.ElectPreferred
	if req.Version >= 1 {
		kind = cluster.ElectionKind(req.ElectionType)
	}
	if kind != cluster.ElectPreferred && kind != cluster.ElectUnclean {
		resp.ErrorCode = kerr.InvalidRequest.Code
		return resp
	}
	var asked []cluster.TopicPartition
	for _, t := range req.Topics {
		for _, index := range t.Partitions {
			asked = append(asked, cluster.TopicPartition{Topic: t.Topic, Partition: index})
		}
	}
	if req.Topics != nil && asked == nil {
		return resp // nothing is asked for, which for the controller would be all
	}
	ctx, cancel := timeout(req.TimeoutMillis)
	defer cancel()
	results, err := a.Controller.ElectLeaders(ctx, kind, asked)
	if resp.ErrorCode, _ = topicError(err); err != nil {
		return resp
	}
	topics := grouped{}
	topic := func(name string) *kmsg.ElectLeadersResponseTopic {
		return &resp.Topics[topics.at(name, len(resp.Topics), func() {
			t := kmsg.NewElectLeadersResponseTopic()
			t.Topic = name
			resp.Topics = append(resp.Topics, t)
		})]
	}
	if req.Topics == nil { // as Kafka, which names all topics
		for _, t := range a.Image().Topics() {
			topic(t.Name)
		}
	}
	for _, r := range results {
		p := kmsg.NewElectLeadersResponseTopicPartition()
		p.Partition = r.Partition
		p.ErrorCode, p.ErrorMessage = topicError(r.Err)
		t := topic(r.Topic)
		t.Partitions = append(t.Partitions, p)
	}
	return resp
}
