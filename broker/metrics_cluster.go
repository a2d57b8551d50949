package broker

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/broker/cluster"
)

// isrMetrics count what this broker's leaders had changed of who is in sync.
type isrMetrics struct{ shrinks, expands prometheus.Counter }

func newISRMetrics() *isrMetrics {
	return &isrMetrics{
		shrinks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_broker_isr_shrinks_total", Help: "Changes in which this broker, as the leader, found replicas out of sync.",
		}),
		expands: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_broker_isr_expands_total", Help: "Changes in which this broker, as the leader, found replicas in sync again.",
		}),
	}
}

// clusterMetrics are this broker's place in the cluster. The counts of the whole
// cluster are told by the controller alone, so that a sum over the brokers is right.
type clusterMetrics struct {
	b *Broker

	leaders, underReplicated, underMinISR, lag *prometheus.Desc
	zooKeeper, active                          *prometheus.Desc
	brokers, partitions, leaderless            *prometheus.Desc
}

func newClusterMetrics(b *Broker) *clusterMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_"+name, help, labels, nil)
	}
	return &clusterMetrics{
		b:               b,
		leaders:         desc("broker_leaders", "Partitions that this broker leads."),
		underReplicated: desc("broker_under_replicated_partitions", "Partitions that this broker leads and that have replicas out of sync."),
		underMinISR:     desc("broker_under_min_isr_partitions", "Partitions that this broker leads and that have fewer replicas in sync than min.insync.replicas: acks=all is refused."),
		lag:             prometheus.NewDesc("sluice_broker_replica_lag_records", "Records that the follower on a broker lacks that is the furthest behind, of all partitions that this broker leads.", []string{"follower"}, nil),
		zooKeeper:       desc("broker_zookeeper_connected", "Whether ZooKeeper can be reached, 1 or 0; absent from a broker that is alone."),
		active:          desc("controller_active", "Whether this broker is the controller, 1 or 0."),
		brokers:         desc("controller_brokers", "Brokers in the cluster; told by the controller."),
		partitions:      desc("controller_partitions", "Partitions in the cluster; told by the controller."),
		leaderless:      desc("controller_offline_partitions", "Partitions without a leader, which nobody can write or read; told by the controller."),
	}
}

func (m *clusterMetrics) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.leaders, m.underReplicated, m.underMinISR, m.lag, m.zooKeeper, m.active, m.brokers, m.partitions, m.leaderless} {
		ch <- d
	}
}

func (m *clusterMetrics) collect(ch chan<- prometheus.Metric) {
	if z, ok := m.b.clusterStore.(*cluster.ZooKeeper); ok {
		connected := 0.0
		if z.Lost().IsZero() {
			connected = 1
		}
		ch <- gauge(m.zooKeeper, connected)
	}
	m.collectLeaders(ch)
	m.collectController(ch)
}

func (m *clusterMetrics) collectLeaders(ch chan<- prometheus.Metric) {
	leaders, underReplicated, underMinISR := 0, 0, 0
	lag := map[int32]int64{}
	for _, p := range m.b.partitions.All() {
		if p.Err() != nil {
			continue
		}
		leaders++
		followers, inSync := p.Followers(), len(p.ISR())
		if inSync <= len(followers) {
			underReplicated++
		}
		if inSync < p.Config().MinInSync {
			underMinISR++
		}
		end := p.Log().EndOffset()
		for _, f := range followers {
			lag[f.Replica] = max(lag[f.Replica], end-max(f.End, p.Log().StartOffset()))
		}
	}
	ch <- gauge(m.leaders, float64(leaders))
	ch <- gauge(m.underReplicated, float64(underReplicated))
	ch <- gauge(m.underMinISR, float64(underMinISR))
	for id, records := range lag {
		ch <- gauge(m.lag, float64(records), strconv.Itoa(int(id)))
	}
}

func (m *clusterMetrics) collectController(ch chan<- prometheus.Metric) {
	if m.b.member == nil || m.b.member.ControllerID() != m.b.cfg.NodeID {
		ch <- gauge(m.active, 0)
		return
	}
	ch <- gauge(m.active, 1)
	im := m.b.metadata.Image()
	if im == nil {
		return
	}
	partitions, leaderless := 0, 0
	for _, t := range im.Topics() {
		for _, p := range t.Partitions {
			partitions++
			if p.Leader == cluster.NoLeader {
				leaderless++
			}
		}
	}
	ch <- gauge(m.brokers, float64(len(im.Brokers)))
	ch <- gauge(m.partitions, float64(partitions))
	ch <- gauge(m.leaderless, float64(leaderless))
}
