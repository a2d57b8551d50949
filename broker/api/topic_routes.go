package api

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluice-io/sluice/broker/cluster"
)

// topicRoutes are the requests about topics, their settings and the cluster.
func topicRoutes() []route {
	return []route{
		{key: 3, min: 0, max: 13, handle: async(metadata)},
		{key: 19, min: 2, max: 7, handle: direct((*API).createTopics), controller: true},
		{key: 20, min: 1, max: 6, handle: direct((*API).deleteTopics), controller: true},
		{key: 21, min: 0, max: 2, handle: async(deleteRecords)},
		{key: 32, min: 1, max: 4, handle: direct((*API).describeConfigs)},
		{key: 37, min: 0, max: 3, handle: direct((*API).createPartitions), controller: true},
		{key: 60, min: 0, max: 2, handle: direct((*API).describeCluster)},
	}
}

// topicError maps an error of the controller to a code and a message.
func topicError(err error) (code int16, message *string) {
	if err == nil {
		return 0, nil
	}
	text := err.Error()
	var coded *codedError
	if errors.As(err, &coded) {
		return coded.code, &text
	}
	var badName *cluster.InvalidTopicError
	var badConfig *cluster.InvalidConfigError
	switch {
	case errors.As(err, &badName):
		return kerr.InvalidTopicException.Code, &text
	case errors.As(err, &badConfig):
		return kerr.InvalidConfig.Code, &text
	}
	for _, m := range topicErrors() {
		if errors.Is(err, m.err) {
			return m.code, &text
		}
	}
	return kerr.UnknownServerError.Code, &text
}

// grouped tells where a topic is in an answer that groups partitions by topic.
type grouped map[string]int

// at is a topic's place; one that has none yet gets the next, which add makes.
func (g grouped) at(topic string, next int, add func()) int {
	i, known := g[topic]
	if !known {
		i = next
		g[topic] = i
		add()
	}
	return i
}

type errorCode struct {
	err  error
	code int16
}

func topicErrors() []errorCode {
	return []errorCode{
		{cluster.ErrTopicExists, kerr.TopicAlreadyExists.Code},
		{cluster.ErrUnknownTopic, kerr.UnknownTopicOrPartition.Code},
		{cluster.ErrInvalidPartitions, kerr.InvalidPartitions.Code},
		{cluster.ErrInvalidReplicationFactor, kerr.InvalidReplicationFactor.Code},
		{cluster.ErrInvalidAssignment, kerr.InvalidReplicaAssignment.Code},
		{cluster.ErrInvalidRequest, kerr.InvalidRequest.Code},
		{cluster.ErrNotController, kerr.NotController.Code},
		{cluster.ErrUnknownPartition, kerr.UnknownTopicOrPartition.Code},
		{cluster.ErrElectionNotNeeded, kerr.ElectionNotNeeded.Code},
		{cluster.ErrPreferredLeaderNotAvailable, kerr.PreferredLeaderNotAvailable.Code},
		{cluster.ErrEligibleLeadersNotAvailable, kerr.EligibleLeadersNotAvailable.Code},
		{cluster.ErrNoReplicaInSync, kerr.EligibleLeadersNotAvailable.Code},
		{cluster.ErrNoReassignment, kerr.NoReassignmentInProgress.Code},
		// The change may have been made, or not: the client looks, or asks again.
		{cluster.ErrUncertain, kerr.RequestTimedOut.Code},
		{cluster.ErrUnavailable, kerr.RequestTimedOut.Code},
		{context.DeadlineExceeded, kerr.RequestTimedOut.Code},
	}
}

// timeout is the context of a change that the client waits for so long. The
// change goes on if the client goes away.
func timeout(ms int32) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(max(ms, 1))*time.Millisecond)
}
