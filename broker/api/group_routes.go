package api

import (
	"errors"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/server"
)

// groupRoutes are the requests of consumer groups. Their kinds are also the order in which a
// consumer sends them.
func groupRoutes() []route {
	return []route{
		{key: 10, min: 0, max: 6, handle: async(findCoordinator)},
		{key: 11, min: 0, max: 9, handle: async(joinGroup)},
		{key: 14, min: 0, max: 5, handle: async(syncGroup)},
		{key: 12, min: 0, max: 4, handle: direct(heartbeat)},
		{key: 13, min: 0, max: 5, handle: async(leaveGroup)},
		{key: 8, min: 2, max: 10, handle: async(offsetCommit)},
		{key: 9, min: 1, max: 10, handle: direct(offsetFetch)},
		{key: 16, min: 0, max: 5, handle: direct(listGroups)},
		{key: 15, min: 0, max: 6, handle: direct(describeGroups)},
		{key: 42, min: 0, max: 3, handle: async(deleteGroups)},
		{key: 47, min: 0, max: 0, handle: async(offsetDelete)},
		// librdkafka takes the new protocol only with exactly version 1 of the heartbeat.
		{key: 68, min: 0, max: 1, handle: async(consumerGroupHeartbeat)},
		{key: 69, min: 0, max: 1, handle: async(consumerGroupDescribe)},
	}
}

// groupErrors maps what the group coordinator answers to the protocol's codes.
var groupErrors = []struct {
	err  error
	code *kerr.Error
}{
	{group.ErrNotCoordinator, kerr.NotCoordinator},
	{group.ErrLoading, kerr.CoordinatorLoadInProgress},
	{group.ErrUnavailable, kerr.CoordinatorNotAvailable},
	{group.ErrInvalidGroupID, kerr.InvalidGroupID},
	{group.ErrInvalidSessionTimeout, kerr.InvalidSessionTimeout},
	{group.ErrMemberIDRequired, kerr.MemberIDRequired},
	{group.ErrUnknownMember, kerr.UnknownMemberID},
	{group.ErrFencedInstance, kerr.FencedInstanceID},
	{group.ErrInconsistentProtocol, kerr.InconsistentGroupProtocol},
	{group.ErrGroupFull, kerr.GroupMaxSizeReached},
	{group.ErrIllegalGeneration, kerr.IllegalGeneration},
	{group.ErrRebalanceInProgress, kerr.RebalanceInProgress},
	{group.ErrNonEmptyGroup, kerr.NonEmptyGroup},
	{group.ErrGroupNotFound, kerr.GroupIDNotFound},
	{group.ErrMetadataTooLarge, kerr.OffsetMetadataTooLarge},
	{group.ErrSubscribed, kerr.GroupSubscribedToTopic},
	{group.ErrInvalidRequest, kerr.InvalidRequest},
	{group.ErrFencedMemberEpoch, kerr.FencedMemberEpoch},
	{group.ErrStaleMemberEpoch, kerr.StaleMemberEpoch},
	{group.ErrUnreleasedInstance, kerr.UnreleasedInstanceID},
	{group.ErrUnsupportedAssignor, kerr.UnsupportedAssignor},
	{group.ErrInvalidRegex, kerr.InvalidRegularExpression},
	{group.ErrUnsupportedVersion, kerr.UnsupportedVersion},
}

// groupErrorCode returns the code of an error of the group coordinator; 0 for none.
func groupErrorCode(err error) int16 {
	if err == nil {
		return 0
	}
	for _, e := range groupErrors {
		if errors.Is(err, e.err) {
			return e.code.Code
		}
	}
	return kerr.UnknownServerError.Code
}

// clientHost is the client's address as Kafka shows it: with a slash and without the port.
func clientHost(r *server.Request) string {
	host, _, err := net.SplitHostPort(r.Conn.RemoteAddr())
	if err != nil {
		host = r.Conn.RemoteAddr()
	}
	return "/" + host
}

// orEmpty is the string, or "" for none.
func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
