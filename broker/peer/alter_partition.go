package peer

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
)

const alterPartitionVersion = 3

// AlterPartitions asks the controller, which is taken to be to, for other
// in-sync replicas. Each partition answers for itself, in the order asked; of
// its state the answer has all but the offline replicas. An
// error of the whole is cluster.ErrNotController, cluster.ErrStaleBrokerEpoch
// or the connection's.
func (c *Client) AlterPartitions(ctx context.Context, to cluster.Broker, brokerID int32, brokerEpoch int64, asked []cluster.AlterPartition) ([]cluster.AlterPartitionResult, error) {
	out := make([]cluster.AlterPartitionResult, len(asked))
	err := c.request(ctx, to, alterPartitionRequest(brokerID, brokerEpoch, asked), func(resp kmsg.Response) error {
		answer, ok := resp.(*kmsg.AlterPartitionResponse)
		if !ok {
			return fmt.Errorf("%w: %T", errMalformed, resp)
		}
		if err := alterError(answer.ErrorCode); err != nil {
			return err
		}
		return readAltered(answer, asked, out)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func alterPartitionRequest(brokerID int32, brokerEpoch int64, asked []cluster.AlterPartition) *kmsg.AlterPartitionRequest {
	req := kmsg.NewPtrAlterPartitionRequest()
	req.Version = alterPartitionVersion
	req.BrokerID, req.BrokerEpoch = brokerID, brokerEpoch
	topics := grouped{}
	for _, a := range asked {
		i := topics.at(a.TopicID, len(req.Topics), func() {
			t := kmsg.NewAlterPartitionRequestTopic()
			t.TopicID = a.TopicID
			req.Topics = append(req.Topics, t)
		})
		p := kmsg.NewAlterPartitionRequestTopicPartition()
		p.Partition, p.LeaderEpoch, p.PartitionEpoch = a.Partition, a.LeaderEpoch, a.PartitionEpoch
		for _, r := range a.ISR {
			one := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
			one.BrokerID, one.BrokerEpoch = r.ID, r.Epoch
			p.NewEpochISR = append(p.NewEpochISR, one)
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	return req
}

// grouped tells where a topic is in a request whose partitions are grouped by topic.
type grouped map[cluster.TopicID]int

// at is a topic's place; one that has none yet gets the next, which add makes.
func (g grouped) at(id cluster.TopicID, next int, add func()) int {
	i, known := g[id]
	if !known {
		i = next
		g[id] = i
		add()
	}
	return i
}

type partitionKey struct {
	id    cluster.TopicID
	index int32
}

func readAltered(answer *kmsg.AlterPartitionResponse, asked []cluster.AlterPartition, out []cluster.AlterPartitionResult) error {
	answered := map[partitionKey]*kmsg.AlterPartitionResponseTopicPartition{}
	for i := range answer.Topics {
		t := &answer.Topics[i]
		for j := range t.Partitions {
			answered[partitionKey{t.TopidID, t.Partitions[j].Partition}] = &t.Partitions[j]
		}
	}
	for i, a := range asked {
		p := answered[partitionKey{a.TopicID, a.Partition}]
		if p == nil {
			return fmt.Errorf("%w: no answer for %s-%d", errMalformed, a.Topic, a.Partition)
		}
		out[i] = cluster.AlterPartitionResult{TopicPartition: a.TopicPartition, TopicID: a.TopicID, Err: alterError(p.ErrorCode)}
		if out[i].Err != nil {
			continue
		}
		out[i].Partition = cluster.Partition{Leader: p.LeaderID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, ISR: p.ISR}
		d, ok := tagged(p.UnknownTags, tagReplicas)
		st := &out[i].Partition
		if st.Replicas, st.Adding, st.Removing = d.ids(), d.ids(), d.ids(); !ok || d.err() != nil {
			return fmt.Errorf("%w: replicas of %s-%d", errMalformed, a.Topic, a.Partition)
		}
	}
	return nil
}

// alterErrors are what a controller says to AlterPartition and ControlledShutdown.
var alterErrors = []struct {
	err  error
	code *kerr.Error
}{
	{cluster.ErrNotController, kerr.NotController},
	{cluster.ErrStaleBrokerEpoch, kerr.StaleBrokerEpoch},
	{cluster.ErrUnknownTopic, kerr.UnknownTopicID},
	{cluster.ErrUnknownPartition, kerr.UnknownTopicOrPartition},
	{cluster.ErrFencedLeaderEpoch, kerr.FencedLeaderEpoch},
	{cluster.ErrInvalidUpdateVersion, kerr.InvalidUpdateVersion},
	{cluster.ErrIneligibleReplica, kerr.IneligibleReplica},
	{cluster.ErrInvalidRequest, kerr.InvalidRequest},
}

func alterError(code int16) error {
	if code == 0 {
		return nil
	}
	for _, e := range alterErrors {
		if e.code.Code == code {
			return e.err
		}
	}
	return kerr.ErrorForCode(code)
}

// ControlledShutdown asks the controller, which is taken to be to, to move away
// what a broker leads. It returns what could not be moved.
func (c *Client) ControlledShutdown(ctx context.Context, to cluster.Broker, brokerID int32, brokerEpoch int64) (remaining []cluster.TopicPartition, err error) {
	req := kmsg.NewPtrControlledShutdownRequest()
	req.Version, req.BrokerID, req.BrokerEpoch = 3, brokerID, brokerEpoch
	err = c.request(ctx, to, req, func(resp kmsg.Response) error {
		answer, ok := resp.(*kmsg.ControlledShutdownResponse)
		if !ok {
			return fmt.Errorf("%w: %T", errMalformed, resp)
		}
		if err := alterError(answer.ErrorCode); err != nil {
			return err
		}
		for _, p := range answer.PartitionsRemaining {
			remaining = append(remaining, cluster.TopicPartition{Topic: p.Topic, Partition: p.Partition})
		}
		return nil
	})
	return remaining, err
}
