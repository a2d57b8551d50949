package group

import "github.com/prometheus/client_golang/prometheus"

// metrics counts what the coordinator does, over all its partitions.
type metrics struct {
	rebalances, commits, expired prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		if reg != nil {
			reg.MustRegister(c)
		}
		return c
	}
	return &metrics{
		rebalances: counter("sluice_group_rebalances_total", "Rebalances that consumer groups have begun."),
		commits:    counter("sluice_group_offset_commits_total", "Offsets that consumers have committed."),
		expired:    counter("sluice_group_offsets_expired_total", "Committed offsets removed because their retention was over."),
	}
}
