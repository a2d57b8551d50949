// Package admin is the logic behind the administration commands. It works through the Kafka protocol only, so it works on
// any Kafka; what it returns has JSON tags, since the commands print it with --json as it is.
package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/sinks"
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
	// Claim is the range that a sink of ours is writing, or was when it ended. Its records count as not committed.
	Claim *OpenClaim `json:"claim,omitempty"`
	// Metadata is what another program wrote with its commit.
	Metadata string `json:"metadata,omitempty"`
}

// Lag returns the lag of the groups, of all groups if none is named, by group, topic and partition. A group that has no partition, by
// commit or by its members' subscriptions, has one entry with Partition -1, so that it is seen.
func Lag(ctx context.Context, client *kgo.Client, now time.Time, names ...string) ([]GroupLag, error) {
	groups, err := Groups(ctx, client, names...)
	if err != nil {
		return nil, err
	}
	return LagOf(ctx, client, now, groups)
}

// LagOf is Lag of groups that are described already.
func LagOf(ctx context.Context, client *kgo.Client, now time.Time, groups []Group) ([]GroupLag, error) {
	out := []GroupLag{}
	if len(groups) == 0 {
		return out, nil
	}
	commits, err := commitsOf(ctx, client, groups)
	if err != nil {
		return nil, err
	}
	bounds, err := boundsOf(ctx, client, topicsOf(groups, commits))
	if err != nil {
		return nil, err
	}
	for i := range groups {
		out = append(out, groupLag(&groups[i], commits[groups[i].Name], bounds)...)
	}
	if err := addAges(ctx, client, out, now); err != nil {
		return nil, err
	}
	return out, nil
}

func commitsOf(ctx context.Context, client *kgo.Client, groups []Group) (map[string]kadm.OffsetResponses, error) {
	var names []string
	for _, g := range groups {
		names = append(names, g.Name)
	}
	out := map[string]kadm.OffsetResponses{}
	for name, fetched := range kadm.NewClient(client).FetchManyOffsets(ctx, names...) {
		if fetched.Err != nil {
			return nil, fmt.Errorf("group %s: fetch its commits: %w", name, fetched.Err)
		}
		out[name] = fetched.Fetched
	}
	return out, nil
}

// topicsOf are the topics that the groups commit to or subscribe to.
func topicsOf(groups []Group, commits map[string]kadm.OffsetResponses) []string {
	topics := map[string]bool{}
	for i := range groups {
		for topic := range groupTopics(&groups[i], commits[groups[i].Name]) {
			topics[topic] = true
		}
	}
	return slices.Sorted(maps.Keys(topics))
}

func groupTopics(g *Group, commits kadm.OffsetResponses) map[string]bool {
	topics := map[string]bool{}
	for topic := range commits {
		topics[topic] = true
	}
	for _, m := range g.Members {
		for _, topic := range m.Topics {
			topics[topic] = true
		}
		for topic := range m.Assigned {
			topics[topic] = true
		}
	}
	return topics
}

// bounds are the first offset of each partition and the one after its last. Topics that are gone have none.
type bounds struct{ starts, ends kadm.ListedOffsets }

func boundsOf(ctx context.Context, client *kgo.Client, topics []string) (b bounds, err error) {
	if len(topics) == 0 {
		return b, nil // without a name all topics would be listed
	}
	admin := kadm.NewClient(client)
	if b.starts, err = admin.ListStartOffsets(ctx, topics...); err != nil {
		return b, fmt.Errorf("list start offsets: %w", err)
	}
	if b.ends, err = admin.ListEndOffsets(ctx, topics...); err != nil {
		return b, fmt.Errorf("list end offsets: %w", err)
	}
	return b, nil
}

func groupLag(g *Group, commits kadm.OffsetResponses, b bounds) (out []GroupLag) {
	members := map[string]map[int32]string{}
	for _, m := range g.Members {
		for topic, partitions := range m.Assigned {
			for _, p := range partitions {
				if members[topic] == nil {
					members[topic] = map[int32]string{}
				}
				members[topic][p] = m.ClientID
			}
		}
	}
	for topic := range groupTopics(g, commits) {
		for p, end := range b.ends[topic] {
			start, ok := b.starts.Lookup(topic, p)
			if end.Err != nil || !ok || start.Err != nil {
				continue // the topic is not there yet, or no more
			}
			lag := GroupLag{Group: g.Name, State: g.State, Topic: topic, Partition: p, Committed: -1, Start: start.Offset, End: end.Offset,
				Member: members[topic][p]}
			if commit, ok := commits.Lookup(topic, p); ok && commit.Err == nil {
				lag.commit(commit.Offset)
			}
			out = append(out, lag)
		}
	}
	if len(out) == 0 {
		out = append(out, GroupLag{Group: g.Name, State: g.State, Partition: -1, Committed: -1})
	}
	slices.SortFunc(out, func(a, b GroupLag) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}

func (l *GroupLag) commit(o kadm.Offset) {
	l.Committed = o.At
	if o.At < 0 {
		return
	}
	if note, ok := sinks.ParseCommitNote(o.Metadata); ok {
		l.Claim = openClaim(o.At, note)
	} else {
		l.Metadata = o.Metadata
	}
	// A commit can lie ahead of the end or behind the start when the topic was made again or records were removed.
	records := max(l.End-max(l.Committed, l.Start), 0)
	l.Records = &records
	l.Lost = max(l.Start-l.Committed, 0)
	if records == 0 {
		l.Seconds = new(float64)
	}
}

// An OpenClaim is what a sink said with its commit: it is writing these offsets, and whoever has the partition next finds out what of them is
// stored before it goes on.
type OpenClaim struct {
	Lo      int64  `json:"lo"`
	Hi      int64  `json:"hi"` // inclusive
	Epoch   int32  `json:"epoch"`
	TopicID string `json:"topic_id"`
	Schema  string `json:"schema"`
	Server  string `json:"server"`
}

func openClaim(lo int64, note sinks.CommitNote) *OpenClaim {
	if !note.Claim {
		return nil
	}
	return &OpenClaim{Lo: lo, Hi: note.Hi, Epoch: note.Epoch, TopicID: note.TopicID.String(), Schema: note.Schema, Server: note.Server}
}

// String is the claim for a table.
func (c *OpenClaim) String() string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("[%d,%d] open at %s", c.Lo, c.Hi, c.Server)
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
