package replica

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/internal/record"
)

// Why a partition does not serve.
var (
	// ErrNotLeader says that another broker leads the partition, or none does.
	ErrNotLeader = errors.New("not the leader of the partition")
	// ErrOffline says that the partition's storage has failed.
	ErrOffline = errors.New("partition is offline")
	// ErrDeleted says that the topic has been deleted.
	ErrDeleted = errors.New("partition is deleted")
	// ErrFencedEpoch says that the caller knows an older leader epoch.
	ErrFencedEpoch = errors.New("leader epoch is older than the current one")
	// ErrUnknownEpoch says that the caller knows a newer leader epoch.
	ErrUnknownEpoch = errors.New("leader epoch is newer than the current one")
	// ErrNotEnoughReplicas says that fewer replicas are in sync than asked for.
	ErrNotEnoughReplicas = errors.New("not enough in-sync replicas")
	// ErrNotEnoughReplicasAfterAppend says that it turned out so when the records
	// had been appended. They may stay.
	ErrNotEnoughReplicasAfterAppend = errors.New("not enough in-sync replicas after the append")
)

// NoEpoch is the leader epoch of a caller that does not know it.
const NoEpoch int32 = -1

// Options are what a partition is made with.
type Options struct {
	Topic     string
	TopicID   cluster.TopicID
	Partition int32
	// BrokerID is this node.
	BrokerID int32
	// HighWatermark is the last one that was stored, 0 if there is none.
	HighWatermark int64
	// LagMax is how long a follower may be behind and stay in sync
	// (replica.lag.time.max.ms). Zero means 30 s.
	LagMax time.Duration
	// Live says whether a broker is in the cluster and stays, as far as this one
	// knows: ISRProposal takes a follower that does not out of those in sync, which
	// the controller leaves to the leader. It is called with the partition's lock
	// held. Nil means that all do.
	Live func(broker int32) bool
	// GroupFsync makes the high watermark the synced offset while this node is
	// the only replica in sync.
	GroupFsync bool
	// Notify is called, at most once between two calls of Flush, when there is
	// something to flush for the high watermark to move. It must not block.
	// Needed with GroupFsync.
	Notify func(*Partition)
	// ISRDue, if not nil, is called when ISRProposal may have something new: a
	// follower has become fit to be in sync, or the sync is done that the leader
	// needed to be the only one. It is called without locks and must not
	// block.
	ISRDue func(*Partition)
	// Cut, if not nil, is called when a follower's log was cut below its recovery
	// point, before anything is appended: the stored recovery point must have
	// fallen when it returns. The partition does not take the lead meanwhile. An
	// error takes it offline.
	Cut func(*Partition) error
	// Failed, if not nil, is told when the partition went offline because its
	// storage failed in Append or Flush. It is called without locks.
	Failed func(*Partition, error)
}

// Partition is this node's replica of one partition. It is safe for
// concurrent use.
type Partition struct {
	opt Options
	log *commitlog.Log
	cfg atomic.Pointer[TopicConfig]

	// cutting is held while a follower takes an answer, and to take the lead: by then
	// the stored recovery point of a log that was cut has fallen.
	cutting sync.Mutex
	cutFrom int64 // the recovery point before a cut; guarded by cutting
	// fence is held shared during an append and exclusively to change role.
	fence sync.RWMutex
	role  atomic.Pointer[role] // stored with fence held exclusively

	dirty    atomic.Bool  // Notify was called since the last Flush
	appended atomic.Int64 // bytes appended since the partition was made
	visible  atomic.Int64 // of those, the ones below the high watermark
	hw       atomic.Int64 // stored with mu held
	// unsyncedSince is when the first record was appended that may not be on
	// disk, in ms; 0 when there is none.
	unsyncedSince atomic.Int64

	mu   sync.Mutex
	lead *leading // nil while this node does not lead; set with fence held too
	// fetched are the ends of the log after the last two fetches of a follower, with
	// the bytes appended up to there.
	fetched [2]struct{ end, bytes int64 }
	waits   [marks]waitList
}

// New returns a partition over log that does not lead yet.
func New(log *commitlog.Log, opt Options, cfg TopicConfig) *Partition {
	p := &Partition{opt: opt, log: log}
	p.cfg.Store(&cfg)
	p.role.Store(&role{epoch: NoEpoch, from: cluster.NoLeader})
	p.hw.Store(min(max(opt.HighWatermark, log.StartOffset()), log.EndOffset()))
	return p
}

