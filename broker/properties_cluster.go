package broker

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
)

// rackAwareSelector is the name of the one replica selector (KIP-392), as in Kafka.
const rackAwareSelector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

// clusterProperties are the settings of a broker that is not alone.
func clusterProperties() []property {
	return []property{
		text("zookeeper.connect", "The Apache ZooKeeper that the brokers of a cluster agree in: host:port of each server, comma-separated, and after the last one a path to keep everything under, such as /sluice. Without it the broker is alone and keeps the cluster's state in its data directory.",
			func(c *Config) *string { return &c.ZooKeeperConnect }),
		duration("zookeeper.session.timeout.ms", time.Millisecond, "How long a broker may be silent before ZooKeeper, and so the cluster, takes it for gone, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ZooKeeperSessionTimeout }).asInt(),
		duration("zookeeper.connection.timeout.ms", time.Millisecond, "How long a start waits for ZooKeeper, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ZooKeeperConnectTimeout }).asInt(),
		{
			name: "zookeeper.auth", typ: cluster.ConfigPassword, secret: true,
			doc: "USER:PASSWORD that the broker shows to ZooKeeper (digest authentication), which Kafka takes from a JAAS file.",
			set: func(c *Config, value string) error {
				if user, password, ok := strings.Cut(value, ":"); !ok || user == "" || password == "" {
					return fmt.Errorf("it must be USER:PASSWORD") // what it is is not told: it may be half a secret
				}
				c.ZooKeeperAuth = value
				return nil
			},
			get: func(c *Config) string { return c.ZooKeeperAuth },
		},
		boolean("zookeeper.set.acl", "Whether what the broker makes in ZooKeeper can be changed only by who shows the same zookeeper.auth.",
			func(c *Config) *bool { return &c.ZooKeeperACL }),
		text("inter.broker.listener.name", "The name of the listener that brokers reach each other by.",
			func(c *Config) *string { return &c.InterBrokerListener }).upper(),
		number("num.replica.fetchers", 1, 1024, "How many connections copy from each other broker.",
			func(c *Config) *int { return &c.ReplicaFetchers }),
		duration("replica.lag.time.max.ms", time.Millisecond, "How long a replica may not have caught up before it is out of sync, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ReplicaLagMax }),
		number("replica.fetch.max.bytes", 1, math.MaxInt32, "The most bytes that one request of a replica gets of one partition, one batch at the least.",
			func(c *Config) *int { return &c.ReplicaFetchPartitionBytesMax }),
		number("replica.fetch.response.max.bytes", 1, math.MaxInt32, "The most bytes that one request of a replica gets, one batch at the least.",
			func(c *Config) *int { return &c.ReplicaFetchBytesMax }),
		number("replica.fetch.min.bytes", 1, math.MaxInt32, "How many bytes a replica's request waits for.",
			func(c *Config) *int { return &c.ReplicaFetchBytesMin }),
		duration("replica.fetch.wait.max.ms", time.Millisecond, "How long a replica's request waits for them, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ReplicaFetchWaitMax }).asInt(),
		duration("replica.fetch.backoff.ms", time.Millisecond, "How long a replica waits before it asks again for a partition that could not be fetched, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ReplicaFetchBackoff }).asInt(),
		duration("replica.socket.timeout.ms", time.Millisecond, "How long a replica waits for an answer, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ReplicaSocketTimeout }).asInt(),
		negated("controlled.shutdown.enable", "Whether a broker that stops has its leaderships moved first.",
			func(c *Config) *bool { return &c.NoControlledShutdown }),
		numberOrNone("controlled.shutdown.max.retries", math.MaxInt32, "How often that is tried again.",
			func(c *Config) *int { return &c.ControlledShutdownRetries }),
		duration("controlled.shutdown.retry.backoff.ms", time.Millisecond, "How long a broker waits before it tries that again, in milliseconds.",
			func(c *Config) *time.Duration { return &c.ControlledShutdownBackoff }),
		negated("auto.leader.rebalance.enable", "Whether leaderships move back to the preferred replicas by themselves.",
			func(c *Config) *bool { return &c.NoLeaderRebalance }),
		duration("leader.imbalance.check.interval.seconds", time.Second, "How often that is looked at, in seconds.",
			func(c *Config) *time.Duration { return &c.LeaderImbalanceCheck }),
		numberOrNone("leader.imbalance.per.broker.percentage", 100, "How many per cent of the partitions that a broker should lead may be led by others before they move back.",
			func(c *Config) *int { return &c.LeaderImbalancePercent }),
		{
			name: "replica.selector.class", typ: cluster.ConfigString,
			doc: "Who consumers are told to read from: " + rackAwareSelector + " for a replica in the consumer's rack, nothing for the leader.",
			set: func(c *Config, value string) error {
				if value != rackAwareSelector {
					return fmt.Errorf("%q is not supported; there is %s", value, rackAwareSelector)
				}
				c.RackAwareReads = true
				return nil
			},
			get: func(c *Config) string {
				if c.RackAwareReads {
					return rackAwareSelector
				}
				return ""
			},
		},
	}
}

// upper writes the value in capitals, as the names of listeners are.
func (p property) upper() property {
	set := p.set
	p.set = func(c *Config, value string) error { return set(c, strings.ToUpper(value)) }
	return p
}

// numberOrNone is a number that may be 0, which the field has as below zero.
func numberOrNone(name string, most int64, doc string, field func(*Config) *int) property {
	return property{
		name: name, typ: cluster.ConfigInt, doc: doc,
		set: setInt(0, most, func(c *Config, n int64) {
			if *field(c) = int(n); n == 0 {
				*field(c) = -1
			}
		}),
		get: func(c *Config) string { return strconv.Itoa(max(*field(c), 0)) },
	}
}

// boolean is a property that is false by default.
func boolean(name, doc string, field func(*Config) *bool) property {
	return property{
		name: name, typ: cluster.ConfigBoolean, doc: doc,
		set: func(c *Config, value string) (err error) {
			if *field(c), err = strconv.ParseBool(strings.ToLower(value)); err != nil {
				return fmt.Errorf("%q is not true or false", value)
			}
			return nil
		},
		get: func(c *Config) string { return strconv.FormatBool(*field(c)) },
	}
}
