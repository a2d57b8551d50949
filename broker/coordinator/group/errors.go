package group

import (
	"errors"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// What a request about groups can be refused with. The names follow Kafka's error codes; package
// api maps them.
var (
	// ErrNotCoordinator: another broker leads the group's partition.
	ErrNotCoordinator = coordinator.ErrNotLeader
	// ErrLoading: the group's partition is being replayed; never answered with "no offset".
	ErrLoading = coordinator.ErrLoading
	// ErrUnavailable: what had to be written could not be; try again.
	ErrUnavailable = coordinator.ErrUnavailable
	// ErrTooLarge: a commit or the group's members do not fit into one batch.
	ErrTooLarge = coordinator.ErrTooLarge

	ErrInvalidGroupID        = errors.New("invalid group id")
	ErrInvalidSessionTimeout = errors.New("session timeout is outside the broker's limits")
	ErrMemberIDRequired      = errors.New("the member must join again with the id it was given")
	ErrUnknownMember         = errors.New("the group does not know this member")
	ErrFencedInstance        = errors.New("another member holds this group instance id")
	ErrInconsistentProtocol  = errors.New("no protocol in common with the group's members")
	ErrGroupFull             = errors.New("the group has its maximum of members")
	ErrIllegalGeneration     = errors.New("not the group's generation")
	ErrRebalanceInProgress   = errors.New("the group is rebalancing")
	ErrNonEmptyGroup         = errors.New("the group has members")
	ErrGroupNotFound         = errors.New("no such group")
	ErrMetadataTooLarge      = errors.New("offset metadata is too large")
	ErrSubscribed            = errors.New("members of the group subscribe to the topic")

	// Of the consumer protocol.
	ErrInvalidRequest      = errors.New("invalid request")
	ErrFencedMemberEpoch   = errors.New("the member is fenced")
	ErrStaleMemberEpoch    = errors.New("not the member's epoch")
	ErrUnreleasedInstance  = errors.New("a member that has not left holds this group instance id")
	ErrUnsupportedAssignor = errors.New("no such server-side assignor")
	ErrInvalidRegex        = errors.New("invalid regular expression")
	ErrUnsupportedVersion  = errors.New("members of consumer groups need a later version of this request")
)