// Topic is the topic's name.
func (p *Partition) Topic() string { return p.opt.Topic }

// TopicID is the topic's id.
func (p *Partition) TopicID() cluster.TopicID { return p.opt.TopicID }

// Index is the partition's number within the topic.
func (p *Partition) Index() int32 { return p.opt.Partition }

// Log is the partition's log, for the steps that do not depend on who leads:
// retention, rolling, checkpoints. Records are appended through Append only.
func (p *Partition) Log() *commitlog.Log { return p.log }

// Config is the topic's configuration as it is now.
func (p *Partition) Config() *TopicConfig { return p.cfg.Load() }

// SetConfig takes effect for the requests that start after it.
func (p *Partition) SetConfig(cfg TopicConfig) { p.cfg.Store(&cfg) }

// Append writes one producer's validated batches as the leader; their base
// offsets and leader epochs are set in place. minISR is how many replicas must
// be in sync, 0 if the producer does not ask.
//
// A batch that the log already has is a success with Duplicate set. Errors are
// those of commitlog.Log.Append, ErrNotEnoughReplicas, and why the partition
// does not serve.
func (p *Partition) Append(batches []byte, minISR int, now time.Time) (commitlog.Appended, error) {
	done, err := p.append(batches, minISR, now)
	if err != nil {
		if errors.Is(err, commitlog.ErrOffline) {
			p.storageFailed(err)
		}
		return done, err
	}
	if done.Duplicate {
		return done, nil
	}
	bytes := p.appended.Add(int64(done.Bytes))
	p.unsyncedSince.CompareAndSwap(0, now.UnixMilli())
	p.reached(LogEnd)
	if n := p.cfg.Load().FlushRecords; n > 0 && done.Last+1-p.log.SyncedOffset() >= n {
		if err := p.sync(bytes); err != nil {
			return commitlog.Appended{}, err
		}
	}
	switch {
	case !p.role.Load().alone: // the followers' fetches move the high watermark
	case p.committable() > done.Last:
		p.advance(bytes)
	default:
		p.WantFlush()
	}
	return done, nil
}

// FlushDue says that a record has waited for a sync for as long as the topic allows.
func (p *Partition) FlushDue(now time.Time) bool {
	age, since := p.cfg.Load().FlushAge, p.unsyncedSince.Load()
	return age > 0 && since > 0 && now.UnixMilli()-since >= age.Milliseconds()
}

func (p *Partition) append(batches []byte, minISR int, now time.Time) (commitlog.Appended, error) {
	p.fence.RLock()
	defer p.fence.RUnlock()
	r := p.role.Load()
	if err := r.serves(); err != nil {
		return commitlog.Appended{}, err
	}
	if len(r.isr) < minISR {
		return commitlog.Appended{}, fmt.Errorf("%w: %d of the %d that min.insync.replicas asks for", ErrNotEnoughReplicas, len(r.isr), minISR)
	}
	done, err := p.log.Append(batches, r.epoch, now)
	done.Epoch = r.epoch
	return done, err
}

// Flush syncs the log and moves the high watermark. A failure takes the
// partition offline and is never retried.
func (p *Partition) Flush() error {
	p.dirty.Store(false)
	return p.sync(p.appended.Load())
}

// sync is Flush for whoever was not asked to through Notify. bytes is what had
// been appended before.
func (p *Partition) sync(bytes int64) error {
	p.unsyncedSince.Store(0) // before the sync: what comes meanwhile counts from then on
	if _, err := p.log.Flush(); err != nil {
		p.storageFailed(err)
		return fmt.Errorf("flush %s-%d: %w", p.opt.Topic, p.opt.Partition, err)
	}
	p.advance(bytes)
	p.synced()
	return nil
}

func (p *Partition) storageFailed(err error) {
	p.Fail(fmt.Errorf("%w: %w", ErrOffline, err))
	if p.opt.Failed != nil && errors.Is(err, commitlog.ErrOffline) {
		p.opt.Failed(p, err)
	}
}

// WantFlush asks for a Flush through Options.Notify, unless one has been asked for.
func (p *Partition) WantFlush() {
	if p.opt.Notify != nil && !p.dirty.Swap(true) {
		p.opt.Notify(p)
	}
}

// flushIfNeeded asks for a sync if that is what the high watermark waits for.
func (p *Partition) flushIfNeeded() {
	if r := p.role.Load(); r.leader && r.alone && p.committable() < p.log.EndOffset() {
		p.WantFlush()
	}
}

