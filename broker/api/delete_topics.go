package api

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// DeleteTopics, versions 1 to 6.
//
//	v5  error messages
//	v6  topics by name or by id

func (a *API) deleteTopics(_ *server.Request, req *kmsg.DeleteTopicsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	asked := req.Topics
	if req.Version < 6 {
		asked = nil
		for _, name := range req.TopicNames {
			t := kmsg.NewDeleteTopicsRequestTopic()
			t.Topic = &name
			asked = append(asked, t)
		}
	}
	ctx, cancel := timeout(req.TimeoutMillis)
	defer cancel()
	for _, t := range asked {
		out := a.deletable(t)
		if out.ErrorCode == 0 {
			err := a.Controller.DeleteTopics(ctx, []string{*out.Topic})[0]
			out.ErrorCode, out.ErrorMessage = topicError(err)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// deletable finds the topic to delete, or says why it is not deleted.
func (a *API) deletable(asked kmsg.DeleteTopicsRequestTopic) kmsg.DeleteTopicsResponseTopic {
	out := kmsg.NewDeleteTopicsResponseTopic()
	out.Topic, out.TopicID = asked.Topic, asked.TopicID
	refuse := func(err *kerr.Error, why string) kmsg.DeleteTopicsResponseTopic {
		out.ErrorCode, out.ErrorMessage = err.Code, nullable(why)
		return out
	}
	var t *cluster.Topic
	byID := asked.TopicID != [16]byte{}
	switch {
	case byID && asked.Topic != nil:
		return refuse(kerr.InvalidRequest, "name and id of a topic are both given; only one of them may be")
	case byID:
		if t = a.Image().TopicByID(asked.TopicID); t == nil {
			return refuse(kerr.UnknownTopicID, "there is no topic of this id")
		}
	case asked.Topic == nil:
		return refuse(kerr.InvalidRequest, "neither name nor id of the topic is given")
	default:
		if t = a.Image().Topic(*asked.Topic); t == nil {
			return refuse(kerr.UnknownTopicOrPartition, "there is no topic of this name")
		}
	}
	out.Topic, out.TopicID = &t.Name, t.ID
	switch {
	case t.Internal:
		return refuse(kerr.InvalidRequest, "internal topics are not deleted")
	case a.cfg.RefuseTopicDeletion:
		return refuse(kerr.TopicDeletionDisabled, "delete.topic.enable is false")
	}
	return out
}
