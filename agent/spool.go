package agent

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/connect"
	"github.com/sluice-io/sluice/pipelines"
)

// journalsDir is where in the state directory the journals are, one for each pipeline.
const journalsDir = "journal"

// kept is a runner's side of its journal.
type kept struct {
	journal *journal.Journal // nil when there is none: another destination than Kafka
	// stored says that a checkpoint knows the pipeline: only then may the journal, which relies on one, be written to.
	stored atomic.Bool
	save   func() // asks for a checkpoint soon

	mu       sync.Mutex
	previous uint64 // guarded by mu: what the last stored checkpoint named
	at       int64  // guarded by mu: bytes of the journal then
	behind   bool   // guarded by mu: much is kept only for the checkpoint before the last
	limit    int64
}

// checkpointEvery is the part of a journal's limit after whose writing a checkpoint is due: two of them let go of segments.
const checkpointEvery = 8

// grown asks for a checkpoint when much was written since the last one.
func (k *kept) grown() {
	if k.journal == nil {
		return
	}
	bytes, _ := k.journal.Bytes()
	k.mu.Lock()
	due := bytes-k.at > k.limit/checkpointEvery
	k.mu.Unlock()
	if due && k.save != nil {
		k.save()
	}
}

// checkpointed lets go of segments that neither the stored checkpoint nor the one before it need.
func (k *kept) checkpointed(names uint64) error {
	k.stored.Store(true)
	if k.journal == nil {
		return nil
	}
	k.mu.Lock()
	keep := k.previous
	k.previous = names
	k.mu.Unlock()
	err := k.journal.Release(keep)
	bytes, _ := k.journal.Bytes()
	k.mu.Lock()
	k.at = bytes
	k.behind = keep < names && bytes > k.limit/keptShare
	k.mu.Unlock()
	return err
}

// keptShare is the part of a journal's limit beyond which a checkpoint is due though nothing moved since the last: one that is full is let go
// of by the second of two.
const keptShare = 2

// wantsCheckpoint says that another checkpoint would let go of much.
func (k *kept) wantsCheckpoint() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.behind
}

// full says that the journal takes no more.
func (k *kept) full() bool { return k.journal != nil && k.journal.Full() }

// trouble is why the journal takes nothing, beside its limit; nil when it does.
func (k *kept) trouble() error {
	if k.journal == nil || k.journal.Full() {
		return nil
	}
	return k.journal.Trouble()
}

// yield has the journal let go of files that it keeps for later.
func (k *kept) yield() {
	if k.journal != nil {
		k.journal.Yield()
	}
}

func (k *kept) close() error {
	if k.journal == nil {
		return nil
	}
	return k.journal.Close()
}

func (k *kept) size() (bytes, batches int64) {
	if k.journal == nil {
		return 0, 0
	}
	b, n := k.journal.Bytes()
	return b, int64(n)
}

// keepFromLocked is the sequence of the first journal entry that a checkpoint of now does not cover. It needs runner.mu.
func (r *runner) keepFromLocked() uint64 {
	from := r.journalled
	for sequence := range r.unsettled {
		from = min(from, sequence)
	}
	return from
}

// destination makes the destination of a pipeline, and brings the positions in line with its journal.
func (a *Agent) destination(r *runner, s savedPipeline) error {
	var err error
	if a.cfg.Destination != nil {
		r.kept.stored.Store(true)
		r.dest, err = a.cfg.Destination(r.pipe, r.owner(), r.memoryPool)
		return err
	}
	opts, err := connect.Brokers(r.pipe.Brokers, a.cfg.Brokers)
	if err != nil {
		return err
	}
	log, bundles, floors, err := r.openJournal(filepath.Join(a.cfg.StateDir, journalsDir, r.pipe.Name), journal.Config{
		FS: a.cfg.JournalFS, BytesMax: a.cfg.JournalBytesMax, Sync: a.cfg.JournalSync, From: s.Journal,
	})
	if err != nil {
		return err
	}
	r.dest, err = producer.NewKafka(r.log, log, bundles, floors, producer.KafkaConfig{
		ClientID: "sluice-agent", Client: opts, Dial: dialOf(r.pipe.Brokers), RecordBytesMax: r.pipe.Collect.Options().LineBytesMax + recordOverheadBytes, SenderConfig: r.senderConfig(),
	})
	return err
}

