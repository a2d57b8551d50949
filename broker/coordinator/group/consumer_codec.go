package group

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// Versions of the keys of the consumer protocol's records, which name their kind.
const (
	consumerGroupKey     = 3
	partitionMetadataKey = 4
	consumerMemberKey    = 5
	targetEpochKey       = 6
	targetMemberKey      = 7
	currentMemberKey     = 8
	regexKey             = 16
)

// consumerEntry is one record of the consumer protocol. The state of a group is what applying its
// entries, in the order of the log, makes of it: while it lives as well as after a replay.
type consumerEntry interface {
	groupID() string
	record() coordinator.Record
	gone() bool // a tombstone
	apply(c *consumerGroup)
}

// entryOf is what all entries have: the group, and for most of them the member (or regular
// expression) that they are of, and the value, of which nil is a tombstone.
type entryOf[V any] struct {
	group, name string
	value       *V
}

func (e entryOf[V]) groupID() string { return e.group }
func (e entryOf[V]) gone() bool      { return e.value == nil }

type (
	epochEntry             struct{ entryOf[epochValue] }
	partitionMetadataEntry struct{ entryOf[struct{}] }
	memberEntry            struct{ entryOf[consumerMember] } // of the value only what the member says
	targetEpochEntry       struct{ entryOf[targetEpochValue] }
	targetEntry            struct{ entryOf[partitionSet] }
	currentEntry           struct{ entryOf[consumerMember] } // of the value only what the member has
	regexEntry             struct{ entryOf[resolvedRegex] }
)

// epochValue is a group's epoch, and the hash of what it is for.
type epochValue struct {
	epoch int32
	hash  int64
}

// targetEpochValue is the epoch that the target is for, and when it was made.
type targetEpochValue struct {
	epoch     int32
	timestamp int64 // ms; 0: not known
}

func (e epochEntry) apply(c *consumerGroup) {
	if e.value != nil {
		c.epoch, c.hash = e.value.epoch, e.value.hash
	}
}

func (e partitionMetadataEntry) apply(c *consumerGroup) { c.partitionMetadata = e.value != nil }

func (e memberEntry) apply(c *consumerGroup) {
	if e.value == nil {
		c.forget(e.name)
		return
	}
	old, next := c.member(e.name), *e.value
	next.id, next.known = e.name, true
	next.epoch, next.previousEpoch, next.state = old.epoch, old.previousEpoch, old.state
	next.assigned, next.revoking = old.assigned, old.revoking
	c.put(&next)
}

func (e targetEpochEntry) apply(c *consumerGroup) {
	if e.value == nil {
		c.targetEpoch, c.targetTimestamp = 0, 0
		return
	}
	c.targetEpoch, c.targetTimestamp = e.value.epoch, e.value.timestamp
}

func (e targetEntry) apply(c *consumerGroup) {
	if e.value == nil {
		delete(c.target, e.name)
		return
	}
	c.target[e.name] = *e.value
}

func (e currentEntry) apply(c *consumerGroup) {
	if e.value == nil && c.members[e.name] == nil {
		return
	}
	next := *c.member(e.name)
	if e.value == nil {
		next.epoch, next.previousEpoch, next.state, next.assigned, next.revoking = leaveEpoch, leaveEpoch, settled, nil, nil
	} else {
		v := e.value
		next.epoch, next.previousEpoch, next.state, next.assigned, next.revoking = v.epoch, v.previousEpoch, v.state, v.assigned, v.revoking
	}
	c.put(&next)
}

func (e regexEntry) apply(c *consumerGroup) {
	if e.value == nil {
		delete(c.regexes, e.name)
		return
	}
	c.regexes[e.name] = e.value
}

// consumerKey writes a key: its version, the group, and for some kinds one more name.
func consumerKey(version int16, names ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(version))
	for _, name := range names {
		b = appendString(b, name)
	}
	return b
}

// valueVersion begins every value: all are of version 0.
func valueVersion() []byte { return []byte{0, 0} }

func (e epochEntry) record() coordinator.Record {
	r := coordinator.Record{Key: consumerKey(consumerGroupKey, e.group)}
	if v := e.value; v != nil {
		r.Value = binary.BigEndian.AppendUint32(valueVersion(), uint32(v.epoch))
		r.Value = appendLongTag(r.Value, v.hash)
	}
	return r
}

