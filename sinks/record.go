package sinks

import (
	"bytes"
	"slices"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/pipelines"
)

// A worker holds records by the hundred thousand, so they are kept small and without pointers: the garbage collector passes them over, and what the Kafka
// client made is free again at once. A run is what one fetch brought of a partition.

// record is a record of a run.
type record struct {
	offset int64
	stamp  int64  // milliseconds since 1970
	at     uint32 // of the value in the run's data
	size   int32  // of the value; noValue: it has none
	extra  int32  // index in the run's extras; noExtra, isControl
	epoch  int32  // leader epoch
}

const (
	noValue   = -1
	noExtra   = -1 // neither key nor headers
	isControl = -2 // a transaction's end: an offset, and nothing to store
)

// recordOverhead is about what a record costs in memory beside its bytes, with the room that its run grows by.
const recordOverhead = 48

// extra is what few records have, or many have alike.
type extra struct {
	key     []byte // nil: none
	headers []pipelines.Header
}

// extraOverhead is about what an extra and each of its headers cost in memory beside their bytes.
const extraOverhead = 64

// run is records of one partition, ascending, in memory of their own. Never changed once made: parts of it share that memory.
type run struct {
	records []record
	data    []byte
	extras  []extra

	controls int
	values   int64 // bytes of the values
	bytes    int64 // about the memory of all
}

// runBytesMax bounds the values of one run: its records point into them with 32 bits.
const runBytesMax = 1 << 30

// newRuns copies records of one partition.
func newRuns(from []*kgo.Record) (runs []run) {
	for len(from) > 0 {
		n, total := 0, 0
		for n < len(from) && (n == 0 || total+len(from[n].Value) <= runBytesMax) {
			total += len(from[n].Value)
			n++
		}
		runs = append(runs, newRun(from[:n], total))
		from = from[n:]
	}
	return runs
}

func newRun(from []*kgo.Record, values int) run {
	x := run{records: make([]record, len(from)), data: make([]byte, 0, values)}
	last := int32(noExtra)
	for i, r := range from {
		to := &x.records[i]
		*to = record{offset: r.Offset, stamp: r.Timestamp.UnixMilli(), at: uint32(len(x.data)), size: int32(len(r.Value)), extra: noExtra, epoch: r.LeaderEpoch}
		switch {
		case r.Attrs.IsControl():
			to.size, to.extra = noValue, isControl
			continue
		case r.Value == nil:
			to.size = noValue
		}
		x.data = append(x.data, r.Value...)
		if r.Key != nil || len(r.Headers) > 0 {
			if last == noExtra || !x.extras[last].is(r) {
				last = int32(len(x.extras))
				x.extras = append(x.extras, newExtra(r))
			}
			to.extra = last
		}
	}
	x.measure()
	return x
}

// is says that the record has this key and these headers.
func (e *extra) is(r *kgo.Record) bool {
	if !bytes.Equal(e.key, r.Key) || (e.key == nil) != (r.Key == nil) || len(e.headers) != len(r.Headers) {
		return false
	}
	for i := range e.headers {
		have, want := &e.headers[i], &r.Headers[i]
		if have.Key != want.Key || !bytes.Equal(have.Value, want.Value) || (have.Value == nil) != (want.Value == nil) {
			return false
		}
	}
	return true
}

func newExtra(r *kgo.Record) extra {
	e := extra{key: bytes.Clone(r.Key)}
	for _, h := range r.Headers {
		e.headers = append(e.headers, pipelines.Header{Key: h.Key, Value: bytes.Clone(h.Value)})
	}
	return e
}

func (e *extra) bytes() int64 {
	n := len(e.key) + extraOverhead
	for i := range e.headers {
		n += len(e.headers[i].Key) + len(e.headers[i].Value) + extraOverhead
	}
	return int64(n)
}

// measure sets what is known of all records together.
func (x *run) measure() {
	x.controls, x.values = 0, 0
	x.bytes = int64(len(x.records)) * recordOverhead
	last := int32(noExtra)
	for i := range x.records {
		r := &x.records[i]
		x.values += int64(max(r.size, 0))
		switch {
		case r.extra == isControl:
			x.controls++
		case r.extra != noExtra && r.extra != last:
			last = r.extra
			x.bytes += x.extras[last].bytes()
		}
	}
	x.bytes += x.values
}

