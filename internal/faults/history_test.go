package faults

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// value is what a record carries: who wrote it, and the how manieth to its
// partition it is.
type value struct {
	producer, number int
}

func (v value) String() string { return fmt.Sprintf("%d/%d", v.producer, v.number) }

func parseValue(b []byte) (value, error) {
	producer, number, _ := strings.Cut(string(b), "/")
	p, err1 := strconv.Atoi(producer)
	n, err2 := strconv.Atoi(number)
	if err1 != nil || err2 != nil {
		return value{}, fmt.Errorf("a record that nobody wrote: %q", b)
	}
	return value{p, n}, nil
}

// entry is a record of a partition's log as a consumer got it.
type entry struct {
	offset int64
	value  value
}

// ack is an acknowledged record.
type ack struct {
	entry
	sent, at time.Time
}

// sight is a record that the reader got, in a poll from asked to at.
type sight struct {
	entry
	asked, at time.Time
}

// history is what the clients of one topic know. It is safe for concurrent use.
type history struct {
	topic string
	began time.Time

	mu         sync.Mutex
	partitions []partitionHistory
	complaints []string // what a client itself found wrong
}

type partitionHistory struct {
	sent   map[int]int // by producer: how many values it has sent
	acks   []ack       // in the order of their acknowledgements
	seen   map[int64]value
	sights []sight
	group  groupHistory
}

// groupHistory is what the members of the consumer group know of a partition.
type groupHistory struct {
	next      int64     // one above the highest offset that a member got
	committed int64     // the newest acknowledged commit, as far as the order of two is known
	takenBack time.Time // when a lower one than the one before was acknowledged last
}

func newHistory(topic string, partitions int) *history {
	h := &history{topic: topic, began: time.Now(), partitions: make([]partitionHistory, partitions)}
	for i := range h.partitions {
		h.partitions[i].sent = map[int]int{}
		h.partitions[i].seen = map[int64]value{}
	}
	return h
}

func (h *history) complain(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.complaints = append(h.complaints, fmt.Sprintf(format, args...))
}

// complained returns what the clients found wrong.
func (h *history) complained() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.complaints)
}

// send returns the next value of a producer for a partition.
func (h *history) send(partition, producer int) value {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &h.partitions[partition]
	v := value{producer, p.sent[producer]}
	p.sent[producer]++
	return v
}

func (h *history) acknowledged(partition int, a ack) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.partitions[partition].acks = append(h.partitions[partition].acks, a)
}

// saw notes a record that a consumer got, and complains if another consumer, or
// the same one earlier, got another record at that offset.
func (h *history) saw(who string, partition int, s sight) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &h.partitions[partition]
	before, known := p.seen[s.offset]
	if known && before != s.value {
		h.complaints = append(h.complaints, fmt.Sprintf("partition %d: offset %d was %s to a consumer and is %s to %s",
			partition, s.offset, before, s.value, who))
	}
	p.seen[s.offset] = s.value
	if !known {
		p.sights = append(p.sights, s)
	}
}

// ackedSince says whether each partition has a record that was sent after from
// and is acknowledged.
func (h *history) ackedSince(from time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.partitions {
		acks := h.partitions[i].acks
		if !slices.ContainsFunc(acks[max(0, len(acks)-1):], func(a ack) bool { return a.sent.After(from) }) {
			return false
		}
	}
	return true
}

// ends are the offsets beyond the highest acknowledged one, by partition.
func (h *history) ends() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	ends := make([]int64, len(h.partitions))
	for i, p := range h.partitions {
		for _, a := range p.acks {
			ends[i] = max(ends[i], a.offset+1)
		}
	}
	return ends
}

// groupAt says whether the group has committed offsets beyond ends.
func (h *history) groupAt(ends []int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, end := range ends {
		if h.partitions[i].group.committed < end {
			return false
		}
	}
	return true
}

// longestSilence is the longest time in a partition between from and to in
// which nothing was acknowledged.
func (h *history) longestSilence(from, to time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	var longest time.Duration
	for i := range h.partitions {
		last := from
		for _, a := range h.partitions[i].acks {
			if a.at.After(from) && a.at.Before(to) {
				longest = max(longest, a.at.Sub(last))
				last = a.at
			}
		}
		longest = max(longest, to.Sub(last))
	}
	return longest
}

// snapshot copies what is known of a partition now.
func (h *history) snapshot(partition int) partitionHistory {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.partitions[partition]
	sent := map[int]int{}
	for producer, n := range p.sent {
		sent[producer] = n
	}
	seen := make(map[int64]value, len(p.seen))
	for offset, v := range p.seen {
		seen[offset] = v
	}
	return partitionHistory{sent: sent, acks: slices.Clone(p.acks), seen: seen, sights: slices.Clone(p.sights), group: p.group}
}

func (h *history) acks() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.partitions {
		n += len(h.partitions[i].acks)
	}
	return n
}
