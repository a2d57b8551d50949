package broker

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/broker/replica"
)

// metrics are worked out when they are asked for, so that they cost nothing
// between and a deleted topic leaves no series behind.
type metrics struct {
	b            *Broker
	lag          *lagReader
	flushSeconds prometheus.Histogram
	isr          *isrMetrics
	cluster      *clusterMetrics

	logBytes, logEnd, logStart *prometheus.Desc
	partitions, offline        *prometheus.Desc
	dirsOffline                *prometheus.Desc
	held                       *prometheus.Desc
	lagRecords, lagSeconds     *prometheus.Desc
	members                    *prometheus.Desc
}

func newMetrics(b *Broker) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_"+name, help, labels, nil)
	}
	return &metrics{
		b:   b,
		lag: newLagReader(&b.partitions),
		isr: newISRMetrics(), cluster: newClusterMetrics(b),
		flushSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_broker_flush_seconds", Help: "Time that forcing a partition's log to disk takes.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 12),
		}),
		logBytes:    desc("broker_log_bytes", "Bytes of a topic's logs on this broker.", "topic"),
		logEnd:      desc("broker_log_end_offset", "Offset of the next record.", "topic", "partition"),
		logStart:    desc("broker_log_start_offset", "Offset of the first record that is kept.", "topic", "partition"),
		partitions:  desc("broker_partitions", "Partitions on this broker."),
		offline:     desc("broker_offline_partitions", "Partitions of this broker that it cannot serve because their storage failed."),
		held:        desc("broker_held_bytes", "Bytes past their retention that are kept because a group of this process has not committed them.", "topic"),
		dirsOffline: desc("broker_offline_data_dirs", "Data directories that have failed."),
		lagRecords:  desc("group_lag_records", "Records below the high watermark that a group has not committed.", "group", "topic", "partition"),
		lagSeconds:  desc("group_lag_seconds", "Age of the oldest record that a group has not committed, by its batch's timestamp; 0 if there is none.", "group", "topic", "partition"),
		members:     desc("group_members", "Members of a group.", "group"),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.flushSeconds.Describe(ch)
	m.b.cleaner.metrics.Describe(ch)
	m.cluster.describe(ch)
	m.isr.shrinks.Describe(ch)
	m.isr.expands.Describe(ch)
	for _, d := range []*prometheus.Desc{m.logBytes, m.logEnd, m.logStart, m.partitions, m.offline, m.dirsOffline, m.held, m.lagRecords, m.lagSeconds, m.members} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.flushSeconds.Collect(ch)
	m.b.cleaner.metrics.Collect(ch)
	m.cluster.collect(ch)
	m.isr.shrinks.Collect(ch)
	m.isr.expands.Collect(ch)
	m.collectLogs(ch)
	m.collectGroups(ch)
}

func (m *metrics) collectLogs(ch chan<- prometheus.Metric) {
	all := m.b.partitions.All()
	bytes := map[string]int64{}
	offline, dirsOffline := 0, 0
	for _, d := range m.b.dirs {
		if d.err() != nil {
			dirsOffline++
		}
	}
	m.b.offline.Range(func(any, any) bool { offline++; return true })
	for _, p := range all {
		index := partitionLabel(p.Index())
		bytes[p.Topic()] += p.Log().Size()
		ch <- gauge(m.logEnd, float64(p.Log().EndOffset()), p.Topic(), index)
		ch <- gauge(m.logStart, float64(p.Log().StartOffset()), p.Topic(), index)
		if errors.Is(p.Err(), replica.ErrOffline) {
			offline++
		}
	}
	for topic, n := range bytes {
		ch <- gauge(m.logBytes, float64(n), topic)
	}
	if held := m.b.held.Load(); held != nil {
		for topic, n := range *held {
			ch <- gauge(m.held, float64(n), topic)
		}
	}
	ch <- gauge(m.partitions, float64(len(all)))
	ch <- gauge(m.offline, float64(offline))
	ch <- gauge(m.dirsOffline, float64(dirsOffline))
}

func (m *metrics) collectGroups(ch chan<- prometheus.Metric) {
	if m.b.groups == nil {
		return
	}
	views := m.b.groups.Views()
	for _, v := range views {
		ch <- gauge(m.members, float64(v.Members), v.Group)
	}
	for _, l := range m.lag.read(views, m.b.cfg.Now()) {
		index := partitionLabel(l.partition)
		ch <- gauge(m.lagRecords, float64(l.records), l.group, l.topic, index)
		if l.ageKnown {
			ch <- gauge(m.lagSeconds, l.age.Seconds(), l.group, l.topic, index)
		}
	}
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}
