package group

import (
	"bytes"
	"time"
)

// Protocol is one way of assigning partitions that a member offers, with what it says to the
// leader.
type Protocol struct {
	Name     string
	Metadata []byte
}

func (p Protocol) equal(other Protocol) bool {
	return p.Name == other.Name && bytes.Equal(p.Metadata, other.Metadata)
}

// JoinRequest is a member that wants into a group's next generation.
type JoinRequest struct {
	Group      string
	MemberID   string // empty on the first join
	InstanceID string // empty: a dynamic member (KIP-345)
	ClientID   string
	ClientHost string
	// SessionTimeout is how long the member may be silent, RebalanceTimeout how long it may take to
	// rejoin.
	SessionTimeout, RebalanceTimeout time.Duration
	ProtocolType                     string
	Protocols                        []Protocol // in the member's order of preference
	Reason                           string     // why it joins (KIP-800); for the log
	// RequireMemberID: a first join is answered with ErrMemberIDRequired and an id (KIP-394;
	// version 4 and later).
	RequireMemberID bool
	// CanSkipAssignment: the member understands that it is leader without having to assign
	// (KIP-814; version 9 and later).
	CanSkipAssignment bool
}

// JoinMember is a member as the leader sees it.
type JoinMember struct {
	ID, InstanceID string
	Metadata       []byte // for the protocol that was chosen
}

// JoinResponse answers a JoinRequest.
type JoinResponse struct {
	Err            error
	Generation     int32 // -1 with an error
	ProtocolType   string
	Protocol       string
	Leader         string
	MemberID       string
	SkipAssignment bool
	Members        []JoinMember // for the leader only
}

// Assignment is what the leader gives to a member.
type Assignment struct {
	MemberID string
	Data     []byte
}

// SyncRequest asks for the member's assignment, and carries everybody's if it is from the leader.
type SyncRequest struct {
	Group, MemberID, InstanceID string
	Generation                  int32
	ProtocolType, Protocol      string // checked if not empty (version 5 and later)
	Assignments                 []Assignment
}

// SyncResponse answers a SyncRequest.
type SyncResponse struct {
	Err                    error
	ProtocolType, Protocol string
	Assignment             []byte
}

// HeartbeatRequest keeps a member's session.
type HeartbeatRequest struct {
	Group, MemberID, InstanceID string
	Generation                  int32
}

// LeavingMember names a member by its id, by its instance id, or by both.
type LeavingMember struct {
	MemberID, InstanceID, Reason string
}

// LeaveRequest takes members out of a group.
type LeaveRequest struct {
	Group   string
	Members []LeavingMember
}

// LeaveResponse answers a LeaveRequest: an error for the group, or one (or nil) for each member in
// the order of the request.
type LeaveResponse struct {
	Err     error
	Members []error
}

// Commit is an offset to be stored.
type Commit struct {
	Topic       string
	TopicID     [16]byte // zero if not known
	Partition   int32
	Offset      int64
	LeaderEpoch int32 // -1 if not known
	Metadata    string
}

// CommitRequest stores offsets. Generation -1 without a member comes from a consumer that does not
// use groups, or from an administrator.
type CommitRequest struct {
	Group, MemberID, InstanceID string
	Generation                  int32 // or the member epoch
	// ByEpoch: the request can be told of a stale member epoch (version 9 and later).
	ByEpoch bool
	// Retention is how long this commit is kept, from now; 0 means the broker's setting (versions 2
	// to 4).
	Retention time.Duration
	Commits   []Commit
}

// CommitResponse answers a CommitRequest: an error for all, or one (or nil) for each commit in the
// order of the request.
type CommitResponse struct {
	Err     error
	Commits []error
}

// Partition names a partition of a topic. With a TopicID, offsets that were committed to an earlier
// topic of the same name are not found.
type Partition struct {
	Topic     string
	TopicID   [16]byte // zero: not known
	Partition int32
}

// Offset is a committed offset. Offset is -1 where none was ever committed.
type Offset struct {
	Topic       string
	TopicID     [16]byte // zero if not known when it was committed
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	Metadata    string
	CommitTime  time.Time
}

// FetchRequest asks for committed offsets.
type FetchRequest struct {
	Group string
	// MemberID and MemberEpoch are of the new consumer protocol; empty and -1 otherwise.
	MemberID    string
	MemberEpoch int32
	All         bool        // every committed offset; Partitions is not looked at
	Partitions  []Partition // answered in this order
}

// Listing is a line of a group list.
type Listing struct {
	Group, Type, ProtocolType, State string
}

// Types of groups, by the protocol that they speak.
const (
	ClassicType  = "classic"
	ConsumerType = "consumer"
)

// MemberDescription tells of one member. Metadata and Assignment are empty while the group
// rebalances.
type MemberDescription struct {
	ID, InstanceID, ClientID, ClientHost string
	Metadata, Assignment                 []byte
}

// Description tells of one group.
type Description struct {
	Group, State, ProtocolType, Protocol string
	Members                              []MemberDescription
}

// View is a group with its committed offsets, for lag figures.
type View struct {
	Group, State string
	Members      int
	Offsets      []Offset
}
