package agent

import (
	"strconv"
	"time"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

// Headers of records.
const (
	headerHost       = "host"
	headerPath       = "path"
	headerFileID     = "file_id"
	headerFileOffset = "file_offset"
	headerTruncated  = "truncated" // "true": the line was cut at the limit
)

// worker turns lines into records: the pipeline's stages, key, headers and
// partition. It belongs to the runner's loop.
type worker struct {
	runner *runner
	pipe   *pipelines.Pipeline
	host   string
	chain  *pipelines.Chain // nil when there is no stage
	key    *pipelines.Expression
	labels []producer.Header
	plain  bool // lines go as they are, with headers shared by the file

	begun bool
	topic producer.Topic
	dead  producer.Topic

	event pipelines.Event
	meta  []pipelines.Header // of the file at hand
}

func newWorker(p *pipelines.Pipeline, host string) (*worker, error) {
	w := &worker{pipe: p, host: host}
	chain, err := p.NewProcess()
	if err != nil {
		return nil, err
	}
	if !chain.Empty() {
		w.chain = chain
	}
	if w.key, err = p.NewKey(); err != nil {
		return nil, err
	}
	for _, l := range p.Collect.Labels {
		w.labels = append(w.labels, header(l.Name, l.Value))
	}
	w.plain = w.chain == nil && w.key == nil && !p.Collect.File.Identity
	return w, nil
}

func (w *worker) begin(p prepared) {
	w.topic, w.dead, w.begun = p.topic, p.dead, true
}

// sharedHeaders are those that every raw line of a file has.
func (w *worker) sharedHeaders(s *source) []producer.Header {
	var h []producer.Header
	if w.pipe.Collect.File.Headers {
		h = append(h, header(headerHost, w.host), header(headerPath, s.track.path))
	}
	if w.pipe.Collect.File.Identity {
		h = append(h, producer.Header{Key: headerFileID, Value: s.identity})
	}
	return append(h, w.labels...)
}

// send turns a chunk of lines into records and sends them.
func (w *worker) send(s *source, c *chunk, now time.Time) {
	if s.partition < 0 {
		s.partition = partitionOf(s.identity, w.topic.Partitions)
	}
	c.begin(w.runner, s, now)
	if w.plain {
		w.sendPlain(s, c)
	} else {
		w.sendEach(s, c, now)
	}
	w.runner.dispatch(c, now)
}

// sendPlain is the short way: the line is the record.
func (w *worker) sendPlain(s *source, c *chunk) {
	topic := w.pipe.Topic.Name
	records := c.out.Records
	for i := range c.lines.Lines {
		l := &c.lines.Lines[i]
		records = append(records, producer.Record{
			Topic: topic, Partition: s.partition, Tag: uint32(i),
			Value: c.lines.Value(l), Headers: s.headers,
		})
		if l.Cut {
			records[len(records)-1].Headers = c.with(s.headers, header(headerTruncated, "true"))
		}
	}
	c.out.Records = records
}

// sendEach takes every line through stages, key and headers of its own.
func (w *worker) sendEach(s *source, c *chunk, now time.Time) {
	w.meta = w.metaOf(s)
	for i := range c.lines.Lines {
		l := &c.lines.Lines[i]
		w.sendLine(s, c, uint32(i), l, now)
	}
}

// metaOf is what stages and keys may know of a file's lines. Host and path are
// there whether they are sent or not.
func (w *worker) metaOf(s *source) []pipelines.Header {
	out := w.meta[:0]
	if !w.pipe.Collect.File.Headers {
		out = append(out, pipelines.Header(header(headerHost, w.host)), pipelines.Header(header(headerPath, s.track.path)))
	}
	for _, h := range s.headers {
		out = append(out, pipelines.Header(h))
	}
	return out
}

func (w *worker) sendLine(s *source, c *chunk, i uint32, l *tail.Line, now time.Time) {
	raw := c.lines.Value(l)
	e := &w.event
	e.Reset(raw)
	e.Meta = pipelines.Meta{Topic: w.pipe.Topic.Name, Time: now, Headers: w.meta}
	marked := false
	if w.chain != nil {
		res := w.chain.Apply(e)
		switch {
		case res.Outcome == pipelines.Drop:
			c.drop(res.Reason, l)
			return
		case res.Outcome == pipelines.Fail && w.pipe.Errors.Parse == pipelines.ErrorsDeadLetter:
			w.deadLetter(c, i, l, reasonOf(res), res.Stage)
			return
		case res.Outcome == pipelines.Fail && w.pipe.Errors.Parse == pipelines.ErrorsDrop:
			c.drop(res.Reason, l)
			return
		case res.Outcome == pipelines.Fail:
			marked = w.pipe.Topic.Value == pipelines.ValueEvent
		}
	}
	r := producer.Record{Topic: w.pipe.Topic.Name, Partition: s.partition, Tag: i, Value: raw}
	if e.Parsed() {
		r.Value = c.json(e)
	}
	if r.Key = w.keyOf(c, e); r.Key != nil {
		r.Partition = partitionOf(r.Key, w.topic.Partitions)
	}
	r.Headers = w.headers(s, c, l, e.Parsed(), marked)
	c.out.Records = append(c.out.Records, r)
}

// reasonOf says why a stage failed, for people.
func reasonOf(res pipelines.Result) string {
	if res.Err != nil {
		return res.Err.Error()
	}
	return res.Reason
}

// keyOf evaluates the key; nil means none. A key that cannot be worked out is
// none: the line is worth more than its place.
func (w *worker) keyOf(c *chunk, e *pipelines.Event) []byte {
	if w.key == nil {
		return nil
	}
	var v pipelines.Value
	if err := w.key.Eval(e, &v); err != nil || v.IsNull() {
		return nil
	}
	return c.text(v)
}

// headers returns a line's headers: the file's own where they are enough.
func (w *worker) headers(s *source, c *chunk, l *tail.Line, parsed, marked bool) []producer.Header {
	shared := s.headers
	if parsed { // its labels are fields
		shared = shared[:len(shared)-len(w.labels)]
	}
	identity := w.pipe.Collect.File.Identity
	if !identity && !marked && !l.Cut {
		return shared
	}
	start := c.grow(shared)
	if identity {
		c.headers = append(c.headers, producer.Header{Key: headerFileOffset, Value: c.decimal(c.lines.Base + int64(l.Start))})
	}
	if marked {
		c.headers = append(c.headers, header(pipelines.HeaderRaw, "1"))
	}
	if l.Cut {
		c.headers = append(c.headers, header(headerTruncated, "true"))
	}
	return c.headers[start:len(c.headers):len(c.headers)]
}

// deadLetter sends a line to the dead-letter topic as it was read.
func (w *worker) deadLetter(c *chunk, i uint32, l *tail.Line, reason, stage string) {
	c.dead.add(c.countOf(i))
	c.out.Records = append(c.out.Records, w.deadRecord(c, i, l, reason, stage))
}

// deadRecord is a line for the dead-letter topic. It reads nothing of the
// worker that changes once lines are sent: it is also called on the
// destination's goroutines.
func (w *worker) deadRecord(c *chunk, i uint32, l *tail.Line, reason, stage string) producer.Record {
	offset := c.decimal(c.lines.Base + int64(l.Start))
	key := append(append(append([]byte{}, c.id...), '/'), offset...)
	value := c.lines.Value(l)
	if most := w.dead.RecordBytesMax - recordOverheadBytes; most > 0 && len(value) > most {
		value = value[:most]
	}
	start := c.grow(c.shared)
	c.headers = append(c.headers,
		header("dlq_reason", reason), header("dlq_stage", stage), header("dlq_topic", w.pipe.Topic.Name),
		header("dlq_path", c.path), producer.Header{Key: "dlq_file_offset", Value: offset})
	return producer.Record{
		Topic: w.pipe.Errors.DeadLetter, Partition: partitionOf(key, w.dead.Partitions), Tag: i,
		Key: key, Value: value, Headers: c.headers[start:len(c.headers):len(c.headers)],
	}
}

// decimal writes a number into the chunk's memory.
func (c *chunk) decimal(n int64) []byte {
	start := len(c.arena)
	c.arena = strconv.AppendInt(c.arena, n, 10)
	return c.arena[start:len(c.arena):len(c.arena)]
}

// json writes an event into the chunk's memory.
func (c *chunk) json(e *pipelines.Event) []byte {
	start := len(c.arena)
	c.arena = e.AppendJSON(c.arena)
	return c.arena[start:len(c.arena):len(c.arena)]
}

// text writes a value into the chunk's memory; never nil.
func (c *chunk) text(v pipelines.Value) []byte {
	start := len(c.arena)
	c.arena = v.AppendText(c.arena)
	if len(c.arena) == start {
		return []byte{}
	}
	return c.arena[start:len(c.arena):len(c.arena)]
}

// grow begins a run of headers with shared ones and returns where.
func (c *chunk) grow(shared []producer.Header) int {
	start := len(c.headers)
	c.headers = append(c.headers, shared...)
	return start
}

// with returns shared headers and one more.
func (c *chunk) with(shared []producer.Header, more producer.Header) []producer.Header {
	start := c.grow(shared)
	c.headers = append(c.headers, more)
	return c.headers[start:len(c.headers):len(c.headers)]
}
