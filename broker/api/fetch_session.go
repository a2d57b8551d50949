package api

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluice-io/sluice/broker/cluster"
)

const (
	// defaultFetchSessions is max.incremental.fetch.session.cache.slots.
	defaultFetchSessions = 1000
	// sessionEvictionMin is how long a session must have been idle to give its
	// place to another.
	sessionEvictionMin = 2 * time.Minute
	// sessionPartitionsMax limits the partitions of all sessions, which take
	// some 250 bytes each.
	sessionPartitionsMax = 400_000
)

// fetchSessions are the fetch sessions of all clients (KIP-227): with one, a
// request names only the partitions that changed since the one before, and its
// answer only those that have something to tell. It is safe for concurrent use;
// no other lock is taken under its own; the lock of a session comes before it.
type fetchSessions struct {
	max int

	mu         sync.Mutex
	byID       map[int32]*fetchSession
	partitions int // of all of them
}

// fetchSession is what is known of one client's partitions.
type fetchSession struct {
	id      int32
	byID    bool      // its topics go by id
	usedAt  time.Time // guarded by fetchSessions.mu
	counted int       // its share of fetchSessions.partitions; guarded by fetchSessions.mu

	mu     sync.Mutex
	epoch  int32 // that the next request must have
	topics []fetchTopic
	parts  []fetchPart
	index  map[partKey]int // of parts
}

// partKey names a partition; either name or id is set.
type partKey struct {
	name  string
	id    cluster.TopicID
	index int32
}

// open finds or makes the session that f belongs to and fills in what f leaves
// to it. It returns the code that refuses f, 0 if none does. Nothing of the
// session aliases the request's body.
func (ss *fetchSessions) open(f *fetch, now time.Time) (code int16) {
	switch f.sessionEpoch {
	case sessionFinal:
		ss.remove(f.sessionID)
	case sessionInitial:
		ss.remove(f.sessionID)
		f.session = ss.create(f, now)
	default:
		return ss.resume(f, now)
	}
	return 0
}

func (ss *fetchSessions) remove(id int32) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.drop(ss.byID[id])
}

// drop ends a session, if it is not nil. ss.mu is held.
func (ss *fetchSessions) drop(s *fetchSession) {
	if s != nil {
		ss.partitions -= s.counted
		delete(ss.byID, s.id)
	}
}

// count takes note of how many partitions a session has, and drops it if they
// are too many.
func (ss *fetchSessions) count(s *fetchSession, partitions int) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.byID[s.id] != s {
		return false
	}
	ss.partitions += partitions - s.counted
	s.counted = partitions
	if ss.partitions > sessionPartitionsMax {
		ss.drop(s)
		return false
	}
	return true
}

// create makes a session of the partitions of f; nil if there is no room, or
// nothing to remember.
func (ss *fetchSessions) create(f *fetch, now time.Time) *fetchSession {
	if len(f.parts) == 0 {
		return nil
	}
	s := &fetchSession{byID: f.version >= 13, usedAt: now, epoch: 1, index: map[partKey]int{}}
	s.rebuild(f.topics, f.parts, nil)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if !ss.makeRoom(now) || ss.partitions+len(s.parts) > sessionPartitionsMax {
		return nil
	}
	s.id = 1 + rand.Int32N(math.MaxInt32-1)
	for ss.byID[s.id] != nil {
		s.id = 1 + rand.Int32N(math.MaxInt32-1)
	}
	ss.byID[s.id] = s
	s.counted = len(s.parts)
	ss.partitions += s.counted
	return s
}

// makeRoom evicts the session that was idle longest, if need be and it was idle
// long enough. ss.mu is held.
func (ss *fetchSessions) makeRoom(now time.Time) bool {
	if ss.byID == nil {
		ss.byID = map[int32]*fetchSession{}
	}
	if len(ss.byID) < ss.max {
		return true
	}
	var oldest *fetchSession
	for _, s := range ss.byID {
		if oldest == nil || s.usedAt.Before(oldest.usedAt) {
			oldest = s
		}
	}
	if oldest == nil || now.Sub(oldest.usedAt) < sessionEvictionMin {
		return false
	}
	ss.drop(oldest)
	return true
}

func (ss *fetchSessions) get(id int32, now time.Time) *fetchSession {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.byID[id]
	if s != nil {
		s.usedAt = now
	}
	return s
}

