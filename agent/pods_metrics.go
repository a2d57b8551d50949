package agent

import "github.com/prometheus/client_golang/prometheus"

// podDescs are the metrics of what the API server tells.
type podDescs struct{ pods, watching, lists, watches, gone, failures, refused *prometheus.Desc }

func newPodDescs(desc func(name, help string, labels ...string) *prometheus.Desc) podDescs {
	const p, in = "pipeline", "input"
	return podDescs{
		pods:     desc("kubernetes_pods", "Pods of the node that are remembered, those too that were deleted of late.", p, in),
		watching: desc("kubernetes_watching", "1 while the API server tells of changes of the pods, 0 while it does not.", p, in),
		lists:    desc("kubernetes_lists_total", "Lists of the pods that the API server was asked for.", p, in),
		watches:  desc("kubernetes_watches_total", "Watches of the pods that the API server was asked for.", p, in),
		gone:     desc("kubernetes_gone_total", "Watches that had to be followed by a list: the API server no longer had what followed.", p, in),
		failures: desc("kubernetes_failures_total", "Requests to the API server that failed, and watches that were cut.", p, in),
		refused:  desc("kubernetes_pods_refused_total", "Times that a pod was not remembered because there were pods_max.", p, in),
	}
}

// collect tells what an input that asks the API server has to tell.
func (d *podDescs) collect(r *runner, counter func(*prometheus.Desc, int64, ...string), gauge func(*prometheus.Desc, float64)) {
	f, ok := r.input.(*files)
	if !ok || f.pods == nil {
		return
	}
	s := f.pods.Stats()
	gauge(d.pods, float64(s.Pods))
	watching := 0.0
	if s.Watching {
		watching = 1
	}
	gauge(d.watching, watching)
	counter(d.lists, s.Lists)
	counter(d.watches, s.Watches)
	counter(d.gone, s.Gone)
	counter(d.failures, s.Failures)
	counter(d.refused, s.Refused)
}
