package sinks

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// drawRecords makes ascending records with all that a record can have.
func drawRecords(t *rapid.T) (out []*kgo.Record) {
	offset := rapid.Int64Range(0, 10).Draw(t, "first")
	for range rapid.IntRange(1, 30).Draw(t, "records") {
		offset += rapid.Int64Range(1, 3).Draw(t, "gap")
		r := &kgo.Record{Topic: "t", Partition: 3, Offset: offset, LeaderEpoch: 7, Timestamp: time.UnixMilli(rapid.Int64Range(-5, 1<<40).Draw(t, "stamp"))}
		if rapid.IntRange(0, 4).Draw(t, "control") == 0 {
			r.Attrs = kgo.NewRecordAttrs(kgo.RecordAttrsOpts{Control: true})
		} else {
			r.Value = rapid.SampledFrom([][]byte{nil, {}, []byte("a"), []byte("value")}).Draw(t, "value")
			r.Key = rapid.SampledFrom([][]byte{nil, {}, []byte("k")}).Draw(t, "key")
			for range rapid.IntRange(0, 2).Draw(t, "headers") {
				value := rapid.SampledFrom([][]byte{nil, {}, []byte("h")}).Draw(t, "header")
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: "host", Value: value})
			}
		}
		out = append(out, r)
	}
	return out
}

// TestRecordsStayWhatTheyWere: records that are cut, joined and cut again are those that were fetched, to the byte, and their sums are right.
func TestRecordsStayWhatTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawRecords(t)
		var rs records
		for left := all; len(left) > 0; {
			n := rapid.IntRange(1, len(left)).Draw(t, "run")
			for _, x := range newRuns(left[:n]) {
				rs.add(x)
			}
			left = left[n:]
		}
		head := rs.cut(rapid.IntRange(0, rs.n).Draw(t, "cut"))
		if rapid.Bool().Draw(t, "join") {
			rs, head = head.joined(rs), records{}
		}
		check(t, all[:head.n], head)
		check(t, all[head.n:], rs)
		if rs.n > 0 {
			at := all[head.n+rapid.IntRange(0, rs.n-1).Draw(t, "through")].Offset
			if n := rs.through(at); all[head.n+n-1].Offset != at {
				t.Fatalf("%d records up to offset %d", n, at)
			}
		}
	})
}

func check(t *rapid.T, want []*kgo.Record, have records) {
	t.Helper()
	var values int64
	var data []*kgo.Record
	for _, r := range want {
		values += int64(len(r.Value))
		if !r.Attrs.IsControl() {
			data = append(data, r)
		}
	}
	if have.n != len(want) || have.data() != len(data) || have.values != values || have.bytes < values+int64(len(want))*recordOverhead {
		t.Fatalf("%d records, %d of data, %d bytes of values, %d in all; want %d, %d, %d", have.n, have.data(), have.values, have.bytes, len(want), len(data), values)
	}
	if len(want) > 0 && have.last().offset != want[len(want)-1].Offset {
		t.Fatalf("the last is %d", have.last().offset)
	}
	i := 0
	have.each(func(x *run, r *record) {
		got := x.kafka(r, &Claim{Topic: "t", Partition: 3})
		if !reflect.DeepEqual(got, data[i]) {
			t.Fatalf("record %d:\n%+v\n%+v", i, got, data[i])
		}
		i++
	})
	if i != len(data) {
		t.Fatalf("%d records of %d", i, len(data))
	}
}

// TestPrefixOfABatch: a batch ends with the record that reaches its rows or its bytes.
func TestPrefixOfABatch(t *testing.T) {
	var rs records
	for i := range 4 {
		var fetched []*kgo.Record
		for j := range 5 {
			fetched = append(fetched, &kgo.Record{Offset: int64(5*i + j), Value: make([]byte, 10)})
		}
		rs.add(newRuns(fetched)[0])
	}
	for _, c := range []struct {
		rows  int
		bytes int64
		n     int
		full  bool
	}{{100, 1000, 20, false}, {20, 1000, 20, true}, {7, 1000, 7, true}, {5, 1000, 5, true}, {100, 200, 20, true}, {100, 101, 11, true}, {100, 100, 10, true}, {100, 1, 1, true}} {
		if n, full := rs.prefix(c.rows, c.bytes); n != c.n || full != c.full {
			t.Errorf("of %d rows and %d bytes: %d records, full %t; want %d, %t", c.rows, c.bytes, n, full, c.n, c.full)
		}
	}
}

