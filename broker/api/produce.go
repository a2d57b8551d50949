package api

// Produce, versions 3 to 13; 0 to 2 are advertised and refused.
//
//	3   transactional id; one batch of format 2 per partition
//	5   log start offset in the answer
//	7   zstd is allowed (KIP-110)
//	8   bad records are named (KIP-467)
//	9   flexible
//	10  the current leader in the answer of a wrong one (KIP-951)
//	12  transactions without AddPartitionsToTxn (KIP-890)
//	13  topic ids instead of names (KIP-516)
//
// The request is decoded, checked and appended without an allocation per
// record or partition. The batches are written as they came: only the base
// offset and leader epoch change, in place.

import (
	"errors"
	"fmt"
	"slices"
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
	produceVersionMin = 3
	// leaderNamedVersion is the first whose answer names the leader to a client
	// that asks another.
	leaderNamedVersion = 10
	acksNone           = 0
	acksLeader         = 1
	acksAll            = -1
)

// produceRequest is a decoded request with what became of each partition. Its
// strings and byte slices alias the body.
type produceRequest struct {
	version       int16
	acks          int16
	timeout       time.Duration
	transactional bool
	topics        []produceTopic
	parts         []producePart
	sums          []uint32 // of the pieces of the frame
}

type produceTopic struct {
	name  string
	id    cluster.TopicID
	parts int // how many of produceRequest.parts belong to it
}

type producePart struct {
	index   int32
	records []byte
	at      int // where in the frame the records start

	partition *replica.Partition
	code      int16
	message   string
	bad       []record.RecordError
	base      int64
	last      int64
	epoch     int32 // of the leader that appended
	minISR    int
	time      int64 // log append time, -1 if the producer's times stand
	start     int64
}

// producePool keeps decoded requests and the checkers' buffers.
type producePool struct{ requests, checkers sync.Pool }

func (pp *producePool) request() *produceRequest {
	if q, ok := pp.requests.Get().(*produceRequest); ok {
		return q
	}
	return new(produceRequest)
}

// pooledPartsMax keeps the memory of unusually wide requests out of the pool.
const pooledPartsMax = 1000

// recycle gives q back; nothing of it may be in use.
func (pp *producePool) recycle(q *produceRequest) {
	if cap(q.parts) > pooledPartsMax || cap(q.topics) > pooledPartsMax {
		return
	}
	clear(q.topics)
	clear(q.parts)
	q.topics, q.parts, q.sums = q.topics[:0], q.parts[:0], nil
	pp.requests.Put(q)
}

func (pp *producePool) checker() *checker {
	if c, ok := pp.checkers.Get().(*checker); ok {
		return c
	}
	return newChecker()
}

func produce(a *API, r *server.Request) {
	if r.Version < produceVersionMin {
		r.Fail(fmt.Errorf("%w: Produce version %d, the least is %d", errUnsupported, r.Version, produceVersionMin))
		return
	}
	q := a.produces.request()
	defer a.produces.recycle(q)
	if err := q.decode(r.Version, r.Body); err != nil {
		r.Fail(err)
		return
	}
	q.placeIn(r)
	a.appendAll(q)
	if q.acks == acksNone {
		a.endUnacknowledged(r, q)
		return
	}
	resp := a.encodeProduce(q, r.Conn.ListenerName())
	if q.acks == acksAll && q.appended() {
		a.awaitCommit(r, q, resp)
		return
	}
	r.Respond(produceResponse(r.Version, resp.b))
}

func produceResponse(version int16, b []byte) server.Response {
	return server.Response{Parts: []server.Part{{Bytes: b}}, Flexible: version >= 9}
}

// endUnacknowledged ends an acks=0 request. The client is not told of an error
// but by the end of its connection.
func (a *API) endUnacknowledged(r *server.Request, q *produceRequest) {
	for i := range q.parts {
		if p := &q.parts[i]; p.code != 0 {
			r.Fail(fmt.Errorf("produce with acks=0 to partition %d: %w: %s", p.index, kerr.ErrorForCode(p.code), p.message))
			return
		}
	}
	r.NoResponse()
}

// decode reads a request.
func (q *produceRequest) decode(version int16, body []byte) error {
	d := reader{b: body, flexible: version >= 9, size: len(body)}
	q.version = version
	_, q.transactional = d.str()
	q.acks = d.int16()
	q.timeout = time.Duration(d.int32()) * time.Millisecond
	for n := d.array(1); n > 0 && !d.bad; n-- {
		q.decodeTopic(&d)
	}
	d.tags()
	return d.err()
}

