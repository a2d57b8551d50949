package cluster

import (
	"context"
	"errors"
	"fmt"
)

// producerIDBlock is how many producer ids a broker takes at once, as Kafka.
const producerIDBlock = 1000

// AllocateProducerIDs takes the next block of producer ids for this broker,
// durably, and returns its first and the number of ids in it. No id is ever
// given twice: each block is taken over the version of the one before, and one
// whose answer was lost is left out.
func (m *Member) AllocateProducerIDs(ctx context.Context) (first int64, count int64, err error) {
	for range triesMax {
		var op Op
		if first, op, err = m.nextProducerIDs(ctx); err == nil {
			err = m.store.Txn(ctx, op)
		}
		if err == nil {
			return first, producerIDBlock, nil
		}
		if !overtaken(err) {
			break
		}
		// Another broker was faster, or the answer was lost.
	}
	return 0, 0, fmt.Errorf("allocate producer ids: %w", err)
}

func (m *Member) nextProducerIDs(ctx context.Context) (int64, Op, error) {
	block := func(first int64) []byte {
		return producerIDsNode(m.self.Broker.ID, first, first+producerIDBlock-1)
	}
	data, stat, err := m.store.Get(ctx, producerIDsPath)
	if errors.Is(err, ErrNoNode) {
		return 0, Create(producerIDsPath, block(0)), nil
	}
	if err != nil {
		return 0, Op{}, err
	}
	_, last, err := parseProducerIDsNode(data)
	if err != nil {
		return 0, Op{}, err
	}
	return last + 1, Set(producerIDsPath, block(last+1), stat.Version), nil
}
