package replica

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
)

// Defaults of FetcherConfig, those of Kafka.
const (
	fetchBackoff = time.Second // replica.fetch.backoff.ms
	// passingBackoff is the first rest after an error that passes by itself: a
	// follower of a new topic or a new leader often asks before that one has heard
	// of it, and no record of acks=all is acknowledged meanwhile. It doubles up to
	// FetcherConfig.Backoff.
	passingBackoff         = 10 * time.Millisecond
	fetchPartitionBytesMax = 1 << 20  // replica.fetch.max.bytes
	fetchResponseBytesMax  = 10 << 20 // replica.fetch.response.max.bytes
)

// FetcherConfig says how a follower fetches. Zero values mean Kafka's defaults.
type FetcherConfig struct {
	// Leader is whom this fetcher fetches from.
	Leader int32
	// Backoff is how long a partition rests after an error, and all of them after
	// a request that failed. Zero means 1 s. Disagreements about who leads, which
	// news from the controller ends, are tried again sooner at first.
	Backoff time.Duration
	// PartitionBytes is asked for of each partition, and ResponseBytes of all
	// together; larger first batches come all the same. Zero means 1 and 10 MiB.
	PartitionBytes, ResponseBytes int
	// Throttle bounds what replicas fetch that Throttled names and that are not in
	// sync (follower.replication.throttled.rate). Nil means no bound.
	Throttle  *Throttle
	Throttled func(*Partition) bool
	// Failed, if not nil, is told of an error of a partition that is not one of the
	// passing disagreements about who leads. It must not block.
	Failed func(*Partition, error)
}

func (cfg FetcherConfig) withDefaults() FetcherConfig {
	if cfg.Backoff == 0 {
		cfg.Backoff = fetchBackoff
	}
	if cfg.PartitionBytes == 0 {
		cfg.PartitionBytes = fetchPartitionBytesMax
	}
	if cfg.ResponseBytes == 0 {
		cfg.ResponseBytes = fetchResponseBytesMax
	}
	if cfg.Throttled == nil {
		cfg.Throttled = func(*Partition) bool { return false }
	}
	return cfg
}

// FetchRequest asks a leader for what it has beyond its followers' logs.
type FetchRequest struct {
	Leader     int32
	MaxBytes   int
	Partitions []FetchPartition
}

// FetchPartition is one partition of it.
type FetchPartition struct {
	Partition   *Partition
	LeaderEpoch int32
	Offset      int64
	// LastEpoch is the leader epoch of the record before Offset, -1 if there is none.
	LastEpoch int32
	LogStart  int64
	MaxBytes  int
}

// FetchResponse answers a FetchRequest. Partitions that are not in it have
// nothing new.
type FetchResponse struct {
	Partitions []FetchedPartition
}

// FetchedPartition is the answer for one partition.
type FetchedPartition struct {
	TopicID   cluster.TopicID
	Partition int32
	// Err is nil, or wraps what the leader's FollowerFetch or ReadForFollower
	// returned. With commitlog.ErrOffsetOutOfRange, LogStart is needed.
	Err error
	// HighWatermark and LogStart are the leader's.
	HighWatermark, LogStart int64
	// Diverging says that the follower's log is not a beginning of the leader's.
	Diverging *EpochEnd
	// Records are whole batches from FetchPartition.Offset on.
	Records []byte
}

// Fetcher keeps followers close to one leader: it makes the requests and takes the
// answers; sending, waiting and time are the caller's. One request is under way at
// a time. It is safe for concurrent use.
type Fetcher struct {
	cfg FetcherConfig

	mu sync.Mutex // guards what follows; a leaf, not held over I/O
	// turns has the partitions in the order in which they are asked for: those that
	// got something go to the end, so that none starves when the bytes of a
	// response do not reach for all.
	turns []*fetching
	by    map[partitionKey]*fetching
	// notBefore is when the leader may be asked again after a request failed.
	notBefore time.Time
	open      *FetchRequest
}

// fetching is one partition of a fetcher.
type fetching struct {
	p         *Partition
	notBefore time.Time
	passing   time.Duration // the last rest after a passing error; zero: none since it went well
}

// rest lets the partition alone for a while after an error.
func (s *fetching) rest(err error, longest time.Duration, now time.Time) {
	pause := longest
	if passes(err) {
		s.passing = min(max(2*s.passing, passingBackoff), longest)
		pause = s.passing
	}
	s.notBefore = now.Add(pause)
}

type partitionKey struct {
	id    cluster.TopicID
	index int32
}

func keyOf(p *Partition) partitionKey { return partitionKey{p.opt.TopicID, p.opt.Partition} }

