package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collector makes the agent's metrics from its accounts when they are scraped,
// so that they always add up and cost nothing per line.
type collector struct {
	agent   *Agent
	streams streamDescs
	pods    podDescs

	linesRead, bytesRead, linesAcked, bytesAcked, dropped, droppedBytes,
	inFlight, lag, open, rotations, truncations, copies, lost, deleted, oldest, checkpoint, errors,
	recovered, unknown, journalBytes, journalBatches, cut, split, malformed, unlabelled, abandoned, damaged, linesSent, bytesSent, followed, memory, memoryMax *prometheus.Desc
	files fileMetrics
}

func newCollector(a *Agent) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_agent_"+name, help, labels, nil)
	}
	const p, in = "pipeline", "input"
	return &collector{
		streams:        newStreamDescs(desc),
		pods:           newPodDescs(desc),
		agent:          a,
		linesRead:      desc("lines_read_total", "Lines read from files.", p, in),
		bytesRead:      desc("bytes_read_total", "Bytes read from files.", p, in),
		linesAcked:     desc("lines_acked_total", "Lines that the brokers acknowledged.", p, in),
		bytesAcked:     desc("bytes_acked_total", "Bytes, as in the files, of lines that the brokers acknowledged.", p, in),
		dropped:        desc("lines_dropped_total", "Lines not sent to the topic, by reason.", p, in, "reason"),
		droppedBytes:   desc("bytes_dropped_total", "Bytes, as in the files, not sent to the topic, by reason.", p, in, "reason"),
		inFlight:       desc("in_flight_lines", "Lines read and neither acknowledged nor dropped.", p, in),
		lag:            desc("lag_bytes", "Bytes that followed files hold and that are not acknowledged.", p, in),
		open:           desc("files_open", "Descriptors held of followed files.", p, in),
		rotations:      desc("rotations_total", "Files renamed or removed while followed.", p, in),
		truncations:    desc("truncations_total", "Files emptied or rewritten.", p, in),
		copies:         desc("copies_total", "Files recognised as copies of files that were read.", p, in),
		lost:           desc("truncated_bytes_total", "Estimate of the bytes that truncations destroyed unread.", p, in),
		deleted:        desc("deleted_bytes", "Bytes that removed files keep on disk while they are still read.", p, in),
		oldest:         desc("oldest_unacked_seconds", "Age of the oldest line that is not acknowledged.", p, in),
		checkpoint:     desc("checkpoint_age_seconds", "Time since the checkpoint was last known to be up to date."),
		recovered:      desc("recovered_lines_total", "Lines that the journal held unsettled when the agent started; they count as read.", p, in),
		unknown:        desc("unknown_lines_total", "Lines of which it could not be told whether the brokers had stored them.", p, in),
		journalBytes:   desc("journal_bytes", "Bytes that the journal takes on disk.", p, in),
		journalBatches: desc("journal_unsettled_batches", "Batches in the journal that are not settled.", p, in),
		cut:            desc("cut_lines_total", "Lines over line_bytes_max, of which the rest was dropped.", p, in),
		split:          desc("split_records_total", "Records of several lines that a limit of multiline ended.", p, in),
		damaged:        desc("damaged_files_total", "Compressed files that could not be read to their end.", p, in),
		malformed:      desc("malformed_lines_total", "Lines of containers' files that are not of their form; they are sent as they are.", p, in),
		unlabelled:     desc("unlabelled_lines_total", "Lines of pods that the API server did not tell of in time; they are sent without what it tells.", p, in),
		abandoned:      desc("abandoned_bytes_total", "Bytes of removed files that were let go unread because of deleted_bytes_max.", p, in),
		linesSent:      desc("lines_sent_total", "Lines that went into the journal, and from there to the brokers.", p, in),
		bytesSent:      desc("bytes_sent_total", "Bytes, as in the files, of lines that went into the journal.", p, in),
		followed:       desc("files_followed", "Files that are followed.", p, in),
		memory:         desc("memory_bytes", "Memory of lines on their way, of all pipelines."),
		memoryMax:      desc("memory_limit_bytes", "What lines on their way may take together: a quarter of --memory-max."),
		files:          newFileMetrics(),
		errors:         desc("produce_errors_total", "Failures to produce that were not a record's own.", p, in),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	now := c.agent.cfg.Now()
	for _, r := range c.agent.list() {
		c.collect(ch, r, now)
	}
	age := now.Sub(time.Unix(0, c.agent.written.Load())).Seconds()
	ch <- prometheus.MustNewConstMetric(c.checkpoint, prometheus.GaugeValue, max(age, 0))
	ch <- prometheus.MustNewConstMetric(c.memory, prometheus.GaugeValue, float64(c.agent.budget.taken()))
	ch <- prometheus.MustNewConstMetric(c.memoryMax, prometheus.GaugeValue, float64(c.agent.budget.limit))
}

func (c *collector) collect(ch chan<- prometheus.Metric, r *member, now time.Time) {
	a := r.snapshotAccount()
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{a.Pipeline, a.Input}, labels...)...)
	}
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, a.Pipeline, a.Input)
	}
	counter(c.linesRead, a.Read.Lines)
	counter(c.bytesRead, a.Read.Bytes)
	counter(c.linesSent, a.Sent.Lines)
	counter(c.bytesSent, a.Sent.Bytes)
	counter(c.linesAcked, a.Acked.Lines)
	counter(c.bytesAcked, a.Acked.Bytes)
	for reason, n := range a.Dropped {
		counter(c.dropped, n.Lines, reason)
		counter(c.droppedBytes, n.Bytes, reason)
	}
	counter(c.rotations, a.Rotations)
	counter(c.truncations, a.Truncations)
	counter(c.copies, a.Copies)
	counter(c.lost, a.LostBytes)
	counter(c.errors, r.produceErrors.Load())
	counter(c.cut, a.CutLines)
	counter(c.split, a.SplitRecords)
	counter(c.damaged, a.DamagedFiles)
	counter(c.malformed, a.MalformedLines)
	counter(c.abandoned, a.AbandonedBytes)
	counter(c.unlabelled, a.UnlabelledLines)
	counter(c.recovered, a.Recovered.Lines)
	counter(c.unknown, a.Unknown.Lines)
	gauge(c.journalBytes, float64(a.JournalBytes))
	gauge(c.journalBatches, float64(a.JournalBatches))
	gauge(c.inFlight, float64(a.InFlight.Lines))
	gauge(c.lag, float64(a.LagBytes))
	gauge(c.open, float64(a.FilesOpen))
	gauge(c.followed, float64(a.FilesFollowed))
	if f, ok := r.input.(*files); ok {
		c.files.collect(ch, &a, f.furthestBehind(filesShown), now)
	}
	gauge(c.deleted, float64(a.DeletedBytes))
	gauge(c.oldest, r.oldestUnacked(now).Seconds())
	c.streams.collect(ch, r.runner)
	c.pods.collect(r.runner, counter, gauge)
}
