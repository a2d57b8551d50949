// Package peer is the client side of what brokers say to each other, on the
// inter-broker listener and in Kafka's own requests.
//
//   - A controller pushes its picture of the cluster to every broker: Push, over
//     LeaderAndIsr, UpdateMetadata and StopReplica; a [Receiver] puts them
//     together again on the other side.
//   - A leader has its controller change who is in sync: AlterPartitions. A
//     broker that stops has it move its leaderships: ControlledShutdown.
//   - A broker that is asked for what only the controller decides passes the
//     request on as it came: Forward, over Envelope.
//   - A follower copies its leaders' logs: FetchConn, over Fetch with a session.
//
// Connections are kept by broker and registration: what was open to a broker
// that has restarted is never used again.
package peer
