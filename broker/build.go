package broker

import (
	"time"

	"github.com/sluice-io/sluice/broker/api"
	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/coordinator"
	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/peer"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
	"github.com/sluice-io/sluice/internal/record"
)

// build makes the parts, none of which does anything yet but the flusher.
func (b *Broker) build() {
	b.cleaner = newCleaner(b)
	b.metrics = newMetrics(b)
	b.reg.MustRegister(b.metrics)
	b.files = commitlog.NewFileCache(b.cfg.OpenFilesMax)
	b.flusher = newFlusher(b.log, b.metrics.flushSeconds, time.Now)
	b.flusher.start(b.cfg.FlushThreads)
	b.buildMembership()
	b.buildReplication()
	b.groups = group.New(b.log, b.reg, coordinator.SystemClock{}, group.Config{
		InitialRebalanceDelay:  max(b.cfg.GroupInitialRebalanceDelay, 0),
		SessionTimeoutMin:      b.cfg.GroupSessionTimeoutMin,
		SessionTimeoutMax:      b.cfg.GroupSessionTimeoutMax,
		MembersMax:             b.cfg.GroupMembersMax,
		OffsetMetadataBytesMax: b.cfg.OffsetMetadataBytesMax,
		OffsetsRetention:       b.cfg.OffsetsRetention,
		RetentionCheckInterval: b.cfg.OffsetsRetentionCheck,

		ConsumerSessionTimeout:     b.cfg.ConsumerGroupSessionTimeout,
		ConsumerHeartbeatInterval:  b.cfg.ConsumerGroupHeartbeatInterval,
		ConsumerMembersMax:         b.cfg.ConsumerGroupMembersMax,
		ConsumerAssignors:          b.cfg.ConsumerGroupAssignors,
		ConsumerMigration:          migrationPolicies()[b.cfg.ConsumerGroupMigration],
		ConsumerAssignmentInterval: func() time.Duration { return b.live.Load().cfg.ConsumerGroupAssignmentInterval },
	})
	b.buildAPI()
	var addresses, names []string
	for _, l := range b.listen {
		addresses, names = append(addresses, l.hostPort), append(names, l.name)
	}
	b.server = server.New(b.log, b.reg, server.Config{
		ListenAddrs:         addresses,
		ListenNames:         names,
		MaxRequestBytes:     b.cfg.RequestBytesMax,
		SendBufferBytes:     b.cfg.SendBufferBytes,
		MaxConnections:      b.cfg.ConnectionsMax,
		MaxConnectionsPerIP: b.cfg.ConnectionsPerIPMax,
		MaxInFlight:         b.cfg.InFlightMax,
		RequestMemoryBytes:  b.cfg.RequestMemoryBytesMax,
		IdleTimeout:         b.cfg.ConnectionIdleMax,
		Check:               b.api.Check,
		Flexible:            b.api.Flexible,
		Sums:                api.Sums,
		PieceBytes:          record.PieceBytes,
		PieceSum:            record.PieceSum,
		APIName:             api.Name,
	}, b.api)
}

// buildMembership makes the broker's part in the cluster's decisions.
func (b *Broker) buildMembership() {
	b.metadata = cluster.NewMetadata()
	cfg := cluster.ControllerConfig{
		BrokerID:                 b.cfg.NodeID,
		DefaultPartitions:        b.cfg.NumPartitions,
		DefaultReplicationFactor: b.cfg.DefaultReplicationFactor,
		BrokerConfigs:            dynamicConfigs(),
		TopicDefaults:            b.cfg.TopicDefaults,
		Offline:                  b.isOffline,
		Now:                      b.cfg.Now,
	}
	var pusher cluster.Pusher
	if b.clustered() {
		b.peers = peer.New(b.log, peer.Config{BrokerID: b.cfg.NodeID, Listener: b.cfg.InterBrokerListener})
		pusher, cfg.Away = b.peers, b.controllerAway
		if !b.cfg.NoLeaderRebalance {
			cfg.BalanceInterval, cfg.ImbalancePercent = b.cfg.LeaderImbalanceCheck, max(b.cfg.LeaderImbalancePercent, 0)
		}
	}
	b.controller = cluster.NewController(b.log, b.clusterStore, b.metadata, pusher, cfg)
	b.member = cluster.NewMember(b.log, b.clusterStore, b.controller, cluster.MemberConfig{
		SessionTimeout: b.cfg.ZooKeeperSessionTimeout, JoinTimeout: b.cfg.ZooKeeperConnectTimeout, Now: b.cfg.Now, Displaced: b.isDisplaced,
	})
	b.metadata.Subscribe(b.member.Seen)
}

// buildReplication makes what copies between brokers, where there are several.
func (b *Broker) buildReplication() {
	b.throttles, b.mover = newThrottles(), newMover(b)
	if !b.clustered() {
		return
	}
	b.isr = newISRKeeper(b.log, &b.partitions, b.alterPartitions, b.cfg.Now, b.metrics.isr)
	b.fetchers = newFetchers(b.log, b.peers, b.cfg.ReplicaFetchers, peer.FetchConfig{
		Epoch: b.member.Epoch, BytesMin: b.cfg.ReplicaFetchBytesMin, WaitMax: b.cfg.ReplicaFetchWaitMax, Timeout: b.cfg.ReplicaSocketTimeout,
	}, replica.FetcherConfig{
		Backoff: b.cfg.ReplicaFetchBackoff, PartitionBytes: b.cfg.ReplicaFetchPartitionBytesMax, ResponseBytes: b.cfg.ReplicaFetchBytesMax,
		Throttle: b.throttles.follower, Throttled: b.isThrottled,
	}, b.awaitSettled, b.cfg.Now)
}

func (b *Broker) buildAPI() {
	deps := api.Deps{
		Log: b.log, Registerer: b.reg,
		Image: b.metadata.Image, Controller: b.controller, ProducerIDs: b.member.AllocateProducerIDs,
		Partitions: &b.partitions, Groups: b.groups,
		Properties: b.cfg.Properties(), Now: b.cfg.Now,
		LogDirs: b.logDirs, FutureLogs: b.mover.list, MoveLog: b.mover.request, Offline: b.isOffline,
	}
	if b.clustered() {
		deps.ControllerID, deps.Forward, deps.LeaderThrottle = b.member.ControllerID, b.peers.Forward, b.throttles.leader
		deps.Updates = peer.NewReceiver(b.metadata, b.member.Epoch, b.isOffline)
	}
	b.api = api.New(deps, api.Config{
		BrokerID:                      b.cfg.NodeID,
		InterBrokerListener:           b.cfg.InterBrokerListener,
		RackAwareReads:                b.cfg.RackAwareReads,
		AutoCreateTopics:              !b.cfg.NoAutoCreateTopics,
		RefuseTopicDeletion:           b.cfg.NoDeleteTopics,
		NumPartitions:                 b.cfg.NumPartitions,
		DefaultReplicationFactor:      b.cfg.DefaultReplicationFactor,
		OffsetsTopicPartitions:        b.cfg.OffsetsPartitions,
		OffsetsTopicReplicationFactor: b.cfg.OffsetsReplicationFactor,
		FetchMaxBytes:                 int32(b.cfg.FetchBytesMax),
	})
}
