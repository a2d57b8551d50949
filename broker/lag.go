package broker

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

// lag is how far a group is behind in one partition.
type lag struct {
	group, topic string
	partition    int32
	records      int64
	// age of the oldest record that is not committed; not known if its batch
	// carries no timestamp or cannot be read.
	age      time.Duration
	ageKnown bool
}

// lagReader works out lags from committed offsets and the logs themselves, so
// that they are known while no consumer runs. A lag that cannot be told truly
// is left out: a partition that is not led here, an offset of an earlier topic
// of the same name, a commit beyond the high watermark.
type lagReader struct {
	partitions *replica.Partitions

	mu sync.Mutex // guards times
	// times remembers the timestamp of the batch that holds an offset, which
	// is asked for again until the group moves on.
	times map[batchKey]int64
}

type batchKey struct {
	partition *replica.Partition
	offset    int64
}

func newLagReader(partitions *replica.Partitions) *lagReader {
	return &lagReader{partitions: partitions}
}

func (r *lagReader) read(views []group.View, now time.Time) []lag {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := make(map[batchKey]int64, len(r.times))
	var out []lag
	for _, v := range views {
		for _, committed := range v.Offsets {
			if l, ok := r.lagOf(committed, now, fresh); ok {
				l.group = v.Group
				out = append(out, l)
			}
		}
	}
	r.times = fresh
	return out
}

func (r *lagReader) lagOf(committed group.Offset, now time.Time, fresh map[batchKey]int64) (lag, bool) {
	l := lag{topic: committed.Topic, partition: committed.Partition}
	p := r.partitions.Get(committed.Topic, committed.Partition)
	if p == nil || p.Err() != nil {
		return l, false
	}
	if committed.TopicID != [16]byte{} && committed.TopicID != p.TopicID() {
		return l, false
	}
	end := p.HighWatermark()
	// What retention has removed cannot be read any more, and is not waited for.
	next := max(committed.Offset, p.Log().StartOffset())
	if committed.Offset < 0 || next > end {
		return l, false
	}
	l.records = end - next
	if l.records == 0 {
		l.ageKnown = true
		return l, true
	}
	ms, err := r.timestamp(batchKey{p, next}, fresh)
	if err == nil && ms >= 0 {
		l.age, l.ageKnown = max(now.Sub(time.UnixMilli(ms)), 0), true
	}
	return l, true
}

func (r *lagReader) timestamp(key batchKey, fresh map[batchKey]int64) (int64, error) {
	ms, known := r.times[key]
	if !known {
		var err error
		if ms, err = batchTimestamp(key.partition, key.offset); err != nil {
			return 0, err
		}
	}
	fresh[key] = ms
	return ms, nil
}

var errNoBatch = errors.New("no batch at the offset")

// batchTimestamp is the time, in ms, of the batch that holds the first record at
// or after an offset. It reads the batch's header only.
func batchTimestamp(p *replica.Partition, offset int64) (int64, error) {
	region, err := p.Read(offset, 1, true)
	if err != nil {
		return 0, err
	}
	defer region.Release()
	if region.Len < record.HeaderBytes {
		return 0, errNoBatch
	}
	header := make(record.Batch, record.HeaderBytes)
	if _, err := region.File.ReadAt(header, region.Pos); err != nil {
		return 0, err
	}
	if _, marked := header.DeleteHorizon(); marked || header.IsLogAppendTime() {
		return header.MaxTimestamp(), nil
	}
	return header.BaseTimestamp(), nil
}

func partitionLabel(p int32) string { return strconv.Itoa(int(p)) }
