package api

// Fetch, versions 4 to 18.
//
//	5   log start offset
//	7   sessions (KIP-227)
//	9   leader epochs (KIP-320)
//	10  zstd is allowed (KIP-110)
//	11  rack and preferred replica (KIP-392)
//	12  flexible; last fetched epoch (KIP-595)
//	13  topic ids instead of names (KIP-516)
//	15  replica state instead of replica id (KIP-903)
//	16  the current leader's address in the answer of a wrong one (KIP-951)
//	17  replica directory id (KIP-853)
//	18  high watermark of the replica (KIP-1166)
//
// The answer is written by hand around file regions: records do not pass
// through this process.

import (
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
	"github.com/sluice-io/sluice/internal/record"
)

const (
	// zstdFetchVersion is the first version of Fetch that may get zstd.
	zstdFetchVersion = 10
	// sessionInitial and sessionFinal are the epochs of requests that name all
	// their partitions.
	sessionInitial = 0
	sessionFinal   = -1
	// consumerReplica and debugReplica are the replica ids of clients.
	consumerReplica = -1
	debugReplica    = -2
)

// fetch is one request, and the one waiter of all its partitions.
type fetch struct {
	a       *API
	r       *server.Request
	version int16

	replicaID    int32 // of a follower; below 0 a consumer
	brokerEpoch  int64 // of a follower
	rack         string
	maxWait      time.Duration
	minBytes     int
	maxBytes     int
	isolation    int8
	sessionID    int32
	sessionEpoch int32
	topics       []fetchTopic
	parts        []fetchPart
	forgotten    []partKey // that leave the session
	session      *fetchSession

	mu    sync.Mutex
	done  bool // answered, being answered, or the client has gone
	need  int64
	waits []*replica.Wait // by part; nil where there is none
	stop  func() bool
}

type fetchTopic struct {
	name  string
	id    cluster.TopicID
	parts int // how many of fetch.parts belong to it
}

// fetchPart is one partition of a request with what was last read of it.
type fetchPart struct {
	index    int32
	epoch    int32
	offset   int64
	maxBytes int32
	// lastEpoch is the epoch of the follower's last record, logStart its log's start.
	lastEpoch int32
	logStart  int64

	partition *replica.Partition
	// seen and reached are the bytes that had come and where the mark was before it
	// was read; see fetch.come and fetch.reached.
	seen, reached int64

	code            int16
	preferred       int32 // the replica that is to be read instead, -1 if there is none
	diverging       *replica.EpochEnd
	start, end, lso int64
	region          commitlog.Region

	// Of a session: what was told last, and whether there is nothing to tell.
	sentStart, sentEnd int64
	leftOut            bool
}

func fetchRecords(a *API, r *server.Request) {
	f := &fetch{a: a, r: r, version: r.Version}
	if err := f.decode(r.Body); err != nil {
		r.Fail(err)
		return
	}
	if code := a.sessions.open(f, a.Now()); code != 0 {
		f.respondError(code)
		return
	}
	f.lookUp()
	r.ReleaseBody()
	have, ready := f.read()
	if have >= f.minBytes || ready || f.maxWait <= 0 || len(f.parts) == 0 || a.draining.Load() {
		r.Respond(f.response())
		return
	}
	f.release()
	f.wait(int64(f.minBytes - have))
}

func (f *fetch) decode(body []byte) error {
	d := reader{b: body, flexible: f.version >= 12}
	f.replicaID = consumerReplica
	if f.version <= 14 {
		f.replicaID = d.int32()
	}
	f.maxWait = time.Duration(d.int32()) * time.Millisecond
	f.minBytes = int(d.int32())
	f.maxBytes = min(int(d.int32()), int(f.a.cfg.FetchMaxBytes))
	f.isolation = d.int8()
	f.sessionEpoch = sessionFinal
	if f.version >= 7 {
		f.sessionID, f.sessionEpoch = d.int32(), d.int32()
	}
	for n := d.array(1); n > 0 && !d.bad; n-- {
		f.decodeTopic(&d)
	}
	if f.version >= 7 {
		f.decodeForgotten(&d)
	}
	if f.version >= 11 {
		rack, _ := d.str()
		f.rack = strings.Clone(rack)
	}
	f.decodeTags(&d)
	return d.err()
}