// record is only ever written as a tombstone.
func (e partitionMetadataEntry) record() coordinator.Record {
	return coordinator.Record{Key: consumerKey(partitionMetadataKey, e.group)}
}

func (e memberEntry) record() coordinator.Record {
	r := coordinator.Record{Key: consumerKey(consumerMemberKey, e.group, e.name)}
	v := e.value
	if v == nil {
		return r
	}
	b := appendNullable(valueVersion(), v.instanceID)
	b = appendNullable(b, v.rackID)
	b = appendCompact(b, v.clientID)
	b = appendCompact(b, v.clientHost)
	b = appendNames(b, v.topics)
	b = appendCompact(b, v.regex)
	b = binary.BigEndian.AppendUint32(b, uint32(millisOrNone(v.rebalanceTimeout)))
	b = appendNullable(b, v.assignor)
	r.Value = appendClassic(b, v.classic)
	return r
}

// appendClassic writes tag 0, which is what a member of the classic protocol says: one byte that
// tells whether there is anything, and that.
func appendClassic(b []byte, c *classicSide) []byte {
	tag := []byte{0}
	if c != nil {
		tag = []byte{1}
		tag = binary.BigEndian.AppendUint32(tag, uint32(millisOrNone(c.sessionTimeout)))
		tag = binary.AppendUvarint(tag, uint64(len(c.protocols))+1)
		for _, p := range c.protocols {
			tag = appendCompact(tag, p.Name)
			tag = appendCompact(tag, string(p.Metadata))
			tag = append(tag, 0)
		}
		tag = append(tag, 0)
	}
	b = append(b, 1, 0)
	b = binary.AppendUvarint(b, uint64(len(tag)))
	return append(b, tag...)
}

func readClassic(r *wireReader) *classicSide {
	if r.int8() != 1 {
		return nil
	}
	c := &classicSide{sessionTimeout: time.Duration(r.int32()) * time.Millisecond}
	for range r.count() {
		c.protocols = append(c.protocols, Protocol{Name: r.compact(), Metadata: []byte(r.compact())})
		r.tags(nil)
	}
	r.tags(nil)
	return c
}

func millisOrNone(d time.Duration) int32 {
	if d < 0 {
		return -1
	}
	return int32(d.Milliseconds())
}

func (e targetEpochEntry) record() coordinator.Record {
	r := coordinator.Record{Key: consumerKey(targetEpochKey, e.group)}
	if v := e.value; v != nil {
		r.Value = binary.BigEndian.AppendUint32(valueVersion(), uint32(v.epoch))
		r.Value = appendLongTag(r.Value, v.timestamp)
	}
	return r
}

func (e targetEntry) record() coordinator.Record {
	r := coordinator.Record{Key: consumerKey(targetMemberKey, e.group, e.name)}
	if e.value == nil {
		return r
	}
	b := binary.AppendUvarint(valueVersion(), uint64(len(*e.value))+1)
	for _, topic := range sortedTopics(*e.value) {
		b = append(b, topic[:]...)
		b = appendInts(b, (*e.value)[topic])
		b = append(b, 0)
	}
	r.Value = append(b, 0)
	return r
}

func (e currentEntry) record() coordinator.Record {
	r := coordinator.Record{Key: consumerKey(currentMemberKey, e.group, e.name)}
	v := e.value
	if v == nil {
		return r
	}
	b := binary.BigEndian.AppendUint32(valueVersion(), uint32(v.epoch))
	b = binary.BigEndian.AppendUint32(b, uint32(v.previousEpoch))
	b = append(b, byte(v.state))
	b = appendHeld(b, v.assigned)
	b = appendHeld(b, v.revoking)
	r.Value = append(b, 0)
	return r
}

func (e regexEntry) record() coordinator.Record {
	r := coordinator.Record{Key: consumerKey(regexKey, e.group, e.name)}
	if v := e.value; v != nil {
		b := appendNames(valueVersion(), v.topics)
		b = binary.BigEndian.AppendUint64(b, uint64(v.version))
		b = binary.BigEndian.AppendUint64(b, uint64(v.timestamp))
		r.Value = append(b, 0)
	}
	return r
}