// part is records i to j-1 of the run.
func (x *run) part(i, j int) run {
	p := run{records: x.records[i:j:j], data: x.data, extras: x.extras}
	p.measure()
	return p
}

// from is the records at or after offset.
func (x *run) from(offset int64) run {
	i := sort.Search(len(x.records), func(i int) bool { return x.records[i].offset >= offset })
	if i == 0 {
		return *x
	}
	return x.part(i, len(x.records))
}

// value is nil where the record has none.
func (x *run) value(r *record) []byte {
	if r.size < 0 {
		return nil
	}
	end := r.at + uint32(r.size)
	return x.data[r.at:end:end]
}

func (x *run) extraOf(r *record) extra {
	if r.extra < 0 {
		return extra{}
	}
	return x.extras[r.extra]
}

// kafka is the record as the client had it, for those few that go on.
func (x *run) kafka(r *record, c *Claim) *kgo.Record {
	e := x.extraOf(r)
	out := &kgo.Record{Topic: c.Topic, Partition: c.Partition, Offset: r.offset, LeaderEpoch: r.epoch, Timestamp: time.UnixMilli(r.stamp), Key: e.key, Value: x.value(r)}
	for _, h := range e.headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return out
}

// records are those of one partition that follow each other, in runs. The zero value is none.
type records struct {
	runs     []run
	n        int // all of them
	controls int
	values   int64 // bytes of the values
	bytes    int64 // about the memory of all
}

// data is how many are not control records.
func (rs *records) data() int { return rs.n - rs.controls }

func (rs *records) add(x run) {
	if len(x.records) == 0 {
		return
	}
	rs.runs = append(rs.runs, x)
	rs.n += len(x.records)
	rs.controls += x.controls
	rs.values += x.values
	rs.bytes += x.bytes
}

// last is the last record; there is one.
func (rs *records) last() record {
	x := &rs.runs[len(rs.runs)-1]
	return x.records[len(x.records)-1]
}

// cut takes the first n records off.
func (rs *records) cut(n int) (head records) {
	var tail records
	for i := range rs.runs {
		x := &rs.runs[i]
		switch size := len(x.records); {
		case n >= size:
			head.add(*x)
			n -= size
		case n > 0:
			head.add(x.part(0, n))
			tail.add(x.part(n, size))
			n = 0
		default:
			tail.add(*x)
		}
	}
	*rs = tail
	return head
}

// through is how many records lie at or below offset.
func (rs *records) through(offset int64) (n int) {
	for i := range rs.runs {
		x := &rs.runs[i]
		n += sort.Search(len(x.records), func(i int) bool { return x.records[i].offset > offset })
	}
	return n
}

// prefix is how many records reach the rows or the bytes of values, and whether they do.
func (rs *records) prefix(rows int, bytes int64) (n int, full bool) {
	if rs.n < rows && rs.values < bytes {
		return rs.n, false
	}
	for i := range rs.runs {
		x := &rs.runs[i]
		if n+len(x.records) < rows && x.values < bytes {
			n, bytes = n+len(x.records), bytes-x.values
			continue
		}
		for i := range x.records {
			n++
			bytes -= int64(max(x.records[i].size, 0))
			if n >= rows || bytes <= 0 {
				return n, true
			}
		}
	}
	return n, false
}

// dataPrefix is how many records end with the n-th that is no control record.
func (rs *records) dataPrefix(n int) (all int) {
	for i := range rs.runs {
		for j := range rs.runs[i].records {
			all++
			if rs.runs[i].records[j].extra != isControl {
				n--
			}
			if n == 0 {
				return all
			}
		}
	}
	return all
}

// each goes over all but the control records.
func (rs *records) each(visit func(x *run, r *record)) {
	for i := range rs.runs {
		x := &rs.runs[i]
		for j := range x.records {
			if r := &x.records[j]; r.extra != isControl {
				visit(x, r)
			}
		}
	}
}

// joined are rs and more, which follow them.
func (rs records) joined(more records) records {
	out := records{runs: slices.Clip(rs.runs), n: rs.n, controls: rs.controls, values: rs.values, bytes: rs.bytes}
	for _, x := range more.runs {
		out.add(x)
	}
	return out
}