func (f *fetch) decodeTopic(d *reader) {
	var t fetchTopic
	if f.version >= 13 {
		t.id = d.uuid()
	} else {
		t.name, _ = d.str()
	}
	t.parts = d.array(16)
	d.limit(len(f.topics), len(f.parts)+t.parts)
	for n := t.parts; n > 0 && !d.bad; n-- {
		f.decodePart(d)
	}
	d.tags()
	f.topics = append(f.topics, t)
}

func (f *fetch) decodePart(d *reader) {
	p := fetchPart{index: d.int32(), epoch: replica.NoEpoch, lastEpoch: -1, logStart: -1, sentEnd: -1}
	if f.version >= 9 {
		p.epoch = d.int32()
	}
	p.offset = d.int64()
	if f.version >= 12 {
		p.lastEpoch = d.int32()
	}
	if f.version >= 5 {
		p.logStart = d.int64()
	}
	p.maxBytes = d.int32()
	d.tags()
	f.parts = append(f.parts, p)
}

// decodeForgotten reads the partitions that leave the session.
func (f *fetch) decodeForgotten(d *reader) {
	for n := d.array(1); n > 0 && !d.bad; n-- {
		var key partKey
		if f.version >= 13 {
			key.id = d.uuid()
		} else {
			key.name, _ = d.str()
		}
		count := d.array(4)
		d.limit(0, len(f.forgotten)+count)
		for ; count > 0 && !d.bad; count-- {
			key.index = d.int32()
			f.forgotten = append(f.forgotten, key)
		}
		d.tags()
	}
}

// replicaStateTag carries who a follower is, from version 15 on.
const replicaStateTag = 1

func (f *fetch) decodeTags(d *reader) {
	if !d.flexible {
		return
	}
	for n := d.uvarint(); n > 0 && !d.bad; n-- {
		tag := d.uvarint()
		value := reader{b: d.span(int(d.uvarint())), flexible: true}
		if tag == replicaStateTag && f.version >= 15 {
			f.replicaID, f.brokerEpoch = value.int32(), value.int64()
			d.bad = d.bad || value.bad
		}
	}
}

// eachPart calls fn for each partition with its topic.
func (f *fetch) eachPart(fn func(*fetchTopic, *fetchPart)) {
	next := 0
	for i := range f.topics {
		for range f.topics[i].parts {
			fn(&f.topics[i], &f.parts[next])
			next++
		}
	}
}

// lookUp finds the partitions. Nothing aliases the body after it.
func (f *fetch) lookUp() {
	f.forgotten = nil
	parts := f.parts
	for i := range f.topics {
		t := &f.topics[i]
		f.lookUpTopic(t, parts[:t.parts])
		parts = parts[t.parts:]
	}
}

func (f *fetch) lookUpTopic(t *fetchTopic, parts []fetchPart) {
	name := ""
	for i := range parts {
		p := &parts[i]
		if p.partition, p.code = f.a.find(t.name, t.id, f.version >= 13, p.index); p.partition != nil {
			name = p.partition.Topic()
		}
	}
	switch {
	case f.version >= 13: // the request has no names
	case name != "":
		t.name = name
	default:
		t.name = strings.Clone(t.name)
	}
}

