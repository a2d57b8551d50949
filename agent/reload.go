package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-io/sluice/internal/connect"
	"github.com/sluice-io/sluice/pipelines"
)

const (
	// reloadDrainMax bounds how long a reload waits for the acknowledgements of a pipeline that changes. What is left then is in its
	// journal and is settled first by its successor, as after a crash.
	reloadDrainMax = 2 * time.Second
	// journalledPoll is the time between two looks at whether all that was collected is in the journal.
	journalledPoll = 10 * time.Millisecond
)

// dropReread counts lines that had been read when their pipeline changed, and were not in its journal: they are read again.
const dropReread = "read_again"

// ErrStopping says that an agent which is not running, or no longer, cannot be reloaded.
var ErrStopping = errors.New("the agent is not running, or is stopping")

// heir is an input that can go on with what another of its kind holds open, so that a reload loses no file whose name is gone.
type heir interface {
	inherit(from input)
	// letGo closes what was held for a successor and is not inherited.
	letGo()
}

// plan is what a reload does.
type plan struct {
	members []*member // all that are run afterwards, in order; those that stay are the same
	olds    []*member // those that end
	news    []*member // those that begin
}

// Reload makes pipes the pipelines that are run. Those that stay as they are go on undisturbed; a changed one ends, and its successor
// goes on exactly where it was; what a removed one had read and not delivered stays in its journal. Nothing is touched when a pipeline
// cannot be built. It waits for Run to begin. Afterwards an error names pipelines that could not be started; they are tried again by the next reload.
func (a *Agent) Reload(pipes []*pipelines.Pipeline) error {
	<-a.begun
	a.reloading.Lock()
	defer a.reloading.Unlock()
	if !a.mayReload() {
		return ErrStopping
	}
	p, err := a.plan(pipes)
	if err != nil {
		return err
	}
	if !a.halt(p) {
		p.letGo()
		return ErrStopping
	}
	err = a.change(p)
	for _, m := range p.news {
		if slices.Contains(p.members, m) {
			a.start(m)
		}
	}
	a.saveSoon()
	return err
}

// CheckReload says why Reload would refuse pipes. It touches nothing.
func (a *Agent) CheckReload(pipes []*pipelines.Pipeline) error {
	<-a.begun
	a.reloading.Lock()
	defer a.reloading.Unlock()
	if !a.mayReload() {
		return ErrStopping
	}
	_, err := a.plan(pipes)
	return err
}

// mayReload needs reloading.
func (a *Agent) mayReload() bool { return a.ctx != nil && a.ctx.Err() == nil && !a.cfg.Once }

// plan works out what is to be done, and builds what will begin.
func (a *Agent) plan(pipes []*pipelines.Pipeline) (*plan, error) {
	p := &plan{}
	now := a.list()
	var errs []error
	for _, pipe := range pipes {
		if pipe.Collect == nil {
			continue
		}
		i := slices.IndexFunc(now, func(m *member) bool { return m.pipe.Name == pipe.Name })
		if i >= 0 && now[i].pipe.SameCollecting(pipe) {
			p.members = append(p.members, now[i])
			continue
		}
		r, err := a.build(pipe)
		if err == nil && a.cfg.Destination == nil {
			if _, err = connect.Brokers(pipe.Brokers, a.cfg.Brokers); err != nil {
				err = fmt.Errorf("pipeline %s: %w", pipe.Name, err)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", pipe.Pos, err))
			continue
		}
		m := &member{runner: r, ended: make(chan struct{})}
		p.members, p.news = append(p.members, m), append(p.news, m)
	}
	if len(p.members) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("no pipeline has a `collect:`, so there would be nothing for the agent to do"))
	}
	for _, m := range now {
		if !slices.Contains(p.members, m) {
			p.olds = append(p.olds, m)
		}
	}
	return p, errors.Join(errs...)
}

// halt stops what ends and waits for its lines. It returns false when the agent stops meanwhile: then what ended is drained by that.
func (a *Agent) halt(p *plan) bool {
	var waiting sync.WaitGroup
	for _, m := range p.olds {
		m.handing.Store(p.successor(m) != nil)
		m.stop()
		waiting.Go(func() {
			<-m.ended
			limit := a.cfg.DrainTimeout
			if p.successor(m) != nil {
				limit = min(limit, reloadDrainMax)
			}
			m.drained(a.ctx, limit)
			m.journalledAll(a.ctx, a.cfg.DrainTimeout)
		})
	}
	waiting.Wait()
	return a.ctx.Err() == nil
}

