package api

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// OffsetCommit, versions 2 to 10: up to 4 with a retention of its own, from 6 with leader epochs,
// from 7 with an instance id, from 9 GROUP_ID_NOT_FOUND may be answered, and STALE_MEMBER_EPOCH to
// members of the consumer protocol, who need this version, from 10 topics come by id.

func offsetCommit(a *API, r *server.Request, req *kmsg.OffsetCommitRequest) {
	commit := group.CommitRequest{
		Group: req.Group, MemberID: req.MemberID, InstanceID: orEmpty(req.InstanceID), Generation: req.Generation,
		ByEpoch: req.Version >= 9,
	}
	if req.Version <= 4 && req.RetentionTimeMillis >= 0 {
		commit.Retention = max(time.Duration(req.RetentionTimeMillis)*time.Millisecond, time.Millisecond)
	}
	resp, slots := a.planCommit(req, &commit)
	if len(commit.Commits) == 0 {
		reply(r, resp)
		return
	}
	a.Groups.Commit(commit, func(res group.CommitResponse) {
		for i, slot := range slots {
			slot.ErrorCode = commitErrorCode(req.Version, res.Err)
			if res.Err == nil {
				slot.ErrorCode = commitErrorCode(req.Version, res.Commits[i])
			}
		}
		reply(r, resp)
	})
}

// planCommit fills the commit with the partitions of topics that exist. slots are their places in
// the response, in the same order; the other places have their error already.
func (a *API) planCommit(req *kmsg.OffsetCommitRequest, commit *group.CommitRequest) (
	resp *kmsg.OffsetCommitResponse, slots []*kmsg.OffsetCommitResponseTopicPartition,
) {
	resp = kmsg.NewPtrOffsetCommitResponse()
	resp.Topics = make([]kmsg.OffsetCommitResponseTopic, len(req.Topics))
	for i := range req.Topics {
		rt, out := &req.Topics[i], &resp.Topics[i]
		out.Topic, out.TopicID = rt.Topic, rt.TopicID
		out.Partitions = make([]kmsg.OffsetCommitResponseTopicPartition, len(rt.Partitions))
		topic, unknown := a.namedTopic(req.Version >= 10, rt.Topic, rt.TopicID)
		for j, p := range rt.Partitions {
			out.Partitions[j].Partition = p.Partition
			if topic == nil {
				out.Partitions[j].ErrorCode = unknown.Code
				continue
			}
			slots = append(slots, &out.Partitions[j])
			commit.Commits = append(commit.Commits, group.Commit{
				Topic: topic.Name, TopicID: topic.ID, Partition: p.Partition,
				Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: orEmpty(p.Metadata),
			})
		}
	}
	return resp, slots
}

// namedTopic finds a topic by its name, or by its id in the versions that have ids; or says with
// what error it is unknown.
func (a *API) namedTopic(byID bool, name string, id cluster.TopicID) (*cluster.Topic, *kerr.Error) {
	if byID {
		return a.Image().TopicByID(id), kerr.UnknownTopicID
	}
	return a.Image().Topic(name), kerr.UnknownTopicOrPartition
}

func commitErrorCode(version int16, err error) int16 {
	switch {
	case errors.Is(err, group.ErrGroupNotFound) && version < 9:
		return kerr.IllegalGeneration.Code
	case errors.Is(err, group.ErrTooLarge):
		return kerr.InvalidCommitOffsetSize.Code
	}
	return groupErrorCode(err)
}