// read reads all partitions up to the limits, and reports how many bytes there
// are and whether a partition has something to tell that does not wait: an
// error, another replica to read, where a follower is to cut its log. The order begins anywhere, so that
// a partition with much to read does not starve those after it.
func (f *fetch) read() (have int, ready bool) {
	if len(f.parts) == 0 {
		return 0, false
	}
	first := rand.N(len(f.parts))
	for i := range f.parts {
		p := &f.parts[(first+i)%len(f.parts)]
		if p.partition != nil {
			f.readPart(p, f.maxBytes-have, have == 0)
		}
		have += p.region.Len
		ready = ready || p.code != 0 || p.preferred >= 0 || p.diverging != nil
	}
	return have, ready
}

// readPart reads one partition. The first batch of an answer is given whole,
// however large, so that its consumer can go on.
func (f *fetch) readPart(p *fetchPart, room int, first bool) {
	p.code, p.region, p.preferred, p.diverging = 0, commitlog.Region{}, -1, nil
	p.start, p.end, p.lso = -1, -1, -1
	if f.follows() {
		f.readFollower(p, room, first)
		return
	}
	if err := f.mayRead(p); err != nil {
		p.code = dataCode(err)
		return
	}
	log := p.partition.Log()
	p.seen, p.reached = f.come(p.partition), f.reached(p.partition)
	p.start, p.end, p.lso = log.StartOffset(), p.partition.HighWatermark(), p.partition.LastStableOffset()
	if p.preferred = f.preferredReplica(p); p.preferred >= 0 {
		return
	}
	switch {
	case p.offset < p.start || p.offset > log.EndOffset():
		p.code = kerr.OffsetOutOfRange.Code
	case f.version < zstdFetchVersion && storesZstd(p.partition.Config()):
		p.code = kerr.UnsupportedCompressionType.Code
	case p.offset < p.end && (room > 0 || first):
		f.readRegion(p, min(int(p.maxBytes), room), first)
	}
}

func storesZstd(cfg *replica.TopicConfig) bool { return cfg.Compress && cfg.Codec == record.Zstd }

func (f *fetch) readRegion(p *fetchPart, maxBytes int, first bool) {
	region, err := p.partition.Read(p.offset, max(maxBytes, 0), first)
	f.took(p, region, err)
}

// took notes what a read gave.
func (f *fetch) took(p *fetchPart, region commitlog.Region, err error) {
	if err != nil {
		p.code = dataCode(err)
		if p.code == kerr.KafkaStorageError.Code || p.code == kerr.UnknownServerError.Code {
			f.a.Log.Error("fetch", "topic", p.partition.Topic(), "partition", p.index, "offset", p.offset, "error", err)
		}
		return
	}
	p.region = region
}

// release gives up what was read.
func (f *fetch) release() {
	for i := range f.parts {
		if p := &f.parts[i]; p.region.Len > 0 {
			p.region.Release()
			p.region = commitlog.Region{}
		}
	}
}

// respondError answers with an error for the request as a whole.
func (f *fetch) respondError(code int16) {
	w := writer{flexible: f.version >= 12}
	w.int32(0) // throttle time
	w.int16(code)
	w.int32(0) // session id
	w.array(0)
	w.tags()
	f.r.Respond(server.Response{Parts: []server.Part{{Bytes: w.b}}, Flexible: w.flexible})
}

// response encodes the answer. The server releases the regions.
func (f *fetch) response() server.Response {
	if f.session != nil {
		f.session.sending(f)
	}
	e := fetchEncoder{
		f:     f,
		w:     writer{b: make([]byte, 0, 64+32*len(f.topics)+80*len(f.parts)), flexible: f.version >= 12},
		cuts:  make([]cut, 0, len(f.parts)),
		parts: f.parts,
	}
	e.encode()
	return server.Response{Parts: e.assemble(), Flexible: e.w.flexible}
}

// fetchEncoder encodes an answer into one byte slice with cuts where the
// records go.
type fetchEncoder struct {
	f      *fetch
	w      writer
	cuts   []cut
	parts  []fetchPart // those to come
	misled bool        // a leader was named
}

// cut is a place in the bytes where a region goes.
type cut struct {
	at   int
	part *fetchPart
}

