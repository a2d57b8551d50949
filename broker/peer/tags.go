package peer

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What the requests of a push carry that Kafka's lack goes in tagged fields.
// Brokers of other versions skip those that they do not know.
const (
	// tagPart is on each request of a push: see partOf.
	tagPart = 1000
	// tagUpdate is on UpdateMetadata: the cluster's id and whether the update is full.
	tagUpdate = 1001
	// tagBrokerConfigs is on UpdateMetadata: the settings of brokers, if any changed.
	tagBrokerConfigs = 1002
	// tagTopicConfig is on a topic of UpdateMetadata: its settings, if they changed.
	tagTopicConfig = 1003
	// tagReassignment is on a partition of UpdateMetadata: the replicas that are
	// added and removed, which only LeaderAndIsr has.
	tagReassignment = 1004
	// tagOffline is on a partition of LeaderAndIsr: its offline replicas, which
	// only UpdateMetadata has.
	tagOffline = 1005
	// tagBroker is on a broker of UpdateMetadata: its epoch and whether it is shutting down.
	tagBroker = 1006
	// tagReplicas is on a partition of AlterPartition's answer: its replicas, which
	// may have changed since the leader was told them, and those that a reassignment
	// adds and removes.
	tagReplicas = 1010
	// tagTopicID is on a topic of StopReplica.
	tagTopicID = 1007
)

var (
	errBadUpdate = errors.New("the update cannot be read")
)

// encoder writes the value of a tagged field.
type encoder struct{ b []byte }

func (e *encoder) uint(v uint64) { e.b = binary.AppendUvarint(e.b, v) }

func (e *encoder) bool(v bool) {
	if v {
		e.uint(1)
		return
	}
	e.uint(0)
}

func (e *encoder) string(s string) {
	e.uint(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) ids(ids []int32) {
	e.uint(uint64(len(ids)))
	for _, id := range ids {
		e.uint(uint64(uint32(id)))
	}
}

func (e *encoder) settings(m map[string]string) {
	e.uint(uint64(len(m)))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		e.string(name)
		e.string(m[name])
	}
}

// decoder reads the value of a tagged field. After the first error all reads
// give zero values; see err.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) err() error {
	if d.bad || len(d.b) > 0 {
		return errBadUpdate
	}
	return nil
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bool() bool { return d.uint() != 0 }

// count reads the number of elements that take at least a byte each.
func (d *decoder) count() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) string() string {
	n := d.count()
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

// ids reads a list of brokers, nil if it is empty.
func (d *decoder) ids() []int32 {
	n := d.count()
	if n == 0 {
		return nil
	}
	out := make([]int32, 0, n)
	for range n {
		out = append(out, int32(uint32(d.uint())))
	}
	return out
}

func (d *decoder) settings() map[string]string {
	n := d.count()
	out := make(map[string]string, n)
	for range n {
		name := d.string()
		out[name] = d.string()
	}
	return out
}

// tagged returns the value of a tagged field; ok is false if it is not there.
func tagged(tags kmsg.Tags, key uint32) (d decoder, ok bool) {
	tags.Each(func(k uint32, value []byte) {
		if k == key {
			d.b, ok = value, true
		}
	})
	return d, ok
}
