package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// filesShown is how many files of a pipeline have metrics of their own: those that are furthest behind.
	filesShown = 20
	// otherFiles is the path under which the others are summed up.
	otherFiles = "(others)"
)

// fileProgress is how far one file is, for metrics.
type fileProgress struct {
	path           string
	position, size int64
	lag            int64
	oldest         time.Time // of what is not settled; zero: nothing
	read, settled  Count
	sent, dropped  Count
	rotations      int64
	truncations    int64
	lostBytes      int64
}

// furthestBehind are the followed files that are furthest behind, and the lag and the oldest line of all others. A path has one entry.
type furthestBehind struct {
	shown    []fileProgress
	others   int
	otherLag int64
	otherAge time.Time
}

// furthestBehind finds the most files with the largest lag.
func (r *files) furthestBehind(most int) (out furthestBehind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]fileProgress, 0, len(r.tracks))
	for _, t := range r.tracks {
		if !t.followed {
			continue
		}
		f := fileProgress{path: t.path, position: t.acked.Offset, size: t.size, lag: t.lag(), read: t.read, settled: t.settled,
			sent: t.sent, dropped: t.dropped, rotations: t.rotations, truncations: t.truncations, lostBytes: t.lostBytes}
		if len(t.pending) > 0 {
			f.oldest = t.pending[0].begun
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b fileProgress) int {
		return cmp.Or(cmp.Compare(b.lag, a.lag), cmp.Compare(b.read.Bytes, a.read.Bytes), cmp.Compare(a.path, b.path))
	})
	seen := map[string]bool{} // a rotated file and its successor were found under one name
	for _, f := range all {
		if len(out.shown) < most && !seen[f.path] {
			seen[f.path] = true
			out.shown = append(out.shown, f)
			continue
		}
		out.others++
		out.otherLag += f.lag
		if !f.oldest.IsZero() && (out.otherAge.IsZero() || f.oldest.Before(out.otherAge)) {
			out.otherAge = f.oldest
		}
	}
	return out
}

// fileMetrics are the metrics of single files.
type fileMetrics struct {
	position, size, lag, oldest, read, readBytes, settled, settledBytes,
	sent, sentBytes, dropped, droppedBytes, rotations, truncations, lost *prometheus.Desc
}

func newFileMetrics() fileMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_agent_file_"+name, help+" Of the files of a pipeline that are furthest behind.", []string{"pipeline", "input", "path"}, nil)
	}
	return fileMetrics{
		position:     desc("position_bytes", "How far a file is acknowledged."),
		size:         desc("size_bytes", "Size of a file at the last look."),
		lag:          desc("lag_bytes", "Bytes of a file that are not acknowledged; of all other files under the path (others)."),
		oldest:       desc("oldest_unacked_seconds", "Age of a file's oldest line that is not acknowledged; of all other files under the path (others)."),
		read:         desc("lines_read_total", "Lines read of a file since it is followed."),
		readBytes:    desc("bytes_read_total", "Bytes read of a file since it is followed."),
		settled:      desc("lines_settled_total", "Lines of a file that were acknowledged or dropped."),
		settledBytes: desc("bytes_settled_total", "Bytes of a file that were acknowledged or dropped."),
		sent:         desc("lines_sent_total", "Lines of a file that went into the journal, and from there to the brokers."),
		sentBytes:    desc("bytes_sent_total", "Bytes of a file whose lines went into the journal."),
		dropped:      desc("lines_dropped_total", "Lines of a file that stages dropped."),
		droppedBytes: desc("bytes_dropped_total", "Bytes of a file that stages dropped, or that are in no line."),
		rotations:    desc("rotations_total", "Times that a file was renamed or removed while followed."),
		truncations:  desc("truncations_total", "Times that a file was emptied or rewritten."),
		lost:         desc("truncated_bytes_total", "Estimate of the bytes of a file that truncations destroyed unread."),
	}
}

func (m *fileMetrics) collect(ch chan<- prometheus.Metric, a *Account, files furthestBehind, now time.Time) {
	put := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, path string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, a.Pipeline, a.Input, path)
	}
	for _, f := range files.shown {
		put(m.position, prometheus.GaugeValue, float64(f.position), f.path)
		put(m.size, prometheus.GaugeValue, float64(f.size), f.path)
		put(m.lag, prometheus.GaugeValue, float64(f.lag), f.path)
		put(m.oldest, prometheus.GaugeValue, age(f.oldest, now), f.path)
		put(m.read, prometheus.CounterValue, float64(f.read.Lines), f.path)
		put(m.readBytes, prometheus.CounterValue, float64(f.read.Bytes), f.path)
		put(m.settled, prometheus.CounterValue, float64(f.settled.Lines), f.path)
		put(m.settledBytes, prometheus.CounterValue, float64(f.settled.Bytes), f.path)
		put(m.sent, prometheus.CounterValue, float64(f.sent.Lines), f.path)
		put(m.sentBytes, prometheus.CounterValue, float64(f.sent.Bytes), f.path)
		put(m.dropped, prometheus.CounterValue, float64(f.dropped.Lines), f.path)
		put(m.droppedBytes, prometheus.CounterValue, float64(f.dropped.Bytes), f.path)
		put(m.rotations, prometheus.CounterValue, float64(f.rotations), f.path)
		put(m.truncations, prometheus.CounterValue, float64(f.truncations), f.path)
		put(m.lost, prometheus.CounterValue, float64(f.lostBytes), f.path)
	}
	if files.others > 0 {
		put(m.lag, prometheus.GaugeValue, float64(files.otherLag), otherFiles)
		put(m.oldest, prometheus.GaugeValue, age(files.otherAge, now), otherFiles)
	}
}

// age is how long ago a time was, in seconds; 0 for none.
func age(t, now time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(now.Sub(t).Seconds(), 0)
}
