package sinks

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The headers that make a record a dead letter. Those of a sink name topic, partition and offset, those of an agent path and place in the file.
const (
	headerLetter    = "dlq_"
	headerReason    = "dlq_reason"
	headerKind      = "dlq_kind"
	headerStage     = "dlq_stage"
	headerTopic     = "dlq_topic"
	headerTopicID   = "dlq_topic_id"
	headerPartition = "dlq_partition"
	headerOffset    = "dlq_offset"
	headerTimestamp = "dlq_timestamp"
	headerKey       = "dlq_key"
	headerPath      = "dlq_path"
)

// Letter is a dead letter as it lies in its topic.
type Letter struct {
	Key    string    // names the origin: repeats of a letter share it
	At     time.Time // when it was written
	Stage  string
	Kind   string
	Reason string
	Path   string // of the file, where an agent wrote it; the fields below are not set then

	Topic   string
	TopicID TopicID     // zero in letters of before it was noted
	Record  *kgo.Record // as it was in its topic: bytes, key, headers, timestamp, partition and offset
}

// OfRecord says that the letter is of a record of a topic, which can be stored again.
func (l *Letter) OfRecord() bool { return l.Record != nil }

// readLetter makes a letter of what lies in a dead-letter topic; ok is false for what is none.
func readLetter(r *kgo.Record) (l Letter, ok bool) {
	l = Letter{Key: string(r.Key), At: r.Timestamp}
	record := &kgo.Record{Value: r.Value, Timestamp: r.Timestamp, LeaderEpoch: -1}
	var partition, offset string
	for _, h := range r.Headers {
		value := string(h.Value)
		switch h.Key {
		case headerReason:
			l.Reason = value
		case headerKind:
			l.Kind = value
		case headerStage:
			l.Stage = value
		case headerPath:
			l.Path = value
		case headerTopic:
			l.Topic, record.Topic = value, value
		case headerTopicID:
			l.TopicID, _ = ParseTopicID(value)
		case headerPartition:
			partition = value
		case headerOffset:
			offset = value
		case headerTimestamp:
			if ms, err := strconv.ParseInt(value, 10, 64); err == nil {
				record.Timestamp = time.UnixMilli(ms)
			}
		case headerKey:
			record.Key = h.Value
		default:
			if !strings.HasPrefix(h.Key, headerLetter) {
				record.Headers = append(record.Headers, h)
			}
		}
	}
	p, err := strconv.ParseInt(partition, 10, 32)
	o, err2 := strconv.ParseInt(offset, 10, 64)
	if l.Topic != "" && err == nil && err2 == nil {
		record.Partition, record.Offset = int32(p), o
		l.Record = record
	}
	return l, l.Reason != ""
}

// ReadLetters reads a dead-letter topic from its start to the end that it has now, in the order of each partition.
func ReadLetters(ctx context.Context, client *kgo.Client, topic string, each func(Letter) error) error {
	return readRange(ctx, client, topic, nil, nil, func(_ int32, records []*kgo.Record) error {
		for _, r := range records {
			if l, ok := readLetter(r); ok {
				if err := each(l); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// readRange reads the partitions of a topic from the offsets in from, or the log's start, up to those in to, or the committed end; partitions that are not in from are
// left out, unless from is nil. Control records are handed over too.
func readRange(ctx context.Context, client *kgo.Client, topic string, from, to map[int32]int64, each func(int32, []*kgo.Record) error) error {
	admin := kadm.NewClient(client)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return fmt.Errorf("ask for the start of topic %s: %w", topic, err)
	}
	ends, err := admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("ask for the end of topic %s: %w", topic, err)
	}
	offsets, until := map[int32]kgo.Offset{}, map[int32]int64{}
	for p, start := range starts[topic] {
		first, wanted := from[p]
		if from != nil && !wanted {
			continue
		}
		first = max(first, start.Offset)
		end := ends[topic][p].Offset
		if limit, ok := to[p]; ok {
			end = min(end, limit)
		}
		if first < end {
			offsets[p], until[p] = kgo.NewOffset().At(first), end
		}
	}
	if len(until) == 0 {
		return nil
	}
	reader, err := kgo.NewClient(append(client.Opts(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxBytes(8<<20), kgo.FetchMaxPartitionBytes(4<<20))...)
	if err != nil {
		return err
	}
	defer reader.Close()
	return pollUntil(ctx, reader, topic, until, each)
}

// pollUntil hands over the records below each partition's end.
func pollUntil(ctx context.Context, reader *kgo.Client, topic string, until map[int32]int64, each func(int32, []*kgo.Record) error) (err error) {
	for len(until) > 0 && err == nil {
		fetches := reader.PollRecords(ctx, pollRecordsMax)
		if err := fetches.Err0(); err != nil {
			return err
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("read topic %s, partition %d: %w", e.Topic, e.Partition, e.Err)
		}
		fetches.EachPartition(func(f kgo.FetchTopicPartition) {
			end, ok := until[f.Partition]
			if !ok || err != nil || len(f.Records) == 0 {
				return
			}
			n := len(f.Records)
			last := f.Records[n-1].Offset
			for n > 0 && f.Records[n-1].Offset >= end {
				n--
			}
			err = each(f.Partition, f.Records[:n])
			if last >= end-1 {
				delete(until, f.Partition)
				reader.PauseFetchPartitions(map[string][]int32{topic: {f.Partition}})
			}
		})
	}
	return err
}
