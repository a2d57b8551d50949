package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
)

// createTopic makes a topic that a client's request needs, wherever the
// controller is, and returns it once this broker knows it. One that somebody
// else made meanwhile is as good.
func (a *API) createTopic(ctx context.Context, asked cluster.NewTopic) (*cluster.Topic, error) {
	err, here := cluster.ErrNotController, false
	for errors.Is(err, cluster.ErrNotController) && ctx.Err() == nil {
		if here = !a.elsewhere(); here {
			err = a.Controller.CreateTopics(ctx, []cluster.NewTopic{asked}, false)[0].Err
		} else {
			err = a.createTopicElsewhere(ctx, asked)
		}
		if a.Forward == nil {
			break // there is no other controller to come
		}
	}
	if err != nil && !errors.Is(err, cluster.ErrTopicExists) {
		return nil, err
	}
	if here {
		// This broker knows all that its controller has decided. What is not
		// there was deleted meanwhile.
		if t := a.Image().Topic(asked.Name); t != nil {
			return t, nil
		}
		return nil, cluster.ErrUnknownTopic
	}
	err = a.awaitImage(ctx, func(im *cluster.Image) bool { return im.Topic(asked.Name) != nil })
	if err != nil {
		return nil, fmt.Errorf("wait for topic %q: %w", asked.Name, err)
	}
	return a.Image().Topic(asked.Name), nil
}

func (a *API) createTopicElsewhere(ctx context.Context, asked cluster.NewTopic) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version = 7
	req.TimeoutMillis = int32(autoCreateTimeout.Milliseconds())
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = asked.Name, asked.Partitions, asked.ReplicationFactor
	for name, value := range asked.Config {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = name, value
		t.Configs = append(t.Configs, c)
	}
	req.Topics = append(req.Topics, t)
	resp, err := a.askController(ctx, req)
	if err != nil {
		return err
	}
	done := resp.(*kmsg.CreateTopicsResponse).Topics
	switch {
	case len(done) != 1:
		return fmt.Errorf("%w: the controller answers for %d topics of 1", errMalformed, len(done))
	case done[0].ErrorCode == 0:
		return nil
	case done[0].ErrorCode == kerr.TopicAlreadyExists.Code:
		return cluster.ErrTopicExists
	case done[0].ErrorCode == kerr.NotController.Code:
		return cluster.ErrNotController
	}
	return refused(done[0].ErrorCode, "%s", orEmpty(done[0].ErrorMessage))
}