func (q *produceRequest) decodeTopic(d *reader) {
	var t produceTopic
	if q.version >= 13 {
		t.id = d.uuid()
	} else {
		t.name, _ = d.str()
	}
	t.parts = d.array(5)
	d.limit(len(q.topics), len(q.parts)+t.parts)
	for n := t.parts; n > 0 && !d.bad; n-- {
		p := producePart{index: d.int32(), records: d.bytes()}
		p.at = d.taken() - len(p.records)
		q.parts = append(q.parts, p)
		d.tags()
	}
	d.tags()
	q.topics = append(q.topics, t)
}

// placeIn makes the places in the body those in the frame, whose sums are known.
func (q *produceRequest) placeIn(r *server.Request) {
	q.sums = r.Sums
	for i := range q.parts {
		q.parts[i].at += r.BodyAt
	}
}

// appendAll checks and appends every partition's batch.
func (a *API) appendAll(q *produceRequest) {
	now := a.Now()
	c := a.produces.checker()
	defer a.produces.checkers.Put(c)
	parts := q.parts
	for i := range q.topics {
		t := &q.topics[i]
		for j := range t.parts {
			parts[j].refuse(0, "")
			a.appendPart(c, q, t, &parts[j], now)
		}
		parts = parts[t.parts:]
	}
}

func (p *producePart) refuse(code int16, message string) {
	p.code, p.message = code, message
	p.base, p.last, p.time, p.start = -1, -1, -1, -1
}

// fail refuses with an error's code and text.
func (p *producePart) fail(err error) {
	p.refuse(dataCode(err), err.Error())
	var invalid *record.InvalidRecordError
	if errors.As(err, &invalid) {
		p.bad = invalid.Records
		if len(p.bad) == 0 && invalid.Index >= 0 {
			p.bad = []record.RecordError{{Index: invalid.Index, Reason: invalid.Reason}}
		}
	}
}

func (a *API) appendPart(c *checker, q *produceRequest, t *produceTopic, p *producePart, now time.Time) {
	if code, message := q.refuses(); code != 0 {
		p.refuse(code, message)
		return
	}
	var code int16
	if p.partition, code = a.find(t.name, t.id, q.version >= 13, p.index); code != 0 {
		p.refuse(code, "")
		return
	}
	if cluster.IsInternal(p.partition.Topic()) {
		p.refuse(kerr.InvalidTopicException.Code, "internal topics are written by brokers only")
		return
	}
	if err := a.appendBatch(c, q, p, now); err != nil {
		p.fail(err)
	}
}

// refuses tells whether the request as a whole asks for what there is not.
func (q *produceRequest) refuses() (int16, string) {
	switch {
	case q.acks < acksAll || q.acks > acksLeader:
		return kerr.InvalidRequiredAcks.Code, ""
	case q.transactional:
		return kerr.InvalidTxnState.Code, "transactions are not supported"
	}
	return 0, ""
}

func (a *API) appendBatch(c *checker, q *produceRequest, p *producePart, now time.Time) error {
	cfg := p.partition.Config()
	batch, err := c.check(p.records, record.Pieces{Sums: q.sums, At: p.at}, q.version, cfg, now)
	if err != nil {
		return err
	}
	minISR := 0
	if q.acks == acksAll {
		minISR = cfg.MinInSync
	}
	done, err := p.partition.Append(batch, minISR, now)
	if err != nil {
		a.logAppendError(p, err)
		return err
	}
	p.base, p.last, p.time = done.First, done.Last, done.LogAppendTime
	p.epoch, p.minISR = done.Epoch, minISR
	p.start = p.partition.Log().StartOffset()
	if !done.Duplicate {
		m := a.metrics.topic(p.partition.Topic())
		m.bytesIn.Add(float64(len(batch)))
		m.recordsIn.Add(float64(batch.Count()))
	}
	return nil
}

// logAppendError logs what is the broker's trouble, not the producer's.
func (a *API) logAppendError(p *producePart, err error) {
	if errors.Is(err, replica.ErrOffline) {
		return // it was logged when it went offline
	}
	if errors.Is(err, commitlog.ErrNoSpace) {
		a.logFullDisk(p, err)
		return
	}
	switch dataCode(err) {
	case kerr.KafkaStorageError.Code, kerr.UnknownServerError.Code, kerr.CorruptMessage.Code:
		a.Log.Error("append", "topic", p.partition.Topic(), "partition", p.index, "error", err)
	}
}