// drained waits until nothing is in flight, but not for longer than limit.
func (m *member) drained(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-m.finished:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// journalledAll waits until all that was collected is in the journal, but not for longer than limit: what came over the network cannot be
// read again.
func (m *member) journalledAll(ctx context.Context, limit time.Duration) {
	timer, tick := time.NewTimer(limit), time.NewTicker(journalledPoll)
	defer timer.Stop()
	defer tick.Stop()
	for !m.isJournalled() {
		select {
		case <-tick.C:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// isJournalled says that no parcel is on its way to the journal.
func (m *member) isJournalled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !slices.ContainsFunc(m.parcels, func(p *parcel) bool { return !p.done && p.sequence == 0 })
}

func (p *plan) successor(old *member) *member {
	for _, m := range p.news {
		if m.pipe.Name == old.pipe.Name {
			return m
		}
	}
	return nil
}

// letGo closes what was held for successors that did not take it.
func (p *plan) letGo() {
	for _, m := range p.olds {
		if h, ok := m.input.(heir); ok && m.handing.Load() {
			h.letGo()
		}
	}
}

// change puts what begins in the place of what ended, between two checkpoints.
func (a *Agent) change(p *plan) error {
	a.saving.Lock()
	defer a.saving.Unlock()
	accounts := map[string]Account{}
	failed := map[string]error{}
	inputs := map[string]input{}
	errorsOf := map[string]int64{}
	for _, m := range p.olds {
		accounts[m.pipe.Name] = a.bury(m)
		inputs[m.pipe.Name], errorsOf[m.pipe.Name] = m.input, m.produceErrors.Load()
	}
	var errs []error
	for _, m := range p.news {
		name := m.pipe.Name
		before, known := accounts[name]
		if err := a.open(m.runner, before.settledPart()); err != nil {
			failed[name] = err
			errs = append(errs, err)
			p.members = slices.DeleteFunc(p.members, func(x *member) bool { return x == m })
			continue
		}
		if known {
			m.account.goOn(&before)
			m.produceErrors.Store(errorsOf[name])
		}
		if h, ok := m.input.(heir); ok && inputs[name] != nil {
			h.inherit(inputs[name])
		}
	}
	p.letGo()
	a.mu.Lock()
	a.members, a.failed = p.members, failed
	a.mu.Unlock()
	return errors.Join(errs...)
}

// bury closes what ended and keeps what is known of its positions for a successor, now or later.
func (a *Agent) bury(m *member) Account {
	m.dest.Close()
	m.share.leave()
	if err := m.kept.close(); err != nil {
		a.log.Warn("the journal cannot be closed", "pipeline", m.pipe.Name, "error", err)
	}
	saved, _, known := m.snapshot()
	if known {
		a.others[m.pipe.Name] = saved
		a.moved = true
	}
	if n := m.snapshotAccount().InFlight.Lines; n > 0 {
		a.log.Info("lines that are not acknowledged yet are settled when the pipeline is run again", "pipeline", m.pipe.Name, "lines", n)
	}
	return m.snapshotAccount()
}

// failure is why a pipeline that the files name is not run.
func (a *Agent) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, err := range a.failed {
		errs = append(errs, fmt.Errorf("not started by the last reload: %w", err))
	}
	return errors.Join(errs...)
}

// settledPart is what was counted, without what is in flight and what is measured: with it a successor begins.
func (a *Account) settledPart() Account {
	b := a.clone()
	b.Read.sub(b.InFlight)
	b.InFlight, b.LagBytes, b.FilesOpen, b.FilesFollowed, b.DeletedBytes, b.JournalBytes, b.JournalBatches = Count{}, 0, 0, 0, 0, 0, 0
	return b
}

// goOn counts, beyond what the journal held, what the one before had read: it is read again. So no counter goes back.
func (a *Account) goOn(before *Account) {
	again := before.InFlight
	again.sub(a.InFlight)
	again.Lines, again.Bytes = max(again.Lines, 0), max(again.Bytes, 0)
	a.Read.add(again)
	a.drop(dropReread, again)
	a.Recovered, a.Sent = before.Recovered, before.Sent // nothing was found that had not been known
}
