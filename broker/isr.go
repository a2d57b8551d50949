package broker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
)

const (
	// isrCheckMax is how seldom the leaders look who has fallen behind, at most.
	isrCheckMax = 500 * time.Millisecond
	// isrRetry is the pause before the controller is asked again for what it has
	// not decided.
	isrRetry = 60 * time.Millisecond
	// isrTimeout bounds the wait for its answer.
	isrTimeout = 15 * time.Second
)

// alterPartitions asks the controller, wherever it is, for other in-sync replicas.
type alterPartitions func(context.Context, []cluster.AlterPartition) ([]cluster.AlterPartitionResult, error)

// isrKeeper has the controller told who is in sync with the leaders of this
// broker. One goroutine does; due is safe for concurrent use.
type isrKeeper struct {
	log        *slog.Logger
	partitions *replica.Partitions
	alter      alterPartitions
	now        func() time.Time
	metrics    *isrMetrics

	mu   sync.Mutex // guards set; a leaf
	set  map[*replica.Partition]struct{}
	wake chan struct{} // has room for one
}

func newISRKeeper(log *slog.Logger, partitions *replica.Partitions, alter alterPartitions, now func() time.Time, m *isrMetrics) *isrKeeper {
	return &isrKeeper{
		log: log, partitions: partitions, alter: alter, now: now, metrics: m,
		set: map[*replica.Partition]struct{}{}, wake: make(chan struct{}, 1),
	}
}

// due notes a partition that may have something to ask for. It does not block.
func (k *isrKeeper) due(p *replica.Partition) {
	k.mu.Lock()
	k.set[p] = struct{}{}
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// take empties the set.
func (k *isrKeeper) take() []*replica.Partition {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]*replica.Partition, 0, len(k.set))
	for p := range k.set {
		list = append(list, p)
	}
	clear(k.set)
	return list
}

// run looks at all leaders every so often, and at those that are due at once, once
// settled returns and until ctx ends. A leader that is alone in sync and still
// remembered as one that lost records stays in sync only as long as it is alone.
func (k *isrKeeper) run(ctx context.Context, settled func(context.Context), lagMax time.Duration) {
	settled(ctx)
	all := time.NewTicker(min(max(lagMax/4, 10*time.Millisecond), isrCheckMax))
	defer all.Stop()
	for {
		var again <-chan time.Time
		select {
		case <-ctx.Done():
			return
		case <-all.C:
			k.take()
			again = k.ask(ctx, k.partitions.All())
		case <-k.wake:
			again = k.ask(ctx, k.take())
		}
		if again == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
	}
}

// ask puts what these partitions ask for to the controller. What is left
// undecided is due again, after a pause.
func (k *isrKeeper) ask(ctx context.Context, list []*replica.Partition) (again <-chan time.Time) {
	var asked []cluster.AlterPartition
	var of []*replica.Partition
	now := k.now()
	for _, p := range list {
		if a, ok := p.ISRProposal(now); ok {
			asked, of = append(asked, a), append(of, p)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, isrTimeout)
	defer cancel()
	results, err := k.alter(ctx, asked)
	now = k.now()
	for i, p := range of {
		var state cluster.Partition
		answer := err
		if err == nil {
			state, answer = results[i].Partition, results[i].Err
		}
		before := len(p.ISR())
		p.ISRAnswered(asked[i], state, answer, now)
		if answer != nil {
			k.due(p)
			again = time.After(isrRetry)
			continue
		}
		k.changed(p, before, asked[i], state)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, cluster.ErrNotController) {
		k.log.Warn("the controller does not answer for the in-sync replicas, trying again", "partitions", len(asked), "error", err)
	}
	return again
}

func (k *isrKeeper) changed(p *replica.Partition, before int, asked cluster.AlterPartition, state cluster.Partition) {
	switch {
	case len(state.ISR) < before:
		k.metrics.shrinks.Inc()
	case len(state.ISR) > before:
		k.metrics.expands.Inc()
	}
	k.log.Info("in-sync replicas changed", "topic", p.Topic(), "partition", p.Index(), "isr", state.ISR,
		"leader_epoch", asked.LeaderEpoch, "partition_epoch", state.PartitionEpoch)
}