// fullDiskLogInterval is how often a disk that stays full is logged: every
// producer meets it at every try.
const fullDiskLogInterval = 10 * time.Second

func (a *API) logFullDisk(p *producePart, err error) {
	now, last := a.Now().UnixMilli(), a.fullDisk.Load()
	if now-last < fullDiskLogInterval.Milliseconds() || !a.fullDisk.CompareAndSwap(last, now) {
		return
	}
	a.Log.Error("the disk is full: records are refused with KAFKA_STORAGE_ERROR and reads go on; free some room, or lower retention.bytes or retention.ms of the largest topics; writing goes on by itself when there is room",
		"topic", p.partition.Topic(), "partition", p.index, "error", err)
}

// appended tells whether anything was appended that a producer may wait for.
func (q *produceRequest) appended() bool {
	for i := range q.parts {
		if q.parts[i].code == 0 {
			return true
		}
	}
	return false
}

// produceAnswer is an encoded answer that can still be changed for the
// partitions that turn out otherwise.
type produceAnswer struct {
	b      []byte
	marks  []answerMark // of each partition, with acks=all
	endAt  int          // where the tags of the whole begin
	misled bool         // those tags have the brokers' addresses
}

// answerMark is where a partition's error code and its tags are.
type answerMark struct{ code, tags int }

// encodeProduce encodes the answer.
func (a *API) encodeProduce(q *produceRequest, listener string) produceAnswer {
	w := writer{b: make([]byte, 0, q.encodedBytes()), flexible: q.version >= 9}
	var answer produceAnswer
	if q.acks == acksAll {
		answer.marks = make([]answerMark, 0, len(q.parts))
	}
	w.array(len(q.topics))
	parts := q.parts
	for i := range q.topics {
		t := &q.topics[i]
		if q.version >= 13 {
			w.b = append(w.b, t.id[:]...)
		} else {
			w.str(t.name)
		}
		w.array(t.parts)
		for j := range t.parts {
			mark := a.encodeProducePart(&w, q.version, t, &parts[j])
			if answer.marks != nil {
				answer.marks = append(answer.marks, mark)
			}
			answer.misled = answer.misled || q.version >= leaderNamedVersion && parts[j].code == kerr.NotLeaderForPartition.Code
		}
		parts = parts[t.parts:]
		w.tags()
	}
	w.int32(0) // throttle time
	answer.endAt = len(w.b)
	a.encodeEndpoints(&w, listener, answer.misled)
	answer.b = w.b
	return answer
}

func (q *produceRequest) encodedBytes() int {
	n := 32
	for i := range q.topics {
		n += 24 + len(q.topics[i].name)
	}
	for i := range q.parts {
		n += 48 + len(q.parts[i].message)
	}
	return n
}

func (a *API) encodeProducePart(w *writer, version int16, t *produceTopic, p *producePart) (mark answerMark) {
	w.int32(p.index)
	mark.code = len(w.b)
	w.int16(p.code)
	w.int64(p.base)
	w.int64(p.time)
	if version >= 5 {
		w.int64(p.start)
	}
	if version >= 8 {
		w.array(len(p.bad))
		for _, bad := range p.bad {
			w.int32(int32(bad.Index))
			w.nullableStr(bad.Reason)
			w.tags()
		}
		w.nullableStr(p.message)
	}
	mark.tags = len(w.b)
	if version >= leaderNamedVersion && p.code == kerr.NotLeaderForPartition.Code {
		leader, epoch := a.leaderOf(t.name, t.id, version >= 13, p.index)
		w.currentLeader(0, leader, epoch)
	} else {
		w.tags()
	}
	return mark
}

// produceWait answers a produce when its records are committed. It is the one
// waiter of all its partitions.
type produceWait struct {
	a       *API
	r       *server.Request
	version int16

	mu      sync.Mutex
	resp    produceAnswer
	parts   []commitWait
	pending int  // parts that are not decided
	done    bool // answered, or the client has gone
	stop    func() bool
}

// commitWait is the wait for one partition; waiters find it by the Wait.
type commitWait struct {
	replica.Wait
	partition *replica.Partition
	epoch     int32
	mark      answerMark
	decided   bool
	lost      bool // decided by the end of this broker's leadership
}

