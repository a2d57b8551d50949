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
// Null topics mean all; of these only what went wrong is told.
func (a *API) electLeaders(_ *server.Request, req *kmsg.ElectLeadersRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ElectLeadersResponse)
	preferred := req.Version < 1 || req.ElectionType == 0
	if req.Version >= 1 && req.ElectionType != 0 && req.ElectionType != 1 {
		resp.ErrorCode = kerr.InvalidRequest.Code
		return resp
	}
	im := a.Image()
	if req.Topics == nil {
		for _, t := range im.Topics() {
			out := kmsg.NewElectLeadersResponseTopic()
			out.Topic = t.Name
			for i := range t.Partitions {
				if err := election(im, t.Name, int32(i), preferred); err != kerr.ElectionNotNeeded {
					out.Partitions = append(out.Partitions, elected(int32(i), err))
				}
			}
			resp.Topics = append(resp.Topics, out)
		}
		return resp
	}
	for _, t := range req.Topics {
		out := kmsg.NewElectLeadersResponseTopic()
		out.Topic = t.Topic
		for _, index := range t.Partitions {
			out.Partitions = append(out.Partitions, elected(index, election(im, t.Topic, index, preferred)))
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// election says what an election comes to. There is never another replica to
// elect: the one there is leads already, or is gone.
func election(im *cluster.Image, topic string, partition int32, preferred bool) *kerr.Error {
	p, ok := im.Partition(topic, partition)
	switch {
	case !ok:
		return kerr.UnknownTopicOrPartition
	case preferred && len(p.Replicas) > 0 && p.Leader == p.Replicas[0], !preferred && p.Leader != cluster.NoLeader:
		return kerr.ElectionNotNeeded
	case preferred:
		return kerr.PreferredLeaderNotAvailable
	}
	return kerr.EligibleLeadersNotAvailable
}

func elected(partition int32, err *kerr.Error) kmsg.ElectLeadersResponseTopicPartition {
	out := kmsg.NewElectLeadersResponseTopicPartition()
	out.Partition, out.ErrorCode, out.ErrorMessage = partition, err.Code, &err.Description
	return out
}