// dialOf makes connections that are not encrypted; nil for those that the client is to encrypt.
func dialOf(b *pipelines.Brokers) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if b != nil && b.TLS != nil {
		return nil
	}
	return (&net.Dialer{Timeout: producer.DialTimeout}).DialContext
}

// openJournal opens the journal and takes over what it holds.
func (r *runner) openJournal(dir string, cfg journal.Config) (log *spool, bundles []*producer.Bundle, floors []producer.Floor, err error) {
	j, loaded, err := journal.Open(r.log, dir, cfg)
	if err != nil {
		return nil, nil, nil, err
	}
	r.kept.journal, r.kept.limit = j, cfg.BytesMax
	r.journalled = j.Next()
	bundles, floors = r.recover(loaded)
	return &spool{journal: j}, bundles, floors, nil
}

// senderConfig is the pipeline's wish on how its batches are sent.
func (r *runner) senderConfig() producer.SenderConfig {
	return producer.SenderConfig{
		InFlightMax: r.pipe.Topic.MaxInFlight, Unknown: onUnknown(r.pipe.Topic.OnUnknown),
		OnError: r.notePlight, Memory: r.memoryPool, Owner: r.owner(),
	}
}

func onUnknown(p pipelines.OnUnknown) producer.OnUnknown {
	if p == pipelines.OnUnknownHold {
		return producer.Hold
	}
	return producer.Resend
}

// recover takes what a journal holds: ranges move the positions, and unsettled batches are the destination's to settle.
func (r *runner) recover(loaded *journal.Loaded) (bundles []*producer.Bundle, floors []producer.Floor) {
	r.input.replay(loaded.Moves)
	for _, b := range loaded.Unsettled {
		n := len(bundles)
		if n == 0 || bundles[n-1].Batches[0].ID.Entry != b.ID.Entry {
			bundles = append(bundles, &producer.Bundle{Done: r.recovered(b.ID.Entry)})
			n++
		}
		bundles[n-1].Batches = append(bundles[n-1].Batches, recoveredBatch(b))
		lines := Count{Lines: b.Lines, Bytes: b.SourceBytes}
		r.account.Read.add(lines)
		r.account.InFlight.add(lines)
		r.account.Sent.add(lines)
		r.account.Recovered.add(lines)
	}
	for _, f := range loaded.Floors {
		floors = append(floors, producer.Floor{Topic: producer.TopicID(f.TopicID), Partition: f.Partition, Offset: f.Offset})
	}
	r.sayRecovered(loaded)
	return bundles, floors
}

func (r *runner) sayRecovered(loaded *journal.Loaded) {
	if loaded.LostSegments > 0 {
		r.log.Warn("the journal has a hole, after a power cut; what follows it was dropped, and is read from the files again: lines may come twice", "segments", loaded.LostSegments)
	}
	if n := len(loaded.Unsettled); n > 0 {
		r.log.Info("batches in the journal are settled first", "batches", n, "lines", r.account.Recovered.Lines)
	}
	if loaded.TornBytes > 0 {
		r.log.Info("the journal ended within an entry, which was not sent and is read from the files again", "bytes", loaded.TornBytes)
	}
}

// recovered returns what is to be done when all batches of an entry of an earlier run are settled.
func (r *runner) recovered(entry uint64) func() {
	r.unsettled[entry] = true
	return func() {
		r.mu.Lock()
		delete(r.unsettled, entry)
		r.dirty = true
		r.finishLocked()
		r.mu.Unlock()
		r.nudge()
	}
}