// committable is up to where the high watermark may move as long as this node is
// the only one in sync.
func (p *Partition) committable() int64 {
	if p.opt.GroupFsync {
		return p.log.SyncedOffset()
	}
	return p.log.EndOffset()
}

// advance moves the high watermark as far as it may, and fires the waits that
// it passed. bytes is what had been appended up to there, at the least.
func (p *Partition) advance(bytes int64) {
	p.mu.Lock()
	fired := p.raise(bytes)
	p.mu.Unlock()
	fire(fired, nil)
}

// reached fires the waits for a mark that moves by itself.
func (p *Partition) reached(m Mark) {
	p.mu.Lock()
	fired := p.waits[m].passed(p.offset(m), math.MaxInt, nil)
	p.mu.Unlock()
	fire(fired, nil)
}

// lose ends all waits.
func (p *Partition) lose(err error) {
	var fired *Wait
	p.mu.Lock()
	for m := range p.waits {
		fired = p.waits[m].all(fired)
	}
	p.mu.Unlock()
	fire(fired, err)
}

// HighWatermark is the offset below which records are committed.
func (p *Partition) HighWatermark() int64 { return p.hw.Load() }

// LastStableOffset is the offset below which every transaction is decided.
func (p *Partition) LastStableOffset() int64 { return p.hw.Load() }

// VisibleBytes counts the bytes that came below the high watermark since the
// partition was made: what has become readable between two looks.
func (p *Partition) VisibleBytes() int64 { return p.visible.Load() }

// AppendedBytes counts the bytes that came to the log since the partition was made.
func (p *Partition) AppendedBytes() int64 { return p.appended.Load() }

func (p *Partition) offset(m Mark) int64 {
	if m == LogEnd {
		return p.log.EndOffset()
	}
	return p.hw.Load()
}

// Read returns whole batches from the one that holds offset on, below the high
// watermark. See commitlog.Log.Read for its errors and for atLeastOne; the
// region must be released.
func (p *Partition) Read(offset int64, maxBytes int, atLeastOne bool) (commitlog.Region, error) {
	return p.log.Read(offset, maxBytes, p.hw.Load(), atLeastOne)
}

// TopicConfig is what the data path reads of a topic's configuration, parsed once.
type TopicConfig struct {
	// MaxMessageBytes limits one batch as it is stored (max.message.bytes).
	MaxMessageBytes int
	// Compress, if set, stores every batch in Codec (compression.type other
	// than "producer").
	Compress bool
	Codec    record.Codec
	// Levels are those of the codecs (compression.gzip.level and so on).
	Levels record.CompressorConfig
	// DecompressedBytesMax limits what one compressed batch may expand to
	// (max.decompressed.message.bytes). Zero, and what is above it, mean record.DecompressedBytesMax.
	DecompressedBytesMax int
	// LogAppendTime replaces the producer's timestamps (message.timestamp.type).
	LogAppendTime bool
	// TimestampBeforeMax and TimestampAfterMax bound how far a record's
	// timestamp may lie from the broker's time (message.timestamp.before.max.ms,
	// message.timestamp.after.max.ms). Zero means no bound.
	TimestampBeforeMax, TimestampAfterMax time.Duration
	// Compacted topics need a key in each record (cleanup.policy).
	Compacted bool
	// NoDelete refuses DeleteRecords: cleanup.policy is without delete.
	NoDelete bool
	// MinInSync is needed for acks=all (min.insync.replicas).
	MinInSync int
	// FlushRecords is how many records may be appended before the log is synced,
	// in the append that makes it so many (flush.messages). Zero means no bound.
	FlushRecords int64
	// FlushAge is how long a record may wait for a sync (flush.ms). Zero means no bound.
	FlushAge time.Duration
	// ThrottledLeaders and ThrottledFollowers are the replicas whose copying is
	// bounded on the leader's side and on the follower's, while they are not in
	// sync (leader.replication.throttled.replicas, follower.replication.throttled.replicas).
	ThrottledLeaders, ThrottledFollowers ReplicaSet
}

// DefaultTopicConfig has Kafka's defaults.
func DefaultTopicConfig() TopicConfig {
	return TopicConfig{
		MaxMessageBytes:   1048588,
		TimestampAfterMax: time.Hour,
		MinInSync:         1,
	}
}
