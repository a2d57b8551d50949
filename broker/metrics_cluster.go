package broker

import "github.com/prometheus/client_golang/prometheus"

// isrMetrics count what this broker's leaders had changed of who is in sync.
type isrMetrics struct{ shrinks, expands prometheus.Counter }

func newISRMetrics() *isrMetrics {
	return &isrMetrics{
		shrinks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_broker_isr_shrinks_total", Help: "Replicas that this broker, as their leader, has found out of sync.",
		}),
		expands: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_broker_isr_expands_total", Help: "Replicas that this broker, as their leader, has found in sync again.",
		}),
	}
}
