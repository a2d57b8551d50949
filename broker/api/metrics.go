package api

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics count traffic by topic.
type metrics struct {
	bytesIn, bytesOut, recordsIn *prometheus.CounterVec

	replicated prometheus.Counter

	mu sync.Mutex // orders changes of topics
	// topics saves the lookup by label on the hot path. The map is replaced,
	// never changed.
	topics atomic.Pointer[map[string]*topicMetrics]
}

type topicMetrics struct {
	bytesIn, bytesOut, recordsIn prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "sluice_broker_" + name, Help: help}, []string{"topic"})
	}
	m := &metrics{
		replicated: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_broker_replication_bytes_out_total", Help: "Bytes of record batches sent to followers.",
		}),
		bytesIn:   counter("bytes_in_total", "Bytes of record batches appended by producers."),
		bytesOut:  counter("bytes_out_total", "Bytes of record batches sent to consumers."),
		recordsIn: counter("records_in_total", "Records appended by producers."),
	}
	m.topics.Store(&map[string]*topicMetrics{})
	return m
}

// topic returns the counters of a topic.
func (m *metrics) topic(name string) *topicMetrics {
	if t := (*m.topics.Load())[name]; t != nil {
		return t
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.topics.Load()
	if t := old[name]; t != nil {
		return t
	}
	t := &topicMetrics{
		bytesIn:   m.bytesIn.WithLabelValues(name),
		bytesOut:  m.bytesOut.WithLabelValues(name),
		recordsIn: m.recordsIn.WithLabelValues(name),
	}
	next := maps.Clone(old)
	next[name] = t
	m.topics.Store(&next)
	return t
}

// ForgetTopic removes the series of a deleted topic.
func (a *API) ForgetTopic(name string) {
	m := a.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	next := maps.Clone(*m.topics.Load())
	delete(next, name)
	m.topics.Store(&next)
	for _, vec := range []*prometheus.CounterVec{m.bytesIn, m.bytesOut, m.recordsIn} {
		vec.DeleteLabelValues(name)
	}
}
