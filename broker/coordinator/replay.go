package coordinator

import (
	"fmt"

	"github.com/sluice-io/sluice/internal/record"
)

// replay feeds the machine every record of the log, from its start to its end as it is now, and
// returns that end. It reads without the shard's mutex: only the election that began it writes m.
func (s *Shard[M]) replay(term int64, part Log, m M) (end int64, err error) {
	offset, end, err := part.Bounds()
	if err != nil {
		return 0, fmt.Errorf("replay coordinator log: %w", err)
	}
	d := record.NewDecompressor(0)
	for offset < end && s.current(term) {
		buf, err := part.Read(offset, loadBytesMax)
		if err != nil {
			return 0, fmt.Errorf("replay coordinator log at offset %d: %w", offset, err)
		}
		next, err := replayBatches(buf, offset, end, d, m)
		if err != nil {
			return 0, err
		}
		if next == offset { // nothing left: compaction took the last batches
			break
		}
		offset = next
	}
	return end, nil
}

// current says whether the leadership that began a load still stands, so that a load that has
// become void stops early.
func (s *Shard[M]) current(term int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term == term
}

// replayBatches replays the records of buf from offset (inclusive) to end (exclusive), and returns
// the offset after its last batch.
func replayBatches(buf []byte, offset, end int64, d *record.Decompressor, m Machine) (int64, error) {
	for len(buf) > 0 {
		b, rest, err := record.Next(buf)
		if err != nil {
			return 0, fmt.Errorf("replay coordinator batch after offset %d: %w", offset, err)
		}
		if err := replayBatch(b, offset, end, d, m); err != nil {
			return 0, err
		}
		buf, offset = rest, max(offset, b.LastOffset()+1)
	}
	return offset, nil
}

func replayBatch(b record.Batch, from, end int64, d *record.Decompressor, m Machine) error {
	if b.IsControl() { // markers say nothing about groups
		return nil
	}
	if err := b.CheckCRC(); err != nil {
		return fmt.Errorf("replay coordinator batch at offset %d: %w", b.BaseOffset(), err)
	}
	err := b.Each(d, func(r *record.Record) error {
		if r.Offset < from || r.Offset >= end {
			return nil
		}
		return m.Replay(r)
	})
	if err != nil {
		return fmt.Errorf("replay coordinator batch at offset %d: %w", b.BaseOffset(), err)
	}
	return nil
}
