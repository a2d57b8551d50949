package sinks

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/sluice-io/sluice/pipelines"
)

// memSink is a destination in memory, which can fail on demand.
type memSink struct {
	drops bool // remembers identities, as a table with a dedup window
	blind bool // does not know which topic a row is of

	mu    sync.Mutex
	seen  map[string]bool
	rows  map[int32]map[int64]int // how often each offset is stored
	ids   map[memRow]bool         // which topic each row is of
	value map[string]int          // how often each value is stored
	// fail is asked before and after each write takes effect; an error is returned to the writer.
	fail  func(b *Batch, stored bool) error
	check func() error
}

func newMemSink(drops bool) *memSink {
	return &memSink{drops: drops, seen: map[string]bool{}, rows: map[int32]map[int64]int{}, ids: map[memRow]bool{}, value: map[string]int{}}
}

// memRow is a row as a destination that knows topics by ID has it.
type memRow struct {
	topic     TopicID
	partition int32
	offset    int64
}

type memBlock struct {
	offsets []int64
	values  []string
}

func (b *memBlock) Append(e *pipelines.Event) error {
	if string(e.Raw) == "bad" {
		return &RejectError{Column: "c", Err: fmt.Errorf("it is bad: %w", pipelines.ErrRange)}
	}
	b.offsets = append(b.offsets, e.Meta.Offset)
	b.values = append(b.values, string(e.Raw))
	return nil
}
func (b *memBlock) Rows() int    { return len(b.offsets) }
func (b *memBlock) Bytes() int64 { return int64(8 * len(b.offsets)) }
func (b *memBlock) Reset()       { b.offsets, b.values = b.offsets[:0], b.values[:0] }

func (s *memSink) Check(context.Context) (Destination, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.check != nil {
		if err := s.check(); err != nil {
			return Destination{}, err
		}
	}
	return Destination{Server: "memory", Schema: "s1", DropsRepeats: s.drops}, nil
}

func (s *memSink) NewBlock() (Block, error) { return &memBlock{}, nil }
func (s *memSink) Close() error             { return nil }

func (s *memSink) Stored(_ context.Context, c Claim) (Stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored := Stored{Max: -1, MaxUnknown: -1, Mend: "say which topic they are of"}
	has := func(offset int64) bool {
		return s.blind && s.rows[c.Partition][offset] > 0 || s.ids[memRow{c.TopicID, c.Partition, offset}]
	}
	for offset := range s.rows[c.Partition] {
		if has(offset) {
			stored.Max = max(stored.Max, offset)
		}
	}
	if s.blind {
		stored.MaxUnknown = stored.Max
	}
	for offset := c.Lo; offset <= c.Hi; offset++ {
		if has(offset) {
			stored.Present = append(stored.Present, Range{offset, offset})
		}
	}
	return stored, nil
}

func (s *memSink) Write(ctx context.Context, b *Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.fail != nil {
		if err := s.fail(b, false); err != nil {
			return err
		}
	}
	s.put(b)
	if s.fail != nil {
		return s.fail(b, true)
	}
	return nil
}

func (s *memSink) put(b *Batch) {
	if s.drops && s.seen[b.Identity] {
		return
	}
	s.seen[b.Identity] = true
	s.putSome(b, b.Block.Rows())
}

// putSome stores the first n rows of a batch and remembers nothing of it, as a write that is cut short may.
func (s *memSink) putSome(b *Batch, n int) {
	rows := s.rows[b.Claim.Partition]
	if rows == nil {
		rows = map[int64]int{}
		s.rows[b.Claim.Partition] = rows
	}
	block := b.Block.(*memBlock)
	for i, offset := range block.offsets[:n] {
		rows[offset]++
		s.ids[memRow{b.Claim.TopicID, b.Claim.Partition, offset}] = true
		s.value[block.values[i]]++
	}
}

// total is the number of rows stored.
func (s *memSink) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, times := range s.value {
		n += times
	}
	return n
}

func parsePipeline(t testing.TB, yaml string) *pipelines.Pipeline {
	t.Helper()
	pipes, err := pipelines.Parse("test.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return pipes[0]
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
