// Package broker is a node: its configuration, the order in which it starts and
// stops, and the steps that run in the background. The parts it wires know
// nothing of each other beyond what they import.
//
// # Start
//
//  1. the data directories are made, tried for writing and locked
//  2. the listeners are bound, so that a port in use stops the start before
//     anything is touched; connections wait in the system's queue
//  3. the cluster store is opened, in the data directory or in ZooKeeper, and
//     meta.properties is read or made; a directory that belongs elsewhere is refused
//  4. the mark of a clean stop is taken away in each data directory, and the logs
//     in them are opened, several at a time, and recovered where needed
//  5. the broker registers with what it found, and stands for the controller's
//     office; requests of other brokers are served
//  6. with the first picture of the cluster, what does not belong here is put
//     aside, settings are in force, and partitions lead and follow; the group
//     coordinator replays those it leads
//  7. requests of clients are served
//
// # Stop
//
// The controller moves what this broker leads to others. No more connections and requests are taken; what waits for records is
// answered; what waits for the disk is synced and answered; groups resign; the
// logs are closed; checkpoints are written, and last the mark of a clean stop.
//
// # In the background
//
// One goroutine runs the steps: closing old segments, retention, checkpoints,
// forgetting idle producers, opening again what was offline. log.flush.threads
// sync logs when something waits for it, log.cleaner.threads compact those of
// compacted topics. In a cluster num.replica.fetchers goroutines for each other
// broker copy what it leads, and one has the controller told who is in sync with
// what this broker leads.
//
// # Data directories
//
// The first one holds the cluster store, and without it there is no broker. Any
// other may fail, at the start or later; it then stays offline until the next
// start, its partitions with it. A log never moves between directories. Where a
// log is, the directories themselves say: they are listed at the start.
//
// # Locks
//
// The metadata's lock comes first: changes of the image run under it, and
// open and close partitions. Below it is Broker.storing, held over the writing of
// checkpoint files, under which a directory may fail. See packages replica
// and coordinator for theirs. The lock of the fetchers lies below the metadata's
// too, over those of package replica's fetchers; that of the keeper of in-sync
// replicas is a leaf.
package broker