// resume goes on with a session.
func (ss *fetchSessions) resume(f *fetch, now time.Time) (code int16) {
	s := ss.get(f.sessionID, now)
	if s == nil {
		return kerr.FetchSessionIDNotFound.Code
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.epoch != f.sessionEpoch:
		return kerr.InvalidFetchSessionEpoch.Code
	case s.byID != (f.version >= 13):
		return kerr.FetchSessionTopicIDError.Code
	}
	s.apply(f)
	if len(s.parts) == 0 {
		ss.remove(s.id)
		f.topics, f.parts = nil, nil
		return 0
	}
	s.epoch = nextSessionEpoch(s.epoch)
	if ss.count(s, len(s.parts)) {
		f.session = s
	}
	f.topics, f.parts = slices.Clone(s.topics), slices.Clone(s.parts)
	return 0
}

// nextSessionEpoch counts from 1 again when the numbers are used up.
func nextSessionEpoch(epoch int32) int32 {
	if epoch == math.MaxInt32 {
		return 1
	}
	return epoch + 1
}

// apply takes over what f says of its partitions. s.mu is held.
func (s *fetchSession) apply(f *fetch) {
	added := false
	f.eachPart(func(t *fetchTopic, p *fetchPart) {
		i, known := s.index[keyOf(t, p.index)]
		if !known {
			added = true
			return
		}
		have := &s.parts[i]
		have.epoch, have.offset, have.maxBytes = p.epoch, p.offset, p.maxBytes
		have.lastEpoch, have.logStart = p.lastEpoch, p.logStart
	})
	if added || len(f.forgotten) > 0 {
		s.rebuild(f.topics, f.parts, f.forgotten)
	}
}

func keyOf(t *fetchTopic, index int32) partKey {
	return partKey{name: t.name, id: t.id, index: index}
}

// rebuild adds and removes partitions. The parts of a topic stay together.
// s.mu is held, or nobody else knows s.
func (s *fetchSession) rebuild(topics []fetchTopic, parts []fetchPart, forgotten []partKey) {
	grouped := map[partKey][]fetchPart{}
	var order []partKey // of topics: with index 0
	add := func(topics []fetchTopic, parts []fetchPart, known bool) {
		for i := range topics {
			key := keyOf(&topics[i], 0)
			if _, ok := grouped[key]; !ok {
				key.name = strings.Clone(key.name)
				order = append(order, key)
			}
			for _, p := range parts[:topics[i].parts] {
				if _, have := s.index[keyOf(&topics[i], p.index)]; have == known {
					grouped[key] = append(grouped[key], p)
				}
			}
			parts = parts[topics[i].parts:]
		}
	}
	add(s.topics, s.parts, true)
	add(topics, parts, false)
	gone := make(map[partKey]bool, len(forgotten))
	for _, key := range forgotten {
		gone[key] = true
	}
	s.topics, s.parts, s.index = nil, nil, map[partKey]int{}
	for _, topic := range order {
		s.addTopic(topic, grouped[topic], gone)
	}
}

func (s *fetchSession) addTopic(topic partKey, parts []fetchPart, gone map[partKey]bool) {
	t := fetchTopic{name: topic.name, id: topic.id}
	for _, p := range parts {
		key := keyOf(&t, p.index)
		if _, twice := s.index[key]; twice || gone[key] {
			continue
		}
		s.index[key] = len(s.parts)
		p = fetchPart{index: p.index, epoch: p.epoch, offset: p.offset, maxBytes: p.maxBytes, lastEpoch: p.lastEpoch, logStart: p.logStart, sentEnd: p.sentEnd, sentStart: p.sentStart}
		s.parts = append(s.parts, p)
		t.parts++
	}
	if t.parts > 0 {
		s.topics = append(s.topics, t)
	}
}

// sending notes what the answer to f tells, and leaves out of it the partitions
// that have nothing new. Partitions with an error are always told, and told
// once more when it is over.
func (s *fetchSession) sending(f *fetch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.eachPart(func(t *fetchTopic, p *fetchPart) {
		i, ok := s.index[keyOf(t, p.index)]
		if !ok {
			return
		}
		have := &s.parts[i]
		p.leftOut = f.sessionEpoch != sessionInitial && p.code == 0 && p.region.Len == 0 &&
			p.preferred < 0 && p.diverging == nil && p.end == have.sentEnd && p.start == have.sentStart
		have.sentEnd, have.sentStart = p.end, p.start
		if p.code != 0 {
			have.sentEnd = -1
		}
	})
}