func recoveredBatch(b *journal.Batch) *producer.Batch {
	return &producer.Batch{
		ID: producer.ID(b.ID), Topic: b.Topic, Partition: b.Partition, Lines: b.Lines, SourceBytes: b.SourceBytes, Class: producer.Class(b.Class),
		Cluster: b.Cluster, TopicID: producer.TopicID(b.TopicID), Producer: b.Producer, Epoch: b.Epoch, BaseSequence: b.BaseSequence,
		Records: b.Records, Size: b.Size,
	}
}

// spool is the journal as the destination's log.
type spool struct{ journal *journal.Journal }

// Write implements producer.Log.
func (s *spool) Write(bundles []*producer.Bundle) (uint64, error) {
	entries := make([]journal.Entry, len(bundles))
	for i, b := range bundles {
		entries[i].Bundle = &journal.Bundle{Ranges: rangesOf(b), Batches: journalBatches(b.Batches)}
	}
	first, err := s.journal.Append(entries...)
	if err != nil {
		return 0, err
	}
	for i, b := range bundles {
		giveIDs(b.Batches, entries[i].Bundle.Batches)
	}
	return first, nil
}

func giveIDs(batches []*producer.Batch, written []*journal.Batch) {
	for i, b := range batches {
		b.ID = producer.ID(written[i].ID)
	}
}

func journalBatches(batches []*producer.Batch) []*journal.Batch {
	out := make([]*journal.Batch, len(batches))
	for i, b := range batches {
		out[i] = &journal.Batch{Cluster: b.Cluster, TopicID: journal.TopicID(b.TopicID), Topic: b.Topic, Partition: b.Partition,
			Lines: b.Lines, SourceBytes: b.SourceBytes, Class: uint8(b.Class), Data: b.Data}
	}
	return out
}

// rangesOf are the pieces of an input that a bundle covers. What goes on where the one before ends is one range with it.
func rangesOf(b *producer.Bundle) (out []journal.Range) {
	p, ok := b.Ranges.(*parcel)
	if !ok {
		return nil
	}
	for i := range p.pieces {
		if p.pieces[i].progress == nil {
			continue
		}
		r := p.pieces[i].progress.journalRange()
		if n := len(out); n > 0 && continues(&out[n-1], &r) {
			r.From = out[n-1].From
			out[n-1] = r
			continue
		}
		out = append(out, r)
	}
	return out
}

func continues(a, b *journal.Range) bool {
	return a.Input == b.Input && a.Dev == b.Dev && a.Ino == b.Ino && a.Born == b.Born && a.Generation == b.Generation && a.To == b.From
}

// Replace implements producer.Log.
func (s *spool) Replace(olds []producer.ID, news []*producer.Batch) error {
	b := &journal.Bundle{Batches: journalBatches(news)}
	for _, id := range olds {
		b.Replaces = append(b.Replaces, journal.ID(id))
	}
	if _, err := s.journal.Append(journal.Entry{Bundle: b}); err != nil {
		return err
	}
	giveIDs(news, b.Batches)
	return nil
}

// Acknowledge implements producer.Log.
func (s *spool) Acknowledge(acks []producer.Ack) error {
	entries := make([]journal.Entry, len(acks))
	for i, a := range acks {
		b := a.Last
		ack := &journal.Ack{TopicID: journal.TopicID(b.TopicID), Partition: b.Partition, Producer: b.Producer, Epoch: b.Epoch,
			LastSequence: b.LastSequence(), BaseOffset: a.Base, NextOffset: a.Next}
		for _, id := range a.IDs {
			ack.IDs = append(ack.IDs, journal.ID(id))
		}
		entries[i].Ack = ack
	}
	_, err := s.journal.Append(entries...)
	return err
}

// Floor implements producer.Log.
func (s *spool) Floor(topic producer.TopicID, partition int32, offset int64) error {
	_, err := s.journal.Append(journal.Entry{Floors: []journal.Floor{{TopicID: journal.TopicID(topic), Partition: partition, Offset: offset}}})
	return err
}

// Read implements producer.Log.
func (s *spool) Read(id producer.ID) ([]byte, error) {
	data, err := s.journal.Read(journal.ID(id), nil)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	return data, nil
}