// appendHeld writes partitions, with their epochs as tag 0 of each topic.
func appendHeld(b []byte, h heldPartitions) []byte {
	b = binary.AppendUvarint(b, uint64(len(h))+1)
	for _, topic := range sortedTopics(h) {
		partitions := slices.Sorted(maps.Keys(h[topic]))
		epochs := make([]int32, len(partitions))
		for i, p := range partitions {
			epochs[i] = h[topic][p]
		}
		b = append(b, topic[:]...)
		b = appendInts(b, partitions)
		tag := appendInts(nil, epochs)
		b = append(b, 1, 0)
		b = binary.AppendUvarint(b, uint64(len(tag)))
		b = append(b, tag...)
	}
	return b
}

// decodeConsumer reads a record of the consumer protocol; nil for kinds that are not of it.
func decodeConsumer(version int16, key, value []byte) (consumerEntry, error) {
	k := &wireReader{b: key[2:]}
	v := &wireReader{b: value}
	valueVersion := int16(0)
	if value != nil {
		valueVersion = v.int16()
	}
	e := decodeConsumerEntry(version, k, v, value == nil)
	switch {
	case e == nil:
		return nil, nil
	case valueVersion != 0:
		return nil, &CorruptRecordError{"value of a consumer group", fmt.Errorf("unknown version %d of key %d", valueVersion, version)}
	case k.bad || len(k.b) > 0:
		return nil, &CorruptRecordError{"key of a consumer group", fmt.Errorf("not a key of version %d", version)}
	case v.bad:
		return nil, &CorruptRecordError{"value of a consumer group", fmt.Errorf("not a value of key %d", version)}
	}
	return e, nil
}

func decodeConsumerEntry(version int16, k, v *wireReader, gone bool) consumerEntry {
	group := k.string()
	switch version {
	case consumerGroupKey:
		return epochEntry{entry(group, "", gone, v, readEpoch)}
	case partitionMetadataKey: // deprecated: the hash has taken its place
		return partitionMetadataEntry{entry(group, "", gone, v, func(*wireReader) struct{} { return struct{}{} })}
	case consumerMemberKey:
		return memberEntry{entry(group, k.string(), gone, v, readMember)}
	case targetEpochKey:
		return targetEpochEntry{entry(group, "", gone, v, readTargetEpoch)}
	case targetMemberKey:
		return targetEntry{entry(group, k.string(), gone, v, readTarget)}
	case currentMemberKey:
		return currentEntry{entry(group, k.string(), gone, v, readCurrent)}
	case regexKey:
		return regexEntry{entry(group, k.string(), gone, v, readRegex)}
	}
	return nil
}

func entry[V any](group, name string, gone bool, r *wireReader, read func(*wireReader) V) entryOf[V] {
	e := entryOf[V]{group: group, name: name}
	if !gone {
		v := read(r)
		e.value = &v
	}
	return e
}

func readEpoch(r *wireReader) (v epochValue) {
	v.epoch = r.int32()
	r.tags(func(tag uint64, t *wireReader) {
		if tag == 0 {
			v.hash = t.int64()
		}
	})
	return v
}

func readMember(r *wireReader) (v consumerMember) {
	v.instanceID, v.rackID = r.compact(), r.compact()
	v.clientID, v.clientHost = r.compact(), r.compact()
	v.topics = r.names()
	v.regex = r.compact()
	v.rebalanceTimeout = time.Duration(r.int32()) * time.Millisecond
	if v.rebalanceTimeout < 0 {
		v.rebalanceTimeout = -1
	}
	v.assignor = r.compact()
	r.tags(func(tag uint64, t *wireReader) {
		if tag == 0 {
			v.classic = readClassic(t)
		}
	})
	return v
}

func readTargetEpoch(r *wireReader) (v targetEpochValue) {
	v.epoch = r.int32()
	r.tags(func(tag uint64, t *wireReader) {
		if tag == 0 {
			v.timestamp = t.int64()
		}
	})
	return v
}

