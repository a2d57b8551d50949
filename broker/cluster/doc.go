// Package cluster keeps what a cluster knows about itself: brokers, topics,
// partitions, their leaders and configurations.
//
// It has three parts. A [Store] is a small versioned tree with watches and
// transactions, the durable truth; [Embedded] is the store of a one-node
// cluster, and Apache ZooKeeper fits the same interface. A [Controller] decides
// every change and writes it to the store, checking its own epoch in the same
// transaction, so that a controller that lost its office without noticing can
// change nothing. An [Image] is the immutable picture that requests read
// without locks.
//
// Node names and contents are those of Apache Kafka in ZooKeeper mode where the
// meaning is the same:
//
//	/cluster/id                              {"version":"1","id":"28ve_qmZRd2uT76selHi6A"}
//	/brokers/ids/ID                          ephemeral; its creation transaction is the broker epoch
//	/brokers/topics/TOPIC                    replicas of each partition, topic id
//	/brokers/topics/TOPIC/partitions/N/state leader, leader epoch, in-sync replicas
//	/config/topics/TOPIC                     {"version":1,"config":{"retention.ms":"3600000"}}
//	/controller                              ephemeral; who is the controller
//	/controller_epoch                        how many elections there have been
//	/latest_producer_id_block                the block of producer ids handed out last
//	/admin/delete_topics/TOPIC               a deletion that has begun and is to be finished
//
// Nothing here knows the wire protocol or a log.
package cluster
