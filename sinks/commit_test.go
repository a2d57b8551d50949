package sinks

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
)

// What a refused commit means for the claim that it was to make: nothing has been written for it yet.
func TestOutcomesOfCommits(t *testing.T) {
	for err, want := range map[*kerr.Error]outcome{
		kerr.RebalanceInProgress: commitRetry, kerr.StaleMemberEpoch: commitRetry, kerr.CoordinatorLoadInProgress: commitRetry,
		kerr.NotCoordinator: commitRetry, kerr.UnknownTopicOrPartition: commitRetry,
		kerr.IllegalGeneration: commitFenced, kerr.UnknownMemberID: commitFenced, kerr.FencedInstanceID: commitFenced, kerr.FencedMemberEpoch: commitFenced,
	} {
		if got, said := outcomeOf(err.Code); got != want || said == nil {
			t.Errorf("%s: %d, want %d", err.Message, got, want)
		}
	}
	if got, said := outcomeOf(0); got != commitDone || said != nil {
		t.Errorf("no error: %d, %v", got, said)
	}
}
