package agent

import (
	"strconv"

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
	headerSplit      = "split"     // "true": a limit ended the record of several lines before its last
	headerStream     = "stream"    // of a container or a command: stdout or stderr
	headerTime       = "time"      // when the container's runtime took the line
)

// worker turns lines into records: the pipeline's stages, key, headers and
// partition. It belongs to the runner's loop, but for deadLetters.
type worker struct {
	runner *runner
	pipe   *pipelines.Pipeline
	host   string
	chain  *pipelines.Chain // nil when there is no stage
	key    *pipelines.Expression
	hash   *pipelines.Expression
	// number gives a line its partition, and named its topic.
	number *pipelines.Expression
	named  *pipelines.Expression
	routes *routes
	labels []producer.Header
	// hostHeader is shared by all files.
	hostHeader producer.Header
	plain      bool // lines go as they are, with headers shared by the file
	// identity says that each record tells its place in its file.
	identity bool
	turn     int32 // of round robin: the partition of the open parcel

	begun bool
	topic producer.Topic
	dead  producer.Topic

	event   pipelines.Event
	meta    []pipelines.Header // of the file at hand
	value   []byte             // of the line at hand
	text    []byte             // its key, or what is hashed
	offset  []byte             // its offset
	headers []producer.Header  // its headers, when they are its own
}

func newWorker(p *pipelines.Pipeline, host string) (*worker, error) {
	w := &worker{pipe: p, host: host, hostHeader: header(headerHost, host), identity: p.Collect.File != nil && p.Collect.File.Identity}
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
	if w.hash, err = p.NewHash(); err != nil {
		return nil, err
	}
	if w.number, err = p.NewPartition(); err != nil {
		return nil, err
	}
	if w.named, err = p.NewTopicName(); err != nil {
		return nil, err
	}
	w.plain = w.chain == nil && w.key == nil && w.hash == nil && w.number == nil && w.named == nil && !w.identity
	return w, nil
}

func (w *worker) begin(p prepared) {
	w.topic, w.dead, w.begun = p.topic, p.dead, true
}

// pack turns a chunk of lines into records of the open parcel.
func (w *worker) pack(o *origin, c *reading) {
	switch {
	case w.pipe.Topic.Spread == pipelines.SpreadRoundRobin:
		o.partition = w.turn % w.topic.Partitions
	case o.partition < 0:
		o.partition = partitionOf(o.spread, w.topic.Partitions)
	}
	if w.plain {
		w.packPlain(o, c)
		return
	}
	w.meta = w.metaOf(o)
	for i := range c.lines.Lines {
		w.packLine(o, c, i)
	}
}

// packPlain is the short way: the line is the record.
func (w *worker) packPlain(o *origin, c *reading) {
	to := w.runner.packer.To(w.pipe.Topic.Name, o.partition, classLines)
	for i := range c.lines.Lines {
		l := &c.lines.Lines[i]
		headers := o.headers
		if l.Cut || l.Split || c.origins != nil {
			headers = w.own(append(w.headers[:0], headers...), c, i)
		}
		w.add(to, c, l, nil, c.lines.Value(l), headers)
	}
}

// add puts a record into the batch of its partition.
func (w *worker) add(to *producer.Pack, c *reading, l *tail.Line, key, value []byte, headers []producer.Header) {
	n := countOf(l)
	if err := to.Add(c.ms, key, value, headers, c.mark(l)); err != nil {
		w.runner.say(place{kind: "build"}, "lines cannot be put into batches", err)
	}
	c.sent.add(n)
}

// metaOf is what stages and keys may know of a file's lines. Host and path are
// there whether they are sent or not.
func (w *worker) metaOf(o *origin) []pipelines.Header {
	out := w.meta[:0]
	if !w.pipe.Collect.Options().Headers {
		out = append(out, pipelines.Header(header(headerHost, w.host)), pipelines.Header(header(headerPath, o.name)))
	}
	for _, h := range o.headers {
		out = append(out, pipelines.Header(h))
	}
	return out
}

// packLine takes a line through stages, key and headers of its own.
func (w *worker) packLine(o *origin, c *reading, i int) {
	l := &c.lines.Lines[i]
	raw := c.lines.Value(l)
	e := &w.event
	e.Reset(raw)
	e.Meta = pipelines.Meta{Topic: w.pipe.Topic.Name, Time: c.now, Headers: w.metaOfLine(c, i)}
	marked := false
	if w.chain != nil {
		res := w.chain.Apply(e)
		switch {
		case res.Outcome == pipelines.Drop:
			c.drop(res.Reason, l)
			return
		case res.Outcome == pipelines.Fail && w.pipe.Errors.Parse == pipelines.ErrorsDeadLetter:
			w.deadLetter(o, c, l, reasonOf(res), res.Stage)
			return
		case res.Outcome == pipelines.Fail && w.pipe.Errors.Parse == pipelines.ErrorsDrop:
			c.drop(res.Reason, l)
			return
		case res.Outcome == pipelines.Fail, !e.Parsed():
			marked = w.pipe.Topic.Value == pipelines.ValueEvent
		}
	}
	value := raw
	if e.Parsed() {
		w.value = e.AppendJSON(w.value[:0])
		value = w.value
	}
	topic, partitions := w.topicOf(e)
	partition, key := w.partitionOf(o, e, partitions)
	to := w.runner.packer.To(topic, partition, classLines)
	w.add(to, c, l, key, value, w.headersOf(o, c, i, e.Parsed(), marked))
}

