package admin

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/sinks"
)

// Where is what a reset aims at.
type Where uint8

// The aims.
const (
	ToEarliest Where = iota
	ToLatest
	ToOffset // Position.Offset
	ShiftBy  // Position.Offset from where the group is, either way
	ToTime   // the first record at or after Position.Time
)

// Position says where a group shall stand.
type Position struct {
	Where  Where
	Offset int64
	Time   time.Time
}

// A Scope says which partitions of a topic are meant; none means all.
type Scope struct {
	Topic      string
	Partitions []int32
}

// An OffsetMove is a commit that takes the place of another.
type OffsetMove struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"` // -1: never committed
	To        int64  `json:"to"`
	Start     int64  `json:"start"`
	End       int64  `json:"end"`
	// Bounded says that the position asked for is not in the log, and To is the nearest that is.
	Bounded bool `json:"bounded,omitempty"`
	// Claim is what a sink left open: some of it may be stored.
	Claim *OpenClaim `json:"claim,omitempty"`

	metadata string
}

// PlanReset says what a reset would commit, of the scopes or of all partitions that the group committed. It refuses a group that has members.
func PlanReset(ctx context.Context, client *kgo.Client, group string, to Position, scopes []Scope) ([]OffsetMove, error) {
	exists, err := emptyGroup(ctx, client, group)
	if err != nil {
		return nil, err
	}
	if !exists && len(scopes) == 0 {
		return nil, fmt.Errorf("group %s: %w; name a topic to give a new group its position", group, kerr.GroupIDNotFound)
	}
	commits, err := commitsOf(ctx, client, []Group{{Name: group}})
	if err != nil {
		return nil, err
	}
	r := resetting{position: to, commits: commits[group]}
	topics := scopeTopics(scopes, r.commits)
	if len(topics) == 0 {
		return nil, fmt.Errorf("group %s has no commits; name a topic to give it a position", group)
	}
	if err := r.learn(ctx, client, topics); err != nil {
		return nil, err
	}
	return r.plan(scopes, topics)
}

