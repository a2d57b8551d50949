package agent

import "github.com/prometheus/client_golang/prometheus"

// streamDescs are the metrics of inputs that are not files.
type streamDescs struct {
	connections, refused, idle, kernelDrops, starts, exits *prometheus.Desc
}

func newStreamDescs(desc func(name, help string, labels ...string) *prometheus.Desc) streamDescs {
	const p = "pipeline"
	return streamDescs{
		connections: desc("connections", "Connections that messages are read from.", p),
		refused:     desc("connections_refused_total", "Connections closed at once because there were too many.", p),
		idle:        desc("connections_idle_total", "Connections closed because nothing came for long.", p),
		kernelDrops: desc("kernel_drops_total", "Datagrams that the system dropped because its buffer was full, as far as it tells.", p),
		starts:      desc("command_starts_total", "Starts of the input's command.", p),
		exits:       desc("command_exits_total", "Ends of the input's command, by exit code or signal.", p, "status"),
	}
}

// collect tells what an input has to tell.
func (d *streamDescs) collect(ch chan<- prometheus.Metric, r *runner) {
	s, ok := r.input.(*streams)
	if !ok {
		return
	}
	name, st := r.pipe.Name, s.feed.Stats()
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{name}, labels...)...)
	}
	if r.pipe.Collect.Syslog != nil {
		ch <- prometheus.MustNewConstMetric(d.connections, prometheus.GaugeValue, float64(st.Connections), name)
		counter(d.refused, st.Refused)
		counter(d.idle, st.Idle)
		counter(d.kernelDrops, st.KernelDrops)
		return
	}
	if st.Exits == nil {
		return
	}
	counter(d.starts, st.Starts)
	for status, n := range st.Exits {
		counter(d.exits, n, status)
	}
}