func (e *fetchEncoder) encode() {
	e.w.int32(0) // throttle time
	if e.f.version >= 7 {
		e.w.int16(0) // no error of the session
		e.w.int32(e.f.answeredSession())
	}
	e.w.array(e.f.toldTopics())
	for i := range e.f.topics {
		e.topic(&e.f.topics[i])
	}
	e.f.a.encodeEndpoints(&e.w, e.f.r.Conn.ListenerName(), e.misled && e.f.version >= 16)
}

// answeredSession is the id of the session that the client may go on with, 0
// if there is none.
func (f *fetch) answeredSession() int32 {
	if f.session == nil {
		return 0
	}
	return f.session.id
}

// toldTopics counts the topics of which there is something to tell.
func (f *fetch) toldTopics() int {
	count, parts := 0, f.parts
	for i := range f.topics {
		if told(parts[:f.topics[i].parts]) > 0 || f.topics[i].parts == 0 {
			count++
		}
		parts = parts[f.topics[i].parts:]
	}
	return count
}

func told(parts []fetchPart) (count int) {
	for i := range parts {
		if !parts[i].leftOut {
			count++
		}
	}
	return count
}

func (e *fetchEncoder) topic(t *fetchTopic) {
	parts := e.parts[:t.parts]
	e.parts = e.parts[t.parts:]
	count := told(parts)
	if count == 0 && t.parts > 0 {
		return
	}
	if e.f.version >= 13 {
		e.w.b = append(e.w.b, t.id[:]...)
	} else {
		e.w.str(t.name)
	}
	e.w.array(count)
	for i := range parts {
		if !parts[i].leftOut {
			e.part(t, &parts[i])
		}
	}
	e.countSent(parts)
	e.w.tags()
}

func (e *fetchEncoder) countSent(parts []fetchPart) {
	sent := 0
	var topic string
	for i := range parts {
		if parts[i].region.Len > 0 {
			sent += parts[i].region.Len
			topic = parts[i].partition.Topic()
		}
	}
	switch {
	case sent == 0:
	case e.f.follows():
		e.f.a.metrics.replicated.Add(float64(sent))
	default:
		e.f.a.metrics.topic(topic).bytesOut.Add(float64(sent))
	}
}

func (e *fetchEncoder) part(t *fetchTopic, p *fetchPart) {
	w := &e.w
	if p.partition == nil {
		p.start, p.end, p.lso, p.preferred = -1, -1, -1, -1
	}
	w.int32(p.index)
	w.int16(p.code)
	w.int64(p.end)
	w.int64(p.lso)
	if e.f.version >= 5 {
		w.int64(p.start)
	}
	// No transaction was ever aborted. Without read_committed there is no list.
	w.array(min(int(e.f.isolation), readCommitted) - 1)
	if e.f.version >= 11 {
		w.int32(p.preferred)
	}
	w.length(p.region.Len, 4)
	if p.region.Len > 0 {
		e.cuts = append(e.cuts, cut{at: len(w.b), part: p})
	}
	if e.f.version >= 12 && p.code == kerr.NotLeaderForPartition.Code {
		leader, epoch := e.f.a.leaderOf(t.name, t.id, e.f.version >= 13, p.index)
		w.currentLeader(1, leader, epoch)
		e.misled = true
		return
	}
	if p.diverging != nil {
		w.diverging(p.diverging)
		return
	}
	w.tags()
}

// assemble puts the regions into the cuts.
func (e *fetchEncoder) assemble() []server.Part {
	parts := make([]server.Part, 0, 2*len(e.cuts)+1)
	from := 0
	for _, c := range e.cuts {
		r := &c.part.region
		parts = append(parts,
			server.Part{Bytes: e.w.b[from:c.at]},
			server.Part{File: r.File, Pos: r.Pos, Len: r.Len, Release: r.Release})
		from = c.at
	}
	return append(parts, server.Part{Bytes: e.w.b[from:]})
}