func scopeTopics(scopes []Scope, commits kadm.OffsetResponses) (topics []string) {
	for _, s := range scopes {
		topics = append(topics, s.Topic)
	}
	if len(scopes) == 0 {
		for topic := range commits {
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// resetting is what a plan is made of.
type resetting struct {
	position Position
	commits  kadm.OffsetResponses
	bounds   bounds
	times    kadm.ListedOffsets // with ToTime
	ids      map[string]kadm.TopicID
}

func (r *resetting) learn(ctx context.Context, client *kgo.Client, topics []string) (err error) {
	if r.bounds, err = boundsOf(ctx, client, topics); err != nil {
		return err
	}
	admin := kadm.NewClient(client)
	if r.position.Where == ToTime {
		millis := max(r.position.Time.UnixMilli(), 0) // below zero they have other meanings, such as the end
		if r.times, err = admin.ListOffsetsAfterMilli(ctx, millis, topics...); err != nil {
			return fmt.Errorf("list offsets by time: %w", err)
		}
	}
	described, err := admin.ListTopics(ctx, topics...)
	if err != nil {
		return fmt.Errorf("describe the topics: %w", err)
	}
	r.ids = map[string]kadm.TopicID{}
	for _, t := range described {
		r.ids[t.Topic] = t.ID
	}
	return nil
}

func (r *resetting) plan(scopes []Scope, topics []string) (out []OffsetMove, err error) {
	if len(scopes) > 0 {
		for _, s := range scopes {
			for p := range r.bounds.ends[s.Topic] {
				if len(s.Partitions) == 0 || slices.Contains(s.Partitions, p) {
					out = append(out, OffsetMove{Topic: s.Topic, Partition: p})
				}
			}
			for _, p := range s.Partitions {
				if _, ok := r.bounds.ends.Lookup(s.Topic, p); !ok {
					return nil, fmt.Errorf("topic %s has no partition %d: %w", s.Topic, p, kerr.UnknownTopicOrPartition)
				}
			}
		}
	} else {
		for _, topic := range topics {
			for p := range r.commits[topic] {
				out = append(out, OffsetMove{Topic: topic, Partition: p})
			}
		}
	}
	slices.SortFunc(out, func(a, b OffsetMove) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	out = slices.CompactFunc(out, func(a, b OffsetMove) bool { return a.Topic == b.Topic && a.Partition == b.Partition })
	for i := range out {
		if err := r.aim(&out[i]); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", out[i].Topic, out[i].Partition, err)
		}
	}
	return out, nil
}

// aim fills in where the partition stands and where it goes.
func (r *resetting) aim(m *OffsetMove) error {
	start, ok := r.bounds.starts.Lookup(m.Topic, m.Partition)
	end, endOK := r.bounds.ends.Lookup(m.Topic, m.Partition)
	switch {
	case !ok || !endOK:
		return fmt.Errorf("%w; the topic may be gone: name the topics that shall be reset", kerr.UnknownTopicOrPartition)
	case start.Err != nil:
		return start.Err
	case end.Err != nil:
		return end.Err
	}
	m.From, m.Start, m.End = -1, start.Offset, end.Offset
	commit, committed := r.commits.Lookup(m.Topic, m.Partition)
	if committed && commit.Err != nil {
		return fmt.Errorf("fetch its commit: %w", commit.Err)
	}
	if committed {
		m.From = commit.At
	}
	to, err := r.target(m)
	if err != nil {
		return err
	}
	m.To = min(max(to, m.Start), m.End)
	m.Bounded = m.To != to
	m.annotate(commit.Metadata, sinks.TopicID(r.ids[m.Topic]))
	return nil
}

func (r *resetting) target(m *OffsetMove) (int64, error) {
	switch r.position.Where {
	case ToEarliest:
		return m.Start, nil
	case ToLatest:
		return m.End, nil
	case ToOffset:
		return r.position.Offset, nil
	case ShiftBy:
		if m.From < 0 {
			return 0, errors.New("the group never committed here, so there is nothing to shift; reset it to a position first")
		}
		return m.From + r.position.Offset, nil
	}
	at, ok := r.times.Lookup(m.Topic, m.Partition)
	switch {
	case !ok:
		return 0, kerr.UnknownTopicOrPartition
	case at.Err != nil:
		return 0, at.Err
	case at.Offset < 0:
		return m.End, nil // no record is as late
	}
	return at.Offset, nil
}

// annotate carries what a sink's commit vouches for over to the new one: that the destination holds no rows of an earlier topic at or above it.
// That stays true further ahead. Further back nobody knows, so the sink has to ask the destination; nor does a commit vouch for a topic made later.
func (m *OffsetMove) annotate(before string, topic sinks.TopicID) {
	note, ok := sinks.ParseCommitNote(before)
	if !ok {
		return
	}
	m.Claim = openClaim(m.From, note)
	if m.To >= m.From && note.TopicID == topic {
		m.metadata = sinks.ClosedMetadata(topic)
	}
}

// CommitMoves commits what was planned. A broker refuses it when a member has joined meanwhile.
func CommitMoves(ctx context.Context, client *kgo.Client, group string, moves []OffsetMove) error {
	offsets := kadm.Offsets{}
	for _, m := range moves {
		offsets.Add(kadm.Offset{Topic: m.Topic, Partition: m.Partition, At: m.To, LeaderEpoch: -1, Metadata: m.metadata})
	}
	err := kadm.NewClient(client).CommitAllOffsets(ctx, group, offsets)
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.StaleMemberEpoch) {
		return fmt.Errorf("group %s got a member meanwhile: stop its members and try again: %w", group, err)
	}
	if err != nil {
		return fmt.Errorf("commit offsets of group %s: %w", group, err)
	}
	return nil
}

// A SkippedRecord is the record that a group is made to pass over.
type SkippedRecord struct {
	Offset  int64     `json:"offset"`
	Time    time.Time `json:"time"`
	Key     string    `json:"key,omitempty"`
	Value   string    `json:"value"`
	Headers []string  `json:"headers,omitempty"` // name=value
	// Base64 says that key, value and the headers' values are written so, since one of them is no text.
	Base64 bool `json:"base64,omitempty"`
}

// skipFetchTimeout bounds the wait for the record that is skipped.
const skipFetchTimeout = 10 * time.Second

// PlanSkip reads the record at which the group stands, and plans the commit behind it.
func PlanSkip(ctx context.Context, client *kgo.Client, group, topic string, partition int32) (OffsetMove, SkippedRecord, error) {
	moves, err := PlanReset(ctx, client, group, Position{Where: ShiftBy, Offset: 1}, []Scope{{Topic: topic, Partitions: []int32{partition}}})
	if err != nil {
		return OffsetMove{}, SkippedRecord{}, err
	}
	m := moves[0]
	from := max(m.From, m.Start)
	if from >= m.End {
		return m, SkippedRecord{}, fmt.Errorf("%s:%d: group %s is at the end, offset %d: there is no record to skip", topic, partition, group, m.End)
	}
	record, err := readRecord(ctx, client, topic, partition, from)
	if err != nil {
		return m, SkippedRecord{}, fmt.Errorf("%s:%d: read the record at offset %d: %w", topic, partition, from, err)
	}
	m.To, m.Bounded = record.Offset+1, false // offsets before it may be absent (compaction, control records)
	return m, skipped(record), nil
}

// readRecord reads the first record at or after the offset.
func readRecord(ctx context.Context, client *kgo.Client, topic string, partition int32, offset int64) (*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, skipFetchTimeout)
	defer cancel()
	at := map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(offset)}}
	reader, err := kgo.NewClient(append(client.Opts(), kgo.FetchMaxPartitionBytes(1), kgo.ConsumePartitions(at))...)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	for {
		fetches := reader.PollRecords(ctx, 1)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		if records := fetches.Records(); len(records) > 0 {
			return records[0], nil
		}
	}
}

func skipped(r *kgo.Record) SkippedRecord {
	plain := utf8.Valid(r.Key) && utf8.Valid(r.Value)
	for _, h := range r.Headers {
		plain = plain && utf8.Valid(h.Value)
	}
	text := func(b []byte) string {
		if plain {
			return string(b)
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	s := SkippedRecord{Offset: r.Offset, Time: r.Timestamp.UTC(), Key: text(r.Key), Value: text(r.Value), Base64: !plain}
	for _, h := range r.Headers {
		s.Headers = append(s.Headers, h.Key+"="+text(h.Value))
	}
	return s
}