// NewFetcher returns a fetcher without partitions.
func NewFetcher(cfg FetcherConfig) *Fetcher {
	return &Fetcher{cfg: cfg.withDefaults(), by: map[partitionKey]*fetching{}}
}

// Add takes up partitions that follow the leader, or follow it in a new epoch.
func (f *Fetcher) Add(add ...*Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range add {
		if old := f.by[keyOf(p)]; old != nil {
			*old = fetching{p: p}
			continue
		}
		s := &fetching{p: p}
		f.by[keyOf(p)] = s
		f.turns = append(f.turns, s)
	}
}

// Remove gives up partitions. An answer that is under way changes nothing for one
// that follows someone else by then.
func (f *Fetcher) Remove(remove ...*Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range remove {
		if s := f.by[keyOf(p)]; s != nil && s.p == p {
			delete(f.by, keyOf(p))
			f.turns = slices.DeleteFunc(f.turns, func(t *fetching) bool { return t == s })
		}
	}
}

// Len is the number of partitions.
func (f *Fetcher) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.turns)
}

// Next is the next request; nil if there is nothing to ask for before a time, or
// before the next Add when that is zero. Each needs its Answer.
func (f *Fetcher) Next(now time.Time) (*FetchRequest, time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Before(f.notBefore) {
		return nil, f.notBefore
	}
	wake := earliest{}
	throttled := f.cfg.Throttle.Until(now)
	req := &FetchRequest{Leader: f.cfg.Leader, MaxBytes: f.cfg.ResponseBytes}
	for _, s := range f.turns {
		q, ok := s.p.asks(f.cfg.Leader)
		switch {
		case !ok:
			continue // until it is added again, or removed
		case now.Before(s.notBefore):
			wake.note(s.notBefore)
			continue
		case now.Before(throttled) && f.throttles(s.p):
			wake.note(throttled)
			continue
		}
		q.MaxBytes = f.cfg.PartitionBytes
		req.Partitions = append(req.Partitions, q)
	}
	if len(req.Partitions) == 0 {
		return nil, wake.at
	}
	f.open = req
	return req, time.Time{}
}

func (f *Fetcher) throttles(p *Partition) bool {
	return f.cfg.Throttled(p) && !p.InSync(p.opt.BrokerID)
}

// earliest is the least of some times; zero if there is none.
type earliest struct{ at time.Time }

func (e *earliest) note(t time.Time) {
	if e.at.IsZero() || t.Before(e.at) {
		e.at = t
	}
}

// Answer takes the answer to a request, or the error in its place. An answer to
// any but the last request is thrown away.
func (f *Fetcher) Answer(req *FetchRequest, resp *FetchResponse, err error, now time.Time) {
	if !f.close(req, err, now) {
		return
	}
	asked := make(map[partitionKey]*FetchPartition, len(req.Partitions))
	for i := range req.Partitions {
		asked[keyOf(req.Partitions[i].Partition)] = &req.Partitions[i]
	}
	for i := range resp.Partitions {
		a := &resp.Partitions[i]
		key := partitionKey{a.TopicID, a.Partition}
		if q := asked[key]; q != nil {
			delete(asked, key)
			f.took(q, a, q.Partition.answered(q, req.Leader, a, now), now)
		}
	}
}

// close ends a request, and says whether its answer is to be used.
func (f *Fetcher) close(req *FetchRequest, err error, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open != req {
		return false
	}
	f.open = nil
	if err != nil {
		f.notBefore = now.Add(f.cfg.Backoff)
	}
	return err == nil
}

// took notes what became of one partition's answer.
func (f *Fetcher) took(q *FetchPartition, a *FetchedPartition, err error, now time.Time) {
	failed := err != nil && !errors.Is(err, errSuperseded)
	if failed && f.cfg.Failed != nil && !passes(err) {
		f.cfg.Failed(q.Partition, err)
	}
	throttled := len(a.Records) > 0 && f.throttles(q.Partition)
	f.mu.Lock()
	defer f.mu.Unlock()
	if throttled {
		f.cfg.Throttle.Take(len(a.Records), now)
	}
	s := f.by[keyOf(q.Partition)]
	if s == nil || s.p != q.Partition {
		return
	}
	switch {
	case failed:
		s.rest(err, f.cfg.Backoff, now)
	case err == nil:
		s.passing = 0
	}
	if len(a.Records) > 0 {
		i := slices.Index(f.turns, s)
		f.turns = append(slices.Delete(f.turns, i, i+1), s)
	}
}

// passes says whether an error is one that news from the controller will end.
func passes(err error) bool {
	for _, known := range []error{ErrNotLeader, ErrFencedEpoch, ErrUnknownEpoch, ErrUnknownReplica, ErrStaleBrokerEpoch, ErrDeleted, ErrOffline, commitlog.ErrClosed} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
