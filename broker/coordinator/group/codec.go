package group

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// Versions of the keys and values that are written; see the package comment.
const (
	offsetKeyVersion       = 1
	groupKeyVersion        = 2
	groupValueVersion      = 3
	offsetValueVersion     = 4
	offsetValueWithExpiry  = 1
	offsetValueVersionsMax = 4
	groupValueVersionsMax  = 4
)

// CorruptRecordError says that a record of the offsets topic does not have the layout that its
// version tells.
type CorruptRecordError struct {
	What   string // what was being read
	Reason error
}

func (e *CorruptRecordError) Error() string { return fmt.Sprintf("corrupt %s: %v", e.What, e.Reason) }

func (e *CorruptRecordError) Unwrap() error { return e.Reason }

// offsetEntry is a commit; without a value, its removal.
type offsetEntry struct {
	group, topic string
	partition    int32
	value        *offsetValue
}

// offsetValue is a committed offset.
type offsetValue struct {
	offset       int64
	leaderEpoch  int32 // -1: not known
	metadata     string
	commitMillis int64
	expireMillis int64 // -1: by the broker's retention
	topicID      [16]byte
}

// groupEntry is a group; without a value, its removal.
type groupEntry struct {
	group string
	value *kmsg.GroupMetadataValue
}

// decode reads a record: an offsetEntry, a groupEntry, a consumerEntry, or nil for keys of another kind. A
// *CorruptRecordError says that it cannot be read.
func decode(key, value []byte) (any, error) {
	if len(key) < 2 {
		return nil, &CorruptRecordError{"key", errors.New("shorter than its version")}
	}
	switch version := int16(binary.BigEndian.Uint16(key)); version {
	case 0, offsetKeyVersion:
		return decodeOffset(key, value)
	case groupKeyVersion:
		return decodeGroup(key, value)
	default:
		e, err := decodeConsumer(version, key, value)
		if e == nil { // not an interface around nothing
			return nil, err
		}
		return e, err
	}
}

func decodeOffset(key, value []byte) (any, error) {
	var k kmsg.OffsetCommitKey
	if err := k.ReadFrom(key); err != nil {
		return nil, &CorruptRecordError{"offset key", err}
	}
	e := offsetEntry{group: k.Group, topic: k.Topic, partition: k.Partition}
	if value == nil {
		return e, nil
	}
	v := kmsg.NewOffsetCommitValue()
	if err := readValue(value, offsetValueVersionsMax, v.ReadFrom); err != nil {
		return nil, &CorruptRecordError{"offset value", err}
	}
	e.value = &offsetValue{
		offset: v.Offset, leaderEpoch: -1, metadata: v.Metadata, commitMillis: v.CommitTimestamp, expireMillis: -1, topicID: v.TopicID,
	}
	if v.Version >= 3 {
		e.value.leaderEpoch = v.LeaderEpoch
	}
	if v.Version == offsetValueWithExpiry {
		e.value.expireMillis = v.ExpireTimestamp
	}
	return e, nil
}

func decodeGroup(key, value []byte) (any, error) {
	var k kmsg.GroupMetadataKey
	if err := k.ReadFrom(key); err != nil {
		return nil, &CorruptRecordError{"group key", err}
	}
	e := groupEntry{group: k.Group}
	if value == nil {
		return e, nil
	}
	v := kmsg.NewGroupMetadataValue()
	if err := readValue(value, groupValueVersionsMax, v.ReadFrom); err != nil {
		return nil, &CorruptRecordError{"group value", err}
	}
	e.value = &v
	return e, nil
}

// readValue reads a value whose version is known.
func readValue(value []byte, versionsMax int16, read func([]byte) error) error {
	if len(value) < 2 {
		return errors.New("shorter than its version")
	}
	if version := int16(binary.BigEndian.Uint16(value)); version < 0 || version > versionsMax {
		return fmt.Errorf("unknown version %d", version)
	}
	return read(value)
}

func offsetKey(group, topic string, partition int32) []byte {
	k := kmsg.OffsetCommitKey{Version: offsetKeyVersion, Group: group, Topic: topic, Partition: partition}
	return k.AppendTo(nil)
}

