package clickhouse

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-io/sluice/sinks"
)

// A worker that is given partitions asks for the largest offset of each at the same moment, and each answer is a pass over the table. So questions that come while
// one is asked wait, and are asked together as the next: an answer is never older than its question. Safe for concurrent use.
type largest struct {
	mu      sync.Mutex // guards what follows
	asking  bool
	waiting map[largestKey]*largestQuestion
}

// largestKey is what questions that are asked together have in common.
type largestKey struct {
	table   *table
	topic   string
	topicID sinks.TopicID
}

// largestQuestion is one question for several partitions.
type largestQuestion struct {
	partitions []int32       // changed only while it waits
	done       chan struct{} // closed when answers and err are set
	answers    map[int32]largestOffsets
	err        error
}

// largestOffsets are those of a partition; -1: none.
type largestOffsets struct {
	all     int64
	unknown int64 // among rows that do not say which topic they are of
}

// askTimeout bounds one question.
const askTimeout = 10 * time.Second

// largestOf asks what the table holds of the claim's partition.
func (s *Sink) largestOf(ctx context.Context, t *table, c sinks.Claim) (largestOffsets, error) {
	l := &s.largest
	key := largestKey{t, c.Topic, c.TopicID}
	l.mu.Lock()
	q := l.waiting[key]
	if q == nil {
		q = &largestQuestion{done: make(chan struct{})}
		if l.waiting == nil {
			l.waiting = map[largestKey]*largestQuestion{}
		}
		l.waiting[key] = q
	}
	q.partitions = append(q.partitions, c.Partition)
	if !l.asking {
		l.asking = true
		go s.askLargest()
	}
	l.mu.Unlock()
	select {
	case <-q.done:
	case <-ctx.Done():
		return largestOffsets{-1, -1}, ctx.Err()
	}
	if found, ok := q.answers[c.Partition]; ok || q.err != nil {
		return found, q.err
	}
	return largestOffsets{-1, -1}, nil
}

// askLargest asks until nobody waits.
func (s *Sink) askLargest() {
	l := &s.largest
	for {
		l.mu.Lock()
		questions := l.waiting
		l.waiting = nil
		l.asking = len(questions) > 0
		l.mu.Unlock()
		if len(questions) == 0 {
			return
		}
		for key, q := range questions {
			q.answers, q.err = s.readLargest(key, q.partitions)
			close(q.done)
		}
	}
}

func (s *Sink) readLargest(key largestKey, partitions []int32) (answers map[int32]largestOffsets, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	where, unknown := key.table.rowsOf(key.topic, key.topicID)
	var among []string
	for _, p := range partitions {
		among = append(among, strconv.Itoa(int(p)))
	}
	statement := fmt.Sprintf("SELECT toString(%[1]s), toString(toInt64(max(%[2]s))), toString(if(countIf(%[3]s) = 0, -1, toInt64(maxIf(%[2]s, %[3]s))))%[4]s AND %[1]s IN (%[5]s) GROUP BY %[1]s",
		quoteName(columnPartition), quoteName(columnOffset), unknown, where, strings.Join(slices.Compact(slices.Sorted(slices.Values(among))), ", "))
	err = s.with(ctx, partitions[0], func(conn transport) error {
		if err := s.catchUp(ctx, conn, key.table); err != nil {
			return err
		}
		rows, err := conn.query(ctx, statement, 3, readSettings)
		answers = make(map[int32]largestOffsets, len(rows))
		for _, row := range rows {
			var of [3]int64
			for i := range row {
				if of[i], err = strconv.ParseInt(row[i], 10, 64); err != nil {
					return fmt.Errorf("read the largest offset: %w", err)
				}
			}
			answers[int32(of[0])] = largestOffsets{of[1], of[2]}
		}
		return err
	})
	return answers, err
}
