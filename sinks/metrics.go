package sinks

import "github.com/prometheus/client_golang/prometheus"

// metrics are a worker's own; all carry the labels pipeline and sink.
type metrics struct {
	rows         prometheus.Counter
	bytes        prometheus.Counter
	writeSeconds prometheus.Histogram
	endToEnd     *delays
	deadLetters  *prometheus.CounterVec // reason
	dropped      *prometheus.CounterVec // stage
	writeErrors  prometheus.Counter
	lostOffsets  prometheus.Counter
	openClaims   prometheus.Gauge
	partitions   prometheus.Gauge
	stopped      prometheus.Gauge
	heldBytes    prometheus.Gauge
	parts        prometheus.Counter
	batchRows    prometheus.Histogram
	circuit      prometheus.Gauge
	fetched      prometheus.Counter
	states       []prometheus.Gauge // as states has them
}

func newMetrics(reg prometheus.Registerer, pipeline, sink string) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_sink_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_sink_" + name, Help: help})
	}
	seconds := func(name, help string, start, factor float64, n int) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_sink_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(start, factor, n),
		})
	}
	m := &metrics{
		rows:         counter("rows_total", "Rows stored at the destination."),
		bytes:        counter("bytes_total", "Bytes of the values of stored records."),
		writeSeconds: seconds("write_seconds", "Seconds one write to the destination took, successful or not.", 0.001, 2, 16),
		endToEnd:     newDelays("sluice_sink_end_to_end_seconds", "Seconds from a record's timestamp until its row was stored.", prometheus.ExponentialBuckets(0.005, 2, 20)),
		writeErrors:  counter("write_errors_total", "Writes that failed and were or will be repeated."),
		lostOffsets:  counter("lost_records_total", "Records that were removed from the log before they were read."),
		openClaims:   gauge("open_claims", "Partitions whose commit is a claim that is not closed."),
		partitions:   gauge("partitions", "Partitions assigned to this worker."),
		stopped:      gauge("stopped_partitions", "Assigned partitions that stopped and need an operator."),
		heldBytes:    gauge("held_bytes", "Memory of the records held over all partitions."),
		deadLetters: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_sink_dead_letters_total", Help: "Records that went to the dead-letter topic."}, []string{"reason"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_sink_records_dropped_total", Help: "Records that a stage dropped on purpose."}, []string{"stage"}),
	}
	m.parts = counter("parts_total", "Parts that the destination made of the rows, each of which it has to merge.")
	m.batchRows = seconds("batch_rows", "Records of a stored batch.", 1, 4, 12)
	m.fetched = counter("fetched_records_total", "Records that brokers sent; more than were taken in where a partition was paused while they were on their way.")
	m.circuit = gauge("circuit_open", "1 while the destination does not take the batch of some partition, else 0.")
	byState := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sluice_sink_partition_states", Help: "Assigned partitions by what they do."}, []string{"state"})
	for _, state := range states {
		m.states = append(m.states, byState.WithLabelValues(string(state)))
	}
	if reg != nil {
		reg = prometheus.WrapRegistererWith(prometheus.Labels{"pipeline": pipeline, "sink": sink}, reg)
		reg.MustRegister(m.rows, m.bytes, m.writeSeconds, m.endToEnd, m.writeErrors, m.lostOffsets,
			m.openClaims, m.partitions, m.stopped, m.heldBytes, m.deadLetters, m.dropped, m.parts, m.batchRows, m.circuit, m.fetched, byState)
	}
	return m
}
