package main

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrapeTimeout bounds one look at the metrics of the running process.
const scrapeTimeout = 2 * time.Second

// A snapshot is one look at the metrics of the running process.
type snapshot struct {
	at        time.Time
	linesRead float64
	bytesRead float64
	acked     float64
	rows      float64
	lag       float64 // records the sink's group is behind
	latency   map[float64]float64
}

func scrape(url string) (snapshot, error) {
	client := http.Client{Timeout: scrapeTimeout}
	resp, err := client.Get(url + "/metrics")
	if err != nil {
		return snapshot{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return snapshot{}, fmt.Errorf("%s/metrics: %s", url, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return snapshot{}, fmt.Errorf("parse metrics: %w", err)
	}
	return snapshot{
		at:        time.Now(),
		linesRead: sum(families["sluice_agent_lines_read_total"]),
		bytesRead: sum(families["sluice_agent_bytes_read_total"]),
		acked:     sum(families["sluice_agent_lines_acked_total"]),
		rows:      sum(families["sluice_sink_rows_total"]),
		lag:       sum(families["sluice_group_lag_records"]),
		latency:   buckets(families["sluice_sink_end_to_end_seconds"]),
	}, nil
}

func sum(f *dto.MetricFamily) (total float64) {
	for _, m := range f.GetMetric() {
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return total
}

// buckets adds up the cumulative buckets of a histogram family by upper bound.
func buckets(f *dto.MetricFamily) map[float64]float64 {
	out := map[float64]float64{}
	for _, m := range f.GetMetric() {
		for _, b := range m.GetHistogram().GetBucket() {
			out[b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	return out
}

// printStep writes the live line: what happened between two looks.
func printStep(w io.Writer, before, now snapshot) {
	seconds := now.at.Sub(before.at).Seconds()
	lines := (now.rows - before.rows) / seconds
	mb := (now.bytesRead - before.bytesRead) / seconds / 1e6
	fmt.Fprintf(w, "  %7.0f lines/s stored  %6.1f MB/s read  end to end p50 %s p99 %s  lag %.0f lines\n",
		lines, mb, bound(now.latency, before.latency, .5), bound(now.latency, before.latency, .99), now.lag)
}

// bound is the quantile of what came between two looks, interpolated within its histogram bucket as Prometheus does.
func bound(now, before map[float64]float64, q float64) string {
	total := now[math.Inf(1)] - before[math.Inf(1)]
	if total <= 0 {
		return "-"
	}
	rank, low, lowCount := q*total, 0.0, 0.0
	for _, upper := range sortedBounds(now) {
		count := now[upper] - before[upper]
		if count < rank {
			low, lowCount = upper, count
			continue
		}
		if math.IsInf(upper, 1) {
			return fmt.Sprintf("> %.0f ms", low*1e3)
		}
		return fmt.Sprintf("%.0f ms", (low+(upper-low)*(rank-lowCount)/max(count-lowCount, 1))*1e3)
	}
	return "-"
}
