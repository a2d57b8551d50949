package producer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// pending is one failed record on its way to be sent again.
type pending struct {
	chunk *Chunk
	index int
	err   error
}

func (p pending) record() *kgo.Record { return &p.chunk.flight.records[p.index] }

// mend sends the failed records again, in order, and then lets the queue go.
// It runs alone: nothing is in flight and Send only queues.
func (k *Kafka) mend() {
	defer k.mended.Done()
	k.mu.Lock()
	failed := k.failed
	k.failed = nil
	k.mu.Unlock()
	slices.SortFunc(failed, func(a, b *Chunk) int { return cmp.Compare(a.flight.order, b.flight.order) })

	if !k.resend(collect(failed)) {
		return // closed: the chunks stay unacknowledged
	}
	for _, c := range failed {
		c.Done()
	}
	k.release()
}

func collect(failed []*Chunk) []pending {
	var out []pending
	for _, c := range failed {
		for i, err := range c.flight.errs {
			if err != nil {
				out = append(out, pending{chunk: c, index: i, err: err})
			}
		}
	}
	return out
}

// release sends what was queued and ends the hold.
func (k *Kafka) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	queue := k.queue
	k.queue, k.held = nil, false
	k.flying += len(queue)
	for _, c := range queue {
		c.produce(k)
	}
}

// resend sends records in groups. A group that fails for a record's own reason
// is halved until the record is alone: a broker refuses whole batches, and one
// record must not take its neighbours down. It returns false when closed.
func (k *Kafka) resend(todo []pending) bool {
	group, pause := len(todo), recoverBackoffMin
	for len(todo) > 0 {
		first := firstTrouble(todo)
		if first != nil {
			k.complain(first, len(todo))
			if !sleep(k.ctx, pause) {
				return false
			}
			k.relearn(todo)
			forgive(todo)
			pause = min(pause*2, recoverBackoffMax)
		}
		group = min(max(group, 1), len(todo))
		rest := k.sendGroup(todo[:group])
		if k.ctx.Err() != nil {
			return false
		}
		switch {
		case len(rest) == 0:
			todo, group, pause = todo[group:], group*2, recoverBackoffMin
		case firstTrouble(rest) != nil:
			todo = append(rest, todo[group:]...)
		case group == 1:
			p := rest[0]
			p.chunk.Records[p.index].Err = p.err
			todo = todo[1:]
		default:
			todo, group = append(rest, todo[group:]...), group/2
		}
	}
	return true
}

// relearn makes the client forget topics that are not what it knew: it holds on
// to a topic's first ID and would fail all records of one that was deleted and
// made again. Nothing is in flight here, so nothing is lost by it.
func (k *Kafka) relearn(todo []pending) {
	topics := map[string]bool{}
	for _, p := range todo {
		if errors.Is(p.err, kerr.UnknownTopicID) || errors.Is(p.err, kerr.UnknownTopicOrPartition) {
			topics[p.record().Topic] = true
		}
	}
	if len(topics) > 0 {
		k.client.PurgeTopicsFromProducing(slices.Collect(maps.Keys(topics))...)
	}
}

// forgive forgets trouble that was waited for.
func forgive(todo []pending) {
	for i := range todo {
		todo[i].err = nil
	}
}

// firstTrouble returns the first error that is not a record's own.
func firstTrouble(todo []pending) error {
	for _, p := range todo {
		if p.err != nil && !own(p.err) {
			return p.err
		}
	}
	return nil
}

// sendGroup sends records and waits for all answers; it returns those that
// failed, in order.
func (k *Kafka) sendGroup(group []pending) (rest []pending) {
	var wg sync.WaitGroup
	wg.Add(len(group))
	for i := range group {
		p := &group[i]
		p.err = nil
		k.client.Produce(context.Background(), p.record(), func(_ *kgo.Record, err error) {
			p.err = err
			wg.Done()
		})
	}
	wg.Wait()
	for _, p := range group {
		if p.err != nil {
			rest = append(rest, p)
		}
	}
	return rest
}

// sleep waits, and returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
