package broker

import (
	"maps"
	"slices"
	"strconv"

	"github.com/sluice-io/sluice/broker/cluster"
)

// liveConfig is the configuration as it is in force: the file's, and over it
// what was set while the broker runs. Immutable.
type liveConfig struct {
	cfg      Config
	settings cluster.BrokerSettings // of the defaults of topic settings
}

// dynamicConfigs are the properties that may be set while the broker runs: as
// in Kafka, the defaults of topic settings and a few limits.
func dynamicConfigs() []cluster.ConfigDef {
	var out []cluster.ConfigDef
	for _, d := range cluster.TopicConfigs() {
		if len(d.Synonyms) == 0 {
			continue
		}
		// Of several names for the same, Kafka changes only the one that counts most.
		d.Name = d.Synonyms[0].Name
		out = append(out, d)
	}
	for _, p := range properties() {
		if p.dynamic {
			out = append(out, cluster.ConfigDef{Name: p.name, Type: p.typ, Doc: p.doc, Min: p.min, Max: p.max})
		}
	}
	return append(out, dynamicOnlyConfigs()...)
}

// dynamicOnlyConfigs are the properties that no file has.
func dynamicOnlyConfigs() []cluster.ConfigDef {
	rate := func(name, doc string) cluster.ConfigDef {
		return cluster.ConfigDef{Name: name, Type: cluster.ConfigLong, Doc: doc, Min: 0, Max: 1<<63 - 1, Effective: true}
	}
	return []cluster.ConfigDef{
		rate(followerThrottleProperty, "The most bytes a second that throttled replicas fetch."),
		rate(leaderThrottleProperty, "The most bytes a second that throttled replicas are served."),
		{Name: cluster.CordonedConfig, Type: cluster.ConfigList, Values: []string{"*"}, Effective: true,
			Doc: "With * no new replica is put on the broker, as one that is to go; those it has stay."},
		rate(movesThrottleProperty, "The most bytes a second that moves between data directories take."),
	}
}

// reconfigureNode makes what was set for this broker and for all brokers take
// effect. It returns whether anything changed. It runs under the metadata's lock.
func (b *Broker) reconfigureNode(old, new *cluster.Image) bool {
	self := strconv.Itoa(int(b.cfg.NodeID))
	own, all := new.BrokerConfig(self), new.BrokerConfig(cluster.AllBrokers)
	if old != nil && maps.Equal(own, old.BrokerConfig(self)) && maps.Equal(all, old.BrokerConfig(cluster.AllBrokers)) {
		return false
	}
	live := b.resolveLive(own, all)
	b.live.Store(live)
	b.throttles.set(b.log, own, all)
	b.mover.nudge() // its rate may be another
	b.cleaner.resize()
	b.server.SetConnectionLimits(live.cfg.ConnectionsMax, live.cfg.ConnectionsPerIPMax)
	return true
}

func (b *Broker) resolveLive(own, all map[string]string) *liveConfig {
	live := &liveConfig{cfg: b.cfg, settings: cluster.BrokerSettings{Dynamic: own, Default: all, Static: b.cfg.TopicDefaults}}
	for _, set := range []map[string]string{all, own} { // the latter counts more
		for _, p := range properties() {
			value, ok := set[p.name]
			if !ok || !p.dynamic {
				continue
			}
			if err := p.set(&live.cfg, value); err != nil {
				b.log.Error("a stored setting is not usable and has no effect", "property", p.name, "value", value, "error", err)
			}
		}
	}
	return live
}

// recoveryThreads is how many logs are opened or closed at a time.
func (b *Broker) recoveryThreads() int { return b.live.Load().cfg.RecoveryThreads }

// samePartitions tells whether two states of a topic differ in its settings at most.
func samePartitions(was, is *cluster.Topic) bool {
	return slices.EqualFunc(was.Partitions, is.Partitions, func(a, b cluster.Partition) bool {
		return a.Leader == b.Leader && a.LeaderEpoch == b.LeaderEpoch && a.PartitionEpoch == b.PartitionEpoch &&
			slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.ISR, b.ISR)
	})
}
