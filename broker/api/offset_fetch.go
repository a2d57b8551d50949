package api

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// OffsetFetch, versions 1 to 10: up to 1 an error is told for each partition, from 2 for the group,
// and null topics mean all; from 5 with leader epochs; from 7 require_stable (offsets of open
// transactions, of which there are none, would be refused); from 8 for several groups; from 9 with
// the member; from 10 topics come by id.

func offsetFetch(a *API, _ *server.Request, req *kmsg.OffsetFetchRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetFetchResponse()
	if req.Version < 8 {
		single := kmsg.NewOffsetFetchRequestGroup()
		single.Group, single.Topics = req.Group, groupTopics(req.Topics)
		a.singleFetchResponse(req.Version, resp, a.fetchGroup(req.Version, single))
		return resp
	}
	for _, g := range req.Groups {
		resp.Groups = append(resp.Groups, a.fetchGroup(req.Version, g))
	}
	return resp
}

// groupTopics has the topics of an older request as the newer ones have them; null stays null.
func groupTopics(topics []kmsg.OffsetFetchRequestTopic) []kmsg.OffsetFetchRequestGroupTopic {
	if topics == nil {
		return nil
	}
	out := make([]kmsg.OffsetFetchRequestGroupTopic, len(topics))
	for i, t := range topics {
		out[i].Topic, out[i].Partitions = t.Topic, t.Partitions
	}
	return out
}

// singleFetchResponse answers as versions before 8 do.
func (a *API) singleFetchResponse(version int16, resp *kmsg.OffsetFetchResponse, g kmsg.OffsetFetchResponseGroup) {
	resp.ErrorCode = g.ErrorCode
	for _, gt := range g.Topics {
		t := kmsg.NewOffsetFetchResponseTopic()
		t.Topic = gt.Topic
		for _, gp := range gt.Partitions {
			p := kmsg.NewOffsetFetchResponseTopicPartition()
			p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = gp.Partition, gp.Offset, gp.LeaderEpoch, gp.Metadata, gp.ErrorCode
			if version < 2 && g.ErrorCode != 0 {
				p.ErrorCode = g.ErrorCode
			}
			t.Partitions = append(t.Partitions, p)
		}
		resp.Topics = append(resp.Topics, t)
	}
}

// fetchGroup answers for one group. A group that cannot be asked has no topics, but in the versions
// that tell errors by partition.
func (a *API) fetchGroup(version int16, g kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	resp := kmsg.NewOffsetFetchResponseGroup()
	resp.Group = g.Group
	fetch := group.FetchRequest{Group: g.Group, MemberID: orEmpty(g.MemberID), MemberEpoch: g.MemberEpoch, All: g.Topics == nil}
	topics, wanted := a.planFetch(version, g, &fetch)
	offsets, err := a.Groups.Offsets(fetch)
	switch {
	case err != nil:
		resp.ErrorCode = groupErrorCode(err)
		if version < 2 {
			resp.Topics = topics
		}
	case fetch.All:
		resp.Topics = a.allTopics(version, offsets)
	default:
		for i, p := range wanted {
			fillOffset(p, offsets[i])
		}
		resp.Topics = topics
	}
	return resp
}

// planFetch fills the request with the partitions of topics that are known. wanted are their places
// in topics, in the same order; a place whose topic is unknown has its error, or in the versions by
// name no offset.
func (a *API) planFetch(version int16, g kmsg.OffsetFetchRequestGroup, fetch *group.FetchRequest) (
	topics []kmsg.OffsetFetchResponseGroupTopic, wanted []*kmsg.OffsetFetchResponseGroupTopicPartition,
) {
	topics = make([]kmsg.OffsetFetchResponseGroupTopic, len(g.Topics))
	for i, rt := range g.Topics {
		out := &topics[i]
		out.Topic, out.TopicID = rt.Topic, rt.TopicID
		out.Partitions = make([]kmsg.OffsetFetchResponseGroupTopicPartition, len(rt.Partitions))
		topic, _ := a.namedTopic(version >= 10, rt.Topic, rt.TopicID)
		if topic == nil && version < 10 {
			topic = &cluster.Topic{Name: rt.Topic}
		}
		for j, partition := range rt.Partitions {
			p := &out.Partitions[j]
			p.Partition = partition
			fillOffset(p, group.Offset{Offset: -1, LeaderEpoch: -1})
			if topic == nil {
				p.ErrorCode = kerr.UnknownTopicID.Code
				continue
			}
			wanted = append(wanted, p)
			fetch.Partitions = append(fetch.Partitions, group.Partition{Topic: topic.Name, TopicID: topic.ID, Partition: partition})
		}
	}
	return topics, wanted
}

func fillOffset(p *kmsg.OffsetFetchResponseGroupTopicPartition, o group.Offset) {
	p.Offset, p.LeaderEpoch, p.Metadata = o.Offset, o.LeaderEpoch, &o.Metadata
}

// allTopics lists every offset of a group. Topics that are no more have no id, and are left out
// where topics are told by id.
func (a *API) allTopics(version int16, offsets []group.Offset) []kmsg.OffsetFetchResponseGroupTopic {
	topics := []kmsg.OffsetFetchResponseGroupTopic{}
	for _, o := range offsets {
		if last := len(topics) - 1; last < 0 || topics[last].Topic != o.Topic {
			t := kmsg.NewOffsetFetchResponseGroupTopic()
			t.Topic = o.Topic
			if known := a.Image().Topic(o.Topic); known != nil {
				t.TopicID = known.ID
			} else if version >= 10 {
				continue
			}
			topics = append(topics, t)
		}
		p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
		p.Partition = o.Partition
		fillOffset(&p, o)
		last := &topics[len(topics)-1]
		last.Partitions = append(last.Partitions, p)
	}
	return topics
}
