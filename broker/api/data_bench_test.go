package api

import (
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"github.com/sluice-io/sluice/internal/record"
)

// records builds a batch of count records of 100 bytes.
func (n *node) records(count int, codec record.Codec) record.Batch {
	var b record.Builder
	value := make([]byte, 92) // with its framing, 100 bytes
	for i := range value {
		value[i] = byte('a' + i%23)
	}
	for i := range count {
		binary.BigEndian.PutUint64(value, uint64(i)*0x9e3779b97f4a7c15)
		b.Append(n.clock.now().UnixMilli(), nil, value, nil)
	}
	return n.build(&b, record.BuildOptions{Codec: codec})
}

// produceOnce is what a produce costs the broker without its connection.
func (n *node) produceOnce(t testing.TB, body []byte) {
	a := n.api
	q := a.produces.request()
	defer a.produces.recycle(q)
	if err := q.decode(9, body); err != nil {
		t.Fatal(err)
	}
	record.Batch(q.parts[0].records).SetBaseOffset(0) // the last append set it
	a.appendAll(q)
	if _ = a.encodeProduce(q, ""); q.parts[0].code != 0 {
		t.Fatalf("error %d: %s", q.parts[0].code, q.parts[0].message)
	}
}

func TestProduceAllocatesNothingPerRecord(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	allocs := func(count int, codec record.Codec) float64 {
		body := produceTo("t", 0, 9, n.records(count, codec)).AppendTo(nil)
		return testing.AllocsPerRun(100, func() { n.produceOnce(t, body) })
	}
	for _, codec := range []record.Codec{record.None, record.LZ4, record.Zstd, record.Snappy} {
		few, many := allocs(1, codec), allocs(5000, codec)
		t.Logf("%s: %.1f allocations with 1 record, %.1f with 5000", codec, few, many)
		if many > few+50 { // the pools are emptied at times, more so under the race detector
			t.Errorf("%s: %.1f allocations with 5000 records, %.1f with one", codec, many, few)
		}
	}
}

// BenchmarkProduce decodes a request, checks its batch and appends it.
func BenchmarkProduce(b *testing.B) {
	for _, codec := range []record.Codec{record.None, record.LZ4, record.Zstd, record.Snappy} {
		for _, count := range []int{1, 100, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", codec, count), func(b *testing.B) {
				n := newNode(b)
				opt := topicOptions{}
				opt.log.SegmentBytes = 256 << 20
				opt.log.RetentionBytes = 1
				p := n.topic("t", opt)[0]
				body := produceTo("t", 0, 9, n.records(count, codec)).AppendTo(nil)
				b.SetBytes(int64(count) * 100)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					n.produceOnce(b, body)
					if i%1024 == 1023 { // keep the disk small
						if _, err := p.Log().Retain(n.clock.now(), p.HighWatermark()); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.ReportMetric(float64(count)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
			})
		}
	}
}

// BenchmarkFetch fetches over loopback and discards: request, region, sendfile.
func BenchmarkFetch(b *testing.B) {
	for _, size := range []int{100, 10_000, 1_000_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { benchmarkFetch(b, size) })
	}
}

func benchmarkFetch(b *testing.B, size int) {
	n := newNode(b)
	n.topic("t", topicOptions{})
	w := n.dial()
	if p := w.produce("t", 9, n.records(max(size/100-1, 1), record.None)); p.ErrorCode != 0 {
		b.Fatalf("%+v", p)
	}
	req := encodeRequest(fetchFrom("t", 0, 12, 0), 1)
	if _, err := w.Write(req); err != nil {
		b.Fatal(err)
	}
	answer := len(w.receiveBytes()) + 4
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(answer))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Write(req); err != nil {
			b.Fatal(err)
		}
		for left := answer; left > 0; {
			got, err := w.Read(buf[:min(left, len(buf))])
			if err != nil && err != io.EOF {
				b.Fatal(err)
			}
			left -= got
		}
	}
}

// BenchmarkProduceOverLoopback sends prepared requests on one connection, five
// in flight, as an idempotent producer does.
func BenchmarkProduceOverLoopback(b *testing.B) {
	for _, count := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) { benchmarkProduceOverLoopback(b, count) })
	}
}

func benchmarkProduceOverLoopback(b *testing.B, count int) {
	n := newNode(b)
	opt := topicOptions{}
	opt.log.SegmentBytes = 256 << 20
	n.topic("t", opt)
	w := n.dial()
	req := encodeRequest(produceTo("t", 0, 9, n.records(count, record.None)), 1)
	window := make(chan struct{}, 5)
	done := make(chan error, 1)
	total := b.N
	go func() {
		for range total {
			w.receiveBytes()
			<-window
		}
		done <- nil
	}()
	b.SetBytes(int64(len(req)))
	b.ReportAllocs()
	b.ResetTimer()
	for range total {
		window <- struct{}{}
		if _, err := w.Write(req); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(count)*float64(total)/b.Elapsed().Seconds(), "records/s")
}
