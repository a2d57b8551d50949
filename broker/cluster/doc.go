// Package cluster keeps what a cluster knows about itself: brokers, topics,
// partitions, their leaders and configurations.
//
// A [Store] is a small versioned tree with watches and transactions, the durable
// truth; [Embedded] is the store of a one-node cluster, and [ZooKeeper] that of
// several brokers. A [Member] keeps a broker registered and stands for the
// office of the controller. The [Controller] in office decides every change, by
// functions from one [Image] to the next that do no I/O (decide*.go), and writes
// it to the store, checking its own epoch in the same transaction: one that lost
// its office without noticing can change nothing. What is stored it pushes to
// the brokers as an [Update], from a queue for each; a broker's [Metadata]
// applies it and tells those who follow. An Image is immutable, and requests
// read it without locks.
//
// What a controller began and did not end, the next one ends: a topic whose node
// is there is made whole, one that is noted for deletion is deleted, and brokers
// that came, left or were reborn since are dealt with as if it had seen them.
//
// Node names and contents are those of Apache Kafka in ZooKeeper mode where the
// meaning is the same:
//
//	/cluster/id                              {"version":"1","id":"28ve_qmZRd2uT76selHi6A"}
//	/brokers/ids/ID                          ephemeral; its creation transaction is the broker epoch
//	/brokers/directories/ID                  which data a broker had, and what it told of its last stop; not Kafka's
//	/brokers/known                           the broker epochs that controllers have dealt with; not Kafka's
//	/brokers/topics/TOPIC                    replicas of each partition, topic id
//	/brokers/topics/TOPIC/partitions/N/state leader, leader epoch, in-sync replicas
//	/config/topics/TOPIC                     {"version":1,"config":{"retention.ms":"3600000"}}
//	/controller                              ephemeral; who is the controller
//	/controller_epoch                        how many elections there have been
//	/latest_producer_id_block                the block of producer ids handed out last
//	/admin/delete_topics/TOPIC               a deletion that has begun and is to be finished
//	/log_dir_event_notification/...          a broker's note that one of its disks has failed or is back
//
// Nothing here knows the wire protocol or a log.
package cluster