// topicOf is the topic that a line goes to, with its number of partitions.
func (w *worker) topicOf(e *pipelines.Event) (topic string, partitions int32) {
	if w.named == nil {
		return w.pipe.Topic.Name, w.topic.Partitions
	}
	return w.routes.to(w.textOf(w.named, e))
}

// partitionOf is where in a topic a line goes, by the first of these that gives something: topic.partition, topic.hash, the key, the spread.
func (w *worker) partitionOf(o *origin, e *pipelines.Event, partitions int32) (partition int32, key []byte) {
	partition = o.partition
	if partitions != w.topic.Partitions {
		partition %= partitions
	}
	chosen := false
	if w.number != nil {
		var v pipelines.Value
		if err := w.number.Eval(e, &v); err == nil {
			if n, ok := whole(&v, partitions); ok {
				partition, chosen = n, true
			}
		}
	}
	if by := w.textOf(w.hash, e); by != nil && !chosen {
		partition = partitionOf(by, partitions)
	}
	key = w.textOf(w.key, e)
	if key != nil && w.hash == nil && !chosen {
		partition = partitionOf(key, partitions)
	}
	return partition, key
}

// reasonOf says why a stage failed, for people.
func reasonOf(res pipelines.Result) string {
	if res.Err != nil {
		return res.Err.Error()
	}
	return res.Reason
}

// textOf evaluates the key or the hash; nil means none. One that cannot be worked out is none: the line is worth more than its place.
// The text is good until the next call.
func (w *worker) textOf(x *pipelines.Expression, e *pipelines.Event) []byte {
	if x == nil {
		return nil
	}
	var v pipelines.Value
	if err := x.Eval(e, &v); err != nil || v.IsNull() {
		return nil
	}
	if w.text = v.AppendText(w.text[:0]); len(w.text) == 0 {
		return []byte{}
	}
	return w.text
}

// metaOfLine is metaOf with what the line has of its own.
func (w *worker) metaOfLine(c *reading, i int) []pipelines.Header {
	if c.origins == nil || c.origins[i].stream == nil {
		return w.meta
	}
	x := &c.origins[i]
	n := len(w.meta)
	w.meta = append(w.meta, pipelines.Header{Key: headerStream, Value: x.stream}, pipelines.Header{Key: headerTime, Value: x.time})
	full := w.meta
	w.meta = w.meta[:n]
	return full
}

// headersOf returns a line's headers: the file's own where they are enough.
func (w *worker) headersOf(o *origin, c *reading, i int, parsed, marked bool) []producer.Header {
	l := &c.lines.Lines[i]
	shared := o.headers
	if parsed { // its labels are fields
		shared = shared[:len(shared)-len(w.labels)]
	}
	if !w.identity && !marked && !l.Cut && !l.Split && c.origins == nil {
		return shared
	}
	h := append(w.headers[:0], shared...)
	if w.identity {
		w.offset = strconv.AppendInt(w.offset[:0], c.lines.Base+int64(l.Start), 10)
		h = append(h, producer.Header{Key: headerFileOffset, Value: w.offset})
	}
	if marked {
		h = append(h, header(pipelines.HeaderRaw, "1"))
	}
	return w.own(h, c, i)
}

// own adds to headers what a line has of its own.
func (w *worker) own(h []producer.Header, c *reading, i int) []producer.Header {
	l := &c.lines.Lines[i]
	if c.origins != nil && c.origins[i].stream != nil {
		h = append(h, producer.Header{Key: headerStream, Value: c.origins[i].stream}, producer.Header{Key: headerTime, Value: c.origins[i].time})
	}
	if l.Cut {
		h = append(h, header(headerTruncated, "true"))
	}
	if l.Split {
		h = append(h, header(headerSplit, "true"))
	}
	w.headers = h
	return h
}

// deadLetter sends a line to the dead-letter topic as it was read.
func (w *worker) deadLetter(o *origin, c *reading, l *tail.Line, reason, stage string) {
	m := c.mark(l)
	d := newLetter(w.pipe, w.dead, letterKey(o.identity, m.Offset), c.lines.Value(l), o.headers, reason, stage).from(o.name, m.Offset)
	to := w.runner.packer.To(w.pipe.Errors.DeadLetter, partitionOf(d.key, w.dead.Partitions), classDead)
	w.add(to, c, l, d.key, d.value, d.headers)
}
