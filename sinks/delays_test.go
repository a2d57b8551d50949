package sinks

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestDelaysAreCountedAsOneByOne compares with the library's own histogram.
func TestDelaysAreCountedAsOneByOne(t *testing.T) {
	bounds := []float64{0.005, 0.1, 1}
	want := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "d", Buckets: bounds})
	have := newDelays("d", "", bounds)
	now := time.UnixMilli(1_000_000)
	var fetched []*kgo.Record
	for _, ms := range []int64{0, 0, 5, 6, 5, 99, 100, 101, 2000, 1000, 1001, -3, 7, 0} {
		fetched = append(fetched, &kgo.Record{Offset: int64(len(fetched)), Timestamp: now.Add(-time.Duration(ms) * time.Millisecond)})
		want.Observe(float64(ms) / 1000)
	}
	var rs records
	rs.add(newRuns(fetched)[0])
	have.observe(&rs, now)
	var a, b dto.Metric
	if err := want.Write(&a); err != nil {
		t.Fatal(err)
	}
	got := make(chan prometheus.Metric, 1)
	have.Collect(got)
	if err := (<-got).Write(&b); err != nil {
		t.Fatal(err)
	}
	h, g := a.Histogram, b.Histogram
	if h.GetSampleCount() != g.GetSampleCount() || h.GetSampleSum()-g.GetSampleSum() > 1e-9 || g.GetSampleSum()-h.GetSampleSum() > 1e-9 || len(h.Bucket) != len(g.Bucket) {
		t.Fatalf("%v\n%v", h, g)
	}
	for i := range h.Bucket {
		if h.Bucket[i].GetCumulativeCount() != g.Bucket[i].GetCumulativeCount() || h.Bucket[i].GetUpperBound() != g.Bucket[i].GetUpperBound() {
			t.Errorf("%v\n%v", h.Bucket[i], g.Bucket[i])
		}
	}
}