// awaitCommit answers when the high watermarks have passed the appended
// records. It is called with the request's body in place and gives it up.
func (a *API) awaitCommit(r *server.Request, q *produceRequest, resp produceAnswer) {
	w := &produceWait{a: a, r: r, version: q.version, resp: resp}
	for i := range q.parts {
		p := &q.parts[i]
		if p.code == 0 && !p.partition.Committed(p.last, p.epoch, p.minISR) {
			w.parts = append(w.parts, commitWait{
				Wait:      replica.Wait{Waiter: w, Offset: p.last + 1, MinISR: p.minISR},
				partition: p.partition,
				epoch:     p.epoch,
				mark:      resp.marks[i],
			})
		}
	}
	if len(w.parts) == 0 {
		r.Respond(produceResponse(q.version, resp.b))
		return
	}
	timeout := q.timeout
	r.ReleaseBody()
	w.start(timeout)
}

func (w *produceWait) start(timeout time.Duration) {
	w.mu.Lock()
	w.pending = len(w.parts)
	w.stop = w.a.AfterFunc(timeout, w.expire)
	w.mu.Unlock()
	for i := range w.parts {
		p := &w.parts[i]
		if armed, err := p.partition.AwaitCommit(&p.Wait, p.epoch); !armed {
			w.Fire(&p.Wait, err)
		}
	}
	w.r.OnGone(w.gone)
}

// Fire implements replica.Waiter.
func (w *produceWait) Fire(wait *replica.Wait, err error) {
	w.mu.Lock()
	for i := range w.parts {
		if p := &w.parts[i]; &p.Wait == wait && !p.decided && !w.done {
			p.decide(w.resp.b, dataCode(err))
			w.pending--
		}
	}
	last := w.pending == 0 && !w.done
	w.done = w.done || last
	w.mu.Unlock()
	if last {
		w.end()
	}
}

// decide sets the code in the response. The offsets stay: the records are in
// the log, whether or not they get committed.
func (p *commitWait) decide(resp []byte, code int16) {
	p.decided, p.lost = true, code == kerr.NotLeaderForPartition.Code
	resp[p.mark.code], resp[p.mark.code+1] = byte(uint16(code)>>8), byte(code)
}

// expire answers that the time is over for what is not committed yet.
func (w *produceWait) expire() {
	w.mu.Lock()
	if w.done {
		w.mu.Unlock()
		return
	}
	w.done = true
	for i := range w.parts {
		if p := &w.parts[i]; !p.decided {
			p.decide(w.resp.b, kerr.RequestTimedOut.Code)
		}
	}
	w.mu.Unlock()
	w.end()
}

// gone ends the wait of a client that has left.
func (w *produceWait) gone() {
	w.mu.Lock()
	done := w.done
	w.done = true
	w.mu.Unlock()
	if done {
		return
	}
	w.forget()
	w.r.NoResponse()
}

// end answers; it is called once, by who set done.
func (w *produceWait) end() {
	w.forget()
	if w.version >= leaderNamedVersion && slices.ContainsFunc(w.parts, func(p commitWait) bool { return p.lost }) {
		w.nameLeaders()
	}
	w.r.Respond(produceResponse(w.version, w.resp.b))
}

// nameLeaders puts the present leaders of the partitions that this broker has
// ceased to lead into their tags, which are empty, and the brokers' addresses into
// those of the answer.
func (w *produceWait) nameLeaders() {
	old := w.resp
	out := writer{b: make([]byte, 0, len(old.b)+64), flexible: true}
	from := 0
	for i := range w.parts { // in the order of the answer
		p := &w.parts[i]
		if !p.lost {
			continue
		}
		out.b = append(out.b, old.b[from:p.mark.tags]...)
		leader, epoch := w.a.leaderOf("", p.partition.TopicID(), true, p.partition.Index())
		out.currentLeader(0, leader, epoch)
		from = p.mark.tags + 1
	}
	out.b = append(out.b, old.b[from:old.endAt]...)
	if old.misled {
		out.b = append(out.b, old.b[old.endAt:]...)
	} else {
		w.a.encodeEndpoints(&out, w.r.Conn.ListenerName(), true)
	}
	w.resp.b = out.b
}

func (w *produceWait) forget() {
	w.stop()
	for i := range w.parts {
		w.parts[i].partition.Forget(&w.parts[i].Wait)
	}
}
