package api

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/server"
)

// clusterRoutes are the requests of brokers to each other, in the newest
// versions that Kafka had of them.
func clusterRoutes() []route {
	return []route{
		{key: 4, min: 7, max: 7, handle: direct(leaderAndISR), internal: true},
		{key: 5, min: 4, max: 4, handle: direct(stopReplica), internal: true},
		{key: 6, min: 8, max: 8, handle: direct(updateMetadata), internal: true},
		{key: 7, min: 3, max: 3, handle: direct(controlledShutdown), internal: true},
		{key: 56, min: 3, max: 3, handle: direct(alterPartition), internal: true},
		{key: 58, min: 0, max: 0, handle: async(envelope), internal: true},
	}
}

// UpdateReceiver takes the requests in which a controller pushes its picture of
// the cluster.
type UpdateReceiver interface {
	StopReplica(*kmsg.StopReplicaRequest) *kmsg.StopReplicaResponse
	UpdateMetadata(*kmsg.UpdateMetadataRequest) *kmsg.UpdateMetadataResponse
	LeaderAndISR(*kmsg.LeaderAndISRRequest) *kmsg.LeaderAndISRResponse
}

// LeaderAndIsr, version 7.
func leaderAndISR(a *API, _ *server.Request, req *kmsg.LeaderAndISRRequest) kmsg.Response {
	return a.Updates.LeaderAndISR(req)
}

// StopReplica, version 4.
func stopReplica(a *API, _ *server.Request, req *kmsg.StopReplicaRequest) kmsg.Response {
	return a.Updates.StopReplica(req)
}

// UpdateMetadata, version 8.
func updateMetadata(a *API, _ *server.Request, req *kmsg.UpdateMetadataRequest) kmsg.Response {
	return a.Updates.UpdateMetadata(req)
}
