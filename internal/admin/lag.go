// Package admin is the logic behind the administration commands. It works through the Kafka protocol only, so it works on
// any Kafka; what it returns has JSON tags, since the commands print it with --json as it is.
package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ageFetchTimeout bounds the search for the oldest uncommitted records of all partitions together.
const ageFetchTimeout = 5 * time.Second

// A GroupLag says how far a group is behind in one partition.
type GroupLag struct {
	Group     string `json:"group"`
	State     string `json:"state"` // of the group: Stable, Empty, ...
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Committed int64  `json:"committed"` // -1: never committed
	Start     int64  `json:"start"`     // first offset that still is in the log
	End       int64  `json:"end"`
	// Records between the committed offset and the end, or nil when the group never committed here: then there is no true number.
	Records *int64 `json:"records"`
	// Seconds is the age of the oldest uncommitted record, 0 when there is none, nil when it is not known.
	Seconds *float64 `json:"seconds"`
	// Lost is the number of records that retention removed before the group came to them.
	Lost   int64  `json:"lost,omitempty"`
	Member string `json:"member,omitempty"`
}

// Lag returns the lag of the groups, of all groups if none is named, by group, topic and partition. A group that has no partition, by
// commit or by its members' subscriptions, has one entry with Partition -1, so that it is seen.
func Lag(ctx context.Context, client *kgo.Client, now time.Time, groups ...string) ([]GroupLag, error) {
	lags, err := kadm.NewClient(client).Lag(ctx, groups...)
	if err != nil {
		return nil, fmt.Errorf("read the lag of the groups: %w", err)
	}
	out := []GroupLag{}
	for _, g := range lags.Sorted() {
		if err := g.Error(); err != nil {
			return nil, fmt.Errorf("group %s: %w", g.Group, err)
		}
		partitions, err := groupLag(ctx, client, g)
		if err != nil {
			return nil, err
		}
		out = append(out, partitions...)
	}
	if err := addAges(ctx, client, out, now); err != nil {
		return nil, err
	}
	return out, nil
}

func groupLag(ctx context.Context, client *kgo.Client, g kadm.DescribedGroupLag) (out []GroupLag, err error) {
	known := map[string]bool{}
	for _, m := range g.Lag.Sorted() {
		if m.Err == nil {
			known[m.Topic] = true
			out = append(out, partitionLag(g.Group, g.State, m))
		}
	}
	var uncommitted []string // subscribed to, but neither assigned nor committed yet
	for topic := range subscribed(g) {
		if !known[topic] {
			uncommitted = append(uncommitted, topic)
		}
	}
	if len(uncommitted) > 0 {
		never, err := neverCommitted(ctx, client, g, uncommitted)
		if err != nil {
			return nil, err
		}
		out = append(out, never...)
	}
	if len(out) == 0 {
		out = append(out, GroupLag{Group: g.Group, State: g.State, Partition: -1, Committed: -1})
	}
	slices.SortFunc(out, func(a, b GroupLag) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out, nil
}

func subscribed(g kadm.DescribedGroupLag) map[string]bool {
	topics := map[string]bool{}
	for _, m := range g.Members {
		if c, ok := m.Join.AsConsumer(); ok {
			for _, t := range c.Topics {
				topics[t] = true
			}
		}
	}
	return topics
}

func neverCommitted(ctx context.Context, client *kgo.Client, g kadm.DescribedGroupLag, topics []string) (out []GroupLag, err error) {
	admin := kadm.NewClient(client)
	starts, err := admin.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list start offsets: %w", err)
	}
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list end offsets: %w", err)
	}
	ends.Each(func(end kadm.ListedOffset) {
		if end.Err != nil {
			return // the topic is not there yet
		}
		start, _ := starts.Lookup(end.Topic, end.Partition)
		out = append(out, GroupLag{Group: g.Group, State: g.State, Topic: end.Topic, Partition: end.Partition, Committed: -1,
			Start: start.Offset, End: end.Offset})
	})
	return out, nil
}

