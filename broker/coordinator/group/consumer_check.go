package group

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// check refuses a heartbeat that no group could take.
func (req *ConsumerHeartbeat) check(cfg Config) error {
	switch {
	case req.Group == "":
		return fmt.Errorf("%w: the group id is empty", ErrInvalidRequest)
	case req.InstanceID != nil && *req.InstanceID == "":
		return fmt.Errorf("%w: the instance id is empty", ErrInvalidRequest)
	case req.RackID != nil && *req.RackID == "":
		return fmt.Errorf("%w: the rack id is empty", ErrInvalidRequest)
	case req.MemberID == "" && (req.MemberIDRequired || req.Epoch != joinEpoch):
		return fmt.Errorf("%w: the member id is empty", ErrInvalidRequest)
	case req.Epoch < leaveStaticEpoch:
		return fmt.Errorf("%w: member epoch %d", ErrInvalidRequest, req.Epoch)
	case req.Epoch == leaveStaticEpoch && req.InstanceID == nil:
		return fmt.Errorf("%w: a member without an instance id leaves for good", ErrInvalidRequest)
	case req.Epoch == joinEpoch:
		if err := req.checkJoin(); err != nil {
			return err
		}
	}
	if req.Assignor != nil && !slices.Contains(cfg.ConsumerAssignors, *req.Assignor) {
		return fmt.Errorf("%w: %q; there are %s", ErrUnsupportedAssignor, *req.Assignor, strings.Join(cfg.ConsumerAssignors, ", "))
	}
	return nil
}

// checkJoin refuses a first heartbeat that does not say everything.
func (req *ConsumerHeartbeat) checkJoin() error {
	switch {
	case req.RebalanceTimeout < 0:
		return fmt.Errorf("%w: a joining member gives its rebalance timeout", ErrInvalidRequest)
	case req.Owned == nil || len(req.Owned) > 0:
		return fmt.Errorf("%w: a joining member owns no partitions", ErrInvalidRequest)
	case req.Topics == nil && req.Regex == nil:
		return fmt.Errorf("%w: a joining member gives its topics or a regular expression", ErrInvalidRequest)
	}
	return nil
}

// full says whether the heartbeat leaves nothing out: the member wants to be told what it has.
func (req *ConsumerHeartbeat) full() bool {
	return req.Epoch == joinEpoch ||
		req.RebalanceTimeout >= 0 && req.Owned != nil && (req.Topics != nil || req.Regex != nil)
}

// compileRegex makes a pattern that matches whole names. Kafka's RE2/J takes the same syntax.
func compileRegex(pattern string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(pattern); err != nil { // by itself, so that it cannot close our group
		return nil, fmt.Errorf("%w: %q: %w", ErrInvalidRegex, pattern, err)
	}
	return regexp.MustCompile(`\A(?:` + pattern + `)\z`), nil
}

// checkEpoch refuses a member that is not where the group believes it to be. The epoch before the
// present one is taken from a member that has missed an answer, which shows in that it has nothing
// that it should not have; a member that joins again begins with what it had.
func (mem *consumerMember) checkEpoch(epoch int32, owned partitionSet) error {
	switch {
	case epoch == joinEpoch || epoch == mem.epoch:
		return nil
	case epoch > mem.epoch:
		return fmt.Errorf("%w: the member's epoch %d is greater than the known %d; it must give up its partitions and join again",
			ErrFencedMemberEpoch, epoch, mem.epoch)
	case epoch == mem.previousEpoch && owned != nil && owned.within(mem.assigned):
		return nil
	}
	return fmt.Errorf("%w: the member's epoch %d is smaller than the known %d; it must give up its partitions and join again",
		ErrFencedMemberEpoch, epoch, mem.epoch)
}

// updated is the member with what the heartbeat says.
func (req *ConsumerHeartbeat) updated(mem *consumerMember) *consumerMember {
	next := *mem
	next.known, next.classic = true, nil
	next.clientID, next.clientHost = req.ClientID, req.ClientHost
	override(&next.instanceID, req.InstanceID)
	override(&next.rackID, req.RackID)
	override(&next.assignor, req.Assignor)
	override(&next.regex, req.Regex)
	if req.RebalanceTimeout >= 0 {
		next.rebalanceTimeout = req.RebalanceTimeout
	}
	if req.Topics != nil {
		next.topics = slices.Compact(slices.Sorted(slices.Values(req.Topics)))
	}
	return &next
}

func override(field, said *string) {
	if said != nil {
		*field = *said
	}
}