// TestWhatIsFetchedCostsNoAllocationARecord holds the path of a record from the client's batch to a run to a few allocations a batch.
func TestWhatIsFetchedCostsNoAllocationARecord(t *testing.T) {
	const n = 5000
	var fetched []*kgo.Record
	for i := range n {
		fetched = append(fetched, &kgo.Record{Offset: int64(i), Value: fmt.Appendf(nil, "value %d", i), Headers: []kgo.RecordHeader{{Key: "host", Value: []byte("h")}}})
	}
	if allocs := testing.AllocsPerRun(10, func() { newRuns(fetched) }); allocs > 20 {
		t.Errorf("%.0f allocations for %d records", allocs, n)
	}
	b := &batch{records: func() (rs records) { rs.add(newRuns(fetched)[0]); return rs }()}
	d := newDelays("d", "", []float64{0.1, 1})
	if allocs := testing.AllocsPerRun(10, func() { d.observe(&b.records, time.Now()) }); allocs > 5 {
		t.Errorf("%.0f allocations to observe %d records", allocs, n)
	}
}

// TestPoolTakesPiecesBack: what the client gives back is what it gets next, and its bytes are not those of a batch in use.
func TestPoolTakesPiecesBack(t *testing.T) {
	p := &fetchPool{}
	for range 3 {
		one, two := p.GetRecords(10), p.GetRecords(10)
		if cap(one) < 10 || cap(two) < 10 || &one[:1][0] == &two[:1][0] {
			t.Fatal("one piece for two batches")
		}
		p.PutRecords(one)
		p.PutRecords(two)
	}
	if len(p.records) != 2 {
		t.Errorf("the pool has %d pieces", len(p.records))
	}
	p.PutRecords(make([]kgo.Record, 0, poolRecordsMax+1))
	p.PutDecompressBytes(make([]byte, 0, poolBytesMax+1))
	if len(p.records) != 2 || len(p.bytes) != 0 {
		t.Error("a piece of a rare size is kept")
	}
}

// TestFetchesAreAskedForByWhatTheyExpandTo: a fetch takes its part of the memory, whatever its compression.
func TestFetchesAreAskedForByWhatTheyExpandTo(t *testing.T) {
	z := &fetchSizer{fetched: newMetrics(nil, "p", "").fetched}
	if got := z.size(8<<20, 1, 2<<20); got != fetchBytesFirst {
		t.Errorf("before anything is known: %d", got)
	}
	batch := func(packed, expanded, n int) {
		for range 500 { // what was before is forgotten
			z.OnFetchBatchRead(kgo.BrokerMetadata{}, "t", 0, kgo.FetchBatchMetrics{CompressedBytes: packed, UncompressedBytes: expanded, NumRecords: n})
		}
	}
	batch(1000, 1000, 0)
	if got := z.size(8<<20, 1, 2<<20); got != 2<<20 {
		t.Errorf("without compression: %d", got)
	}
	batch(1000, 7840, 10) // with the records' own memory ten times
	if got := z.size(8<<20, 1, 2<<20); got < 800<<10 || got > 840<<10 {
		t.Errorf("ten times: %d", got)
	}
	if got := z.size(8<<20, 4, 2<<20); got < 200<<10 || got > 210<<10 {
		t.Errorf("ten times, of four brokers: %d", got)
	}
	batch(1000, 10_000_000, 10)
	if got := z.size(8<<20, 1, 2<<20); got != fetchBytesMin {
		t.Errorf("ten thousand times: %d", got)
	}
}