func readTarget(r *wireReader) partitionSet {
	s := make(partitionSet)
	for range r.count() {
		topic := r.uuid()
		s[topic] = normal(append(slices.Clone(s[topic]), r.ints()...))
		r.tags(nil)
	}
	r.tags(nil)
	return s
}

// normal sorts partitions and takes doubles out.
func normal(partitions []int32) []int32 {
	slices.Sort(partitions)
	return slices.Compact(partitions)
}

func readCurrent(r *wireReader) (v consumerMember) {
	v.epoch, v.previousEpoch = r.int32(), r.int32()
	v.state = memberState(r.int8())
	v.assigned = readHeld(r, v.epoch)
	v.revoking = readHeld(r, v.epoch)
	r.tags(nil)
	return v
}

// readHeld reads partitions. Where their epochs are not told, as before Kafka 4.3, the member's is
// the safe choice: an older commit is refused.
func readHeld(r *wireReader, memberEpoch int32) (h heldPartitions) {
	for range r.count() {
		topic, partitions := r.uuid(), r.ints()
		var epochs []int32
		r.tags(func(tag uint64, t *wireReader) {
			if tag == 0 {
				epochs = t.ints()
			}
		})
		for i, p := range partitions {
			epoch := memberEpoch
			if i < len(epochs) {
				epoch = epochs[i]
			}
			h = h.with(topic, p, epoch)
		}
	}
	return h
}

func readRegex(r *wireReader) (v resolvedRegex) {
	v.topics = r.names()
	v.version, v.timestamp = r.int64(), r.int64()
	r.tags(nil)
	return v
}

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendCompact(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s))+1)
	return append(b, s...)
}

// appendNullable writes the empty string as null.
func appendNullable(b []byte, s string) []byte {
	if s == "" {
		return append(b, 0)
	}
	return appendCompact(b, s)
}

func appendNames(b []byte, names []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(names))+1)
	for _, n := range names {
		b = appendCompact(b, n)
	}
	return b
}

func appendInts(b []byte, ints []int32) []byte {
	b = binary.AppendUvarint(b, uint64(len(ints))+1)
	for _, n := range ints {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	return b
}

// appendLongTag ends a value with its one tagged field, which is left out when it is zero.
func appendLongTag(b []byte, v int64) []byte {
	if v == 0 {
		return append(b, 0)
	}
	b = append(b, 1, 0, 8)
	return binary.BigEndian.AppendUint64(b, uint64(v))
}

// wireReader reads Kafka's primitive types. After the first thing that is not there it is bad, and
// everything reads as zero. What it returns shares no memory with what it reads.
type wireReader struct {
	b   []byte
	bad bool
}

func (r *wireReader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *wireReader) int8() int8 {
	if b := r.take(1); b != nil {
		return int8(b[0])
	}
	return 0
}

func (r *wireReader) int16() int16 {
	if b := r.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *wireReader) int32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (r *wireReader) int64() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *wireReader) uuid() (id [16]byte) {
	copy(id[:], r.take(16))
	return id
}

func (r *wireReader) uvarint() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[size:]
	return n
}

// count reads the length of an array or string; null reads as 0. Nothing is as long as it says
// without as many bytes being there.
func (r *wireReader) count() int {
	n := r.uvarint()
	if n == 0 {
		return 0
	}
	if n-1 > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return 0
	}
	return int(n - 1)
}

func (r *wireReader) string() string  { return string(r.take(int(r.int16()))) }
func (r *wireReader) compact() string { return string(r.take(r.count())) }

func (r *wireReader) names() []string {
	all := make([]string, r.count())
	for i := range all {
		all[i] = r.compact()
	}
	slices.Sort(all)
	return all
}

func (r *wireReader) ints() []int32 {
	all := make([]int32, r.count())
	for i := range all {
		all[i] = r.int32()
	}
	return all
}

// tags reads tagged fields, and gives each to f, which may be nil.
func (r *wireReader) tags(f func(tag uint64, t *wireReader)) {
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		tag := r.uvarint()
		size := r.uvarint()
		if size > uint64(len(r.b)) {
			r.bad, r.b = true, nil
			return
		}
		t := &wireReader{b: r.take(int(size))}
		if f != nil {
			f(tag, t)
		}
		r.bad = r.bad || t.bad
	}
}
