package broker

import (
	"fmt"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/replica"
)

// SetHoldFor has retention wait for other groups than those of Config.HoldFor, from
// its next look on. The map is not to be changed afterwards.
func (b *Broker) SetHoldFor(groups map[string][]string) { b.holdFor.Store(&groups) }

// holds are up to where retention may remove, as the groups that
// are waited for have committed.
type holds struct {
	topics map[string][]committed // of each group that is waited for
	bytes  map[string]int64       // what is kept for them alone, by topic
}

// committed are a group's offsets in a topic. A partition that is missing has
// none, and so is kept whole.
type committed map[int32]group.Offset

// readHolds asks the coordinator what is committed. Where it does not know, for
// the offsets are being loaded or their storage failed, nothing is: all is kept.
func (b *Broker) readHolds() *holds {
	h := &holds{topics: map[string][]committed{}, bytes: map[string]int64{}}
	for topic, groups := range *b.holdFor.Load() {
		h.bytes[topic] = 0
		for _, name := range groups {
			h.topics[topic] = append(h.topics[topic], b.committedBy(name, topic))
		}
	}
	if len(h.topics) > 0 {
		if err := b.flushOffsets(); err != nil {
			b.log.Error("retention removes nothing of topics that groups are waited for in, as their offsets cannot be made durable", "error", err)
			h.keepAll()
		}
	}
	return h
}

func (b *Broker) committedBy(name, topic string) committed {
	offsets, err := b.groups.Offsets(group.FetchRequest{Group: name, MemberEpoch: -1, All: true})
	if err != nil {
		return nil
	}
	out := committed{}
	for _, o := range offsets {
		if o.Topic == topic {
			out[o.Partition] = o
		}
	}
	return out
}

// flushOffsets makes durable what is committed: an offset that a power cut takes
// back must not have let records go.
func (b *Broker) flushOffsets() error {
	for _, p := range b.partitions.All() {
		if p.Topic() != cluster.OffsetsTopic || p.Log().SyncedOffset() == p.Log().EndOffset() {
			continue
		}
		if err := p.Flush(); err != nil {
			return fmt.Errorf("flush offsets: %w", err)
		}
	}
	return nil
}

func (h *holds) keepAll() {
	for topic := range h.topics {
		h.topics[topic] = []committed{nil}
	}
}

// limit is the offset that retention may not pass.
func (h *holds) limit(p *replica.Partition) int64 {
	limit := p.HighWatermark()
	for _, offsets := range h.topics[p.Topic()] {
		o, ok := offsets[p.Index()]
		otherTopic := o.TopicID != [16]byte{} && o.TopicID != p.TopicID()
		if !ok || otherTopic || o.Offset < 0 {
			return p.Log().StartOffset()
		}
		limit = min(limit, o.Offset)
	}
	return limit
}

// count adds up what is still there but would not be without the groups.
func (h *holds) count(p *replica.Partition, now time.Time) error {
	if _, held := h.topics[p.Topic()]; !held {
		return nil
	}
	kept, err := p.Log().Expired(now, p.HighWatermark())
	if err != nil {
		return err
	}
	h.bytes[p.Topic()] += bytesOf(kept)
	return nil
}

func bytesOf(segments []commitlog.SegmentInfo) (n int64) {
	for _, s := range segments {
		n += s.Bytes
	}
	return n
}
