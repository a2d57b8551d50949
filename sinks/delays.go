package sinks

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// delays is a histogram of the time from a record's timestamp until its row was stored. It takes a batch at a time: to observe a record costs more than
// to turn its JSON into columns. Safe for concurrent use.
type delays struct {
	desc   *prometheus.Desc
	bounds []time.Duration // ascending

	mu      sync.Mutex // guards what follows
	buckets []uint64   // at or below each bound and above the one before; the last: above all
	sum     time.Duration
}

func newDelays(name, help string, bounds []float64) *delays {
	d := &delays{desc: prometheus.NewDesc(name, help, nil, nil), buckets: make([]uint64, len(bounds)+1)}
	for _, seconds := range bounds {
		d.bounds = append(d.bounds, time.Duration(seconds*float64(time.Second)))
	}
	return d
}

// observe counts all records of a batch that is stored now. Records that follow each other mostly fall into one bucket.
func (d *delays) observe(rs *records, now time.Time) {
	counts := make([]uint64, len(d.buckets))
	var sum time.Duration
	ms := now.UnixMilli()
	in, from, to := 0, time.Duration(math.MaxInt64), time.Duration(0) // the bucket of the record before: above from, up to to
	rs.each(func(_ *run, r *record) {
		delay := time.Duration(ms-r.stamp) * time.Millisecond
		sum += delay
		if delay <= from || delay > to {
			in = d.bucket(delay)
			from, to = math.MinInt64, math.MaxInt64
			if in > 0 {
				from = d.bounds[in-1]
			}
			if in < len(d.bounds) {
				to = d.bounds[in]
			}
		}
		counts[in]++
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum += sum
	for i, n := range counts {
		d.buckets[i] += n
	}
}

// bucket is the index of the first bound that delay is not above.
func (d *delays) bucket(delay time.Duration) int {
	i, _ := slices.BinarySearch(d.bounds, delay)
	return i
}

// Describe implements prometheus.Collector.
func (d *delays) Describe(to chan<- *prometheus.Desc) { to <- d.desc }

// Collect implements prometheus.Collector.
func (d *delays) Collect(to chan<- prometheus.Metric) {
	d.mu.Lock()
	defer d.mu.Unlock()
	upTo := make(map[float64]uint64, len(d.bounds))
	var n uint64
	for i, bound := range d.bounds {
		n += d.buckets[i]
		upTo[bound.Seconds()] = n
	}
	n += d.buckets[len(d.bounds)]
	to <- prometheus.MustNewConstHistogram(d.desc, n, d.sum.Seconds(), upTo)
}