func partitionLag(group, state string, m kadm.GroupMemberLag) GroupLag {
	lag := GroupLag{Group: group, State: state, Topic: m.Topic, Partition: m.Partition, Committed: m.Commit.At,
		Start: m.Start.Offset, End: m.End.Offset}
	if m.Member != nil {
		lag.Member = m.Member.ClientID
	}
	if lag.Committed < 0 {
		return lag
	}
	// A commit can lie ahead of the end or behind the start when the topic was made again or records were removed.
	records := max(lag.End-max(lag.Committed, lag.Start), 0)
	lag.Records = &records
	lag.Lost = max(lag.Start-lag.Committed, 0)
	if records == 0 {
		lag.Seconds = new(float64)
	}
	return lag
}

// addAges reads the oldest uncommitted record of each partition that has one, of all groups in one go for each offset.
func addAges(ctx context.Context, client *kgo.Client, lags []GroupLag, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, ageFetchTimeout)
	defer cancel()
	for pending := behind(lags); len(pending) > 0; {
		round := map[string]map[int32]kgo.Offset{}
		var later []*GroupLag
		for _, l := range pending {
			if !l.read(round) {
				later = append(later, l) // another group stands elsewhere in the same partition
			}
		}
		times, err := firstTimestamps(ctx, client, round)
		if err != nil {
			return fmt.Errorf("read the oldest uncommitted records: %w", err)
		}
		for _, l := range pending {
			if at, ok := times[place{l.Topic, l.Partition, l.next()}]; ok && l.Seconds == nil {
				age := max(now.Sub(at).Seconds(), 0)
				l.Seconds = &age
			}
		}
		pending = later
	}
	return nil
}

func behind(lags []GroupLag) (out []*GroupLag) {
	for i := range lags {
		if l := &lags[i]; l.Records != nil && *l.Records > 0 {
			out = append(out, l)
		}
	}
	return out
}

// next is the offset of the oldest uncommitted record.
func (l *GroupLag) next() int64 { return max(l.Committed, l.Start) }

// read adds the lag's place to a round of reads; false means that the round reads this partition at another offset.
func (l *GroupLag) read(round map[string]map[int32]kgo.Offset) bool {
	offset := kgo.NewOffset().At(l.next())
	if round[l.Topic] == nil {
		round[l.Topic] = map[int32]kgo.Offset{}
	}
	if taken, ok := round[l.Topic][l.Partition]; ok {
		return taken == offset
	}
	round[l.Topic][l.Partition] = offset
	return true
}

type place struct {
	topic     string
	partition int32
	offset    int64
}

// firstTimestamps reads the time of the first record at or after each offset; those that do not come in time are left out.
func firstTimestamps(ctx context.Context, client *kgo.Client, round map[string]map[int32]kgo.Offset) (map[place]time.Time, error) {
	reader, err := kgo.NewClient(append(client.Opts(), kgo.FetchMaxPartitionBytes(1), kgo.ConsumePartitions(round))...)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	wanted := map[string]map[int32]int64{}
	n := 0
	for topic, partitions := range round {
		wanted[topic] = map[int32]int64{}
		for p, o := range partitions {
			wanted[topic][p] = o.EpochOffset().Offset
			n++
		}
	}
	out := map[place]time.Time{}
	for len(out) < n {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			return out, nil
		}
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) > 0 {
				out[place{p.Topic, p.Partition, wanted[p.Topic][p.Partition]}] = p.Records[0].Timestamp
				reader.PauseFetchPartitions(map[string][]int32{p.Topic: {p.Partition}})
			}
		})
	}
	return out, nil
}

// A GroupTotal sums up a group.
type GroupTotal struct {
	Group, State   string
	Records        int64
	Seconds        float64
	NeverCommitted int
}

// Totals adds up the partitions of each group; the time lag of a group is the largest of its partitions.
func Totals(lags []GroupLag) []GroupTotal {
	byGroup := map[string]*GroupTotal{}
	for _, l := range lags {
		t := byGroup[l.Group]
		if t == nil {
			t = &GroupTotal{Group: l.Group, State: l.State}
			byGroup[l.Group] = t
		}
		if l.Partition < 0 {
			continue
		}
		if l.Records == nil {
			t.NeverCommitted++
			continue
		}
		t.Records += *l.Records
		if l.Seconds != nil {
			t.Seconds = max(t.Seconds, *l.Seconds)
		}
	}
	out := make([]GroupTotal, 0, len(byGroup))
	for _, t := range byGroup {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b GroupTotal) int { return cmp.Compare(a.Group, b.Group) })
	return out
}
