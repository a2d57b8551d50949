package server

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metricKeys is up to which API key request kinds are told apart in metrics.
const metricKeys = 128

type metrics struct {
	connections prometheus.Gauge
	refused     *prometheus.CounterVec
	failed      prometheus.Counter
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec

	apiName func(int16) string
	// byKey saves the lookup by label.
	byKey [metricKeys]atomic.Pointer[apiMetrics]
}

type apiMetrics struct {
	requests prometheus.Counter
	seconds  prometheus.Observer
}

func newMetrics(reg prometheus.Registerer, apiName func(int16) string) *metrics {
	if apiName == nil {
		apiName = func(key int16) string { return strconv.Itoa(int(key)) }
	}
	f := promauto.With(reg)
	return &metrics{
		apiName: apiName,
		connections: f.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_broker_connections",
			Help: "Open client connections.",
		}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_broker_connections_refused_total",
			Help: "Connections closed at once because of a limit.",
		}, []string{"reason"}),
		failed: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_broker_connections_failed_total",
			Help: "Connections closed because of what the client sent or did not do.",
		}),
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_broker_requests_total",
			Help: "Requests answered.",
		}, []string{"api"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sluice_broker_request_seconds",
			Help:    "Time from a request read whole to its answer on its way, waits included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9), // 0.1 ms to 6.5 s
		}, []string{"api"}),
	}
}

func (m *metrics) observe(key int16, received time.Time) {
	if key < 0 || key >= metricKeys {
		return
	}
	a := m.byKey[key].Load()
	if a == nil {
		name := m.apiName(key)
		a = &apiMetrics{requests: m.requests.WithLabelValues(name), seconds: m.seconds.WithLabelValues(name)}
		m.byKey[key].Store(a)
	}
	a.requests.Inc()
	a.seconds.Observe(time.Since(received).Seconds())
}