func encodeOffset(group, topic string, partition int32, o *offsetValue) coordinator.Record {
	v := kmsg.NewOffsetCommitValue()
	v.Version = offsetValueVersion
	if o.expireMillis >= 0 {
		v.Version = offsetValueWithExpiry
	}
	v.Offset, v.LeaderEpoch, v.Metadata = o.offset, o.leaderEpoch, o.metadata
	v.CommitTimestamp, v.ExpireTimestamp, v.TopicID = o.commitMillis, o.expireMillis, o.topicID
	return coordinator.Record{Key: offsetKey(group, topic, partition), Value: v.AppendTo(nil)}
}

func offsetTombstone(group, topic string, partition int32) coordinator.Record {
	return coordinator.Record{Key: offsetKey(group, topic, partition)}
}

func groupTombstone(group string) coordinator.Record {
	k := kmsg.GroupMetadataKey{Version: groupKeyVersion, Group: group}
	return coordinator.Record{Key: k.AppendTo(nil)}
}

// encodeGroup writes a group as it is, with the given assignments.
func encodeGroup(g *group, assignment map[string][]byte) coordinator.Record {
	r := groupTombstone(g.id)
	v := kmsg.NewGroupMetadataValue()
	v.Version = groupValueVersion
	v.ProtocolType, v.Generation = g.protocolType, g.generation
	v.Protocol, v.Leader = nullable(g.protocol), nullable(g.leader)
	v.CurrentStateTimestamp = g.sinceMillis()
	for _, mem := range g.members {
		v.Members = append(v.Members, kmsg.GroupMetadataValueMember{
			MemberID: mem.id, InstanceID: nullable(mem.instanceID),
			ClientID: mem.clientID, ClientHost: mem.clientHost,
			RebalanceTimeoutMillis: int32(mem.rebalanceTimeout.Milliseconds()),
			SessionTimeoutMillis:   int32(mem.sessionTimeout.Milliseconds()),
			Subscription:           mem.metadata(g.protocol),
			Assignment:             assignment[mem.id],
		})
	}
	r.Value = v.AppendTo(nil)
	return r
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// sinceMillis is the time of the group's state as it is stored; -1 when it is not known.
func (g *group) sinceMillis() int64 {
	if g.since.IsZero() {
		return -1
	}
	return g.since.UnixMilli()
}

// groupFromValue is a group as its last record tells: stable with the members of the last
// generation, or empty.
func groupFromValue(id string, v *kmsg.GroupMetadataValue) *group {
	g := newGroup(id, time.Time{})
	if v.Version >= 2 && v.CurrentStateTimestamp >= 0 {
		g.since = time.UnixMilli(v.CurrentStateTimestamp)
	}
	g.generation, g.persisted = v.Generation, true
	for i := range v.Members {
		mem := memberFromValue(&v.Members[i], deref(v.Protocol), v.Version)
		if g.byID[mem.id] == nil && (mem.instanceID == "" || g.instances[mem.instanceID] == nil) {
			g.add(mem, v.ProtocolType)
		}
	}
	g.protocolType, g.protocol = v.ProtocolType, deref(v.Protocol)
	if leader := deref(v.Leader); g.byID[leader] != nil {
		g.leader = leader
	}
	if len(g.members) > 0 {
		g.state = stable
	}
	g.subscribed = g.subscriptions()
	return g
}

// memberFromValue copies what it keeps: the record's bytes are of a buffer that is used again.
func memberFromValue(v *kmsg.GroupMetadataValueMember, protocol string, version int16) *member {
	rebalance := v.RebalanceTimeoutMillis
	if version == 0 {
		rebalance = v.SessionTimeoutMillis // as Kafka: the session timeout was for both
	}
	return &member{
		id: v.MemberID, instanceID: deref(v.InstanceID), clientID: v.ClientID, clientHost: v.ClientHost,
		sessionTimeout:   time.Duration(v.SessionTimeoutMillis) * time.Millisecond,
		rebalanceTimeout: time.Duration(rebalance) * time.Millisecond,
		protocols:        []Protocol{{Name: protocol, Metadata: bytes.Clone(v.Subscription)}},
		assignment:       bytes.Clone(v.Assignment),
	}
}
