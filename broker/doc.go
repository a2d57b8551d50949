// Package broker is a node: its configuration, the order in which it starts and
// stops, and the steps that run in the background. The parts it wires know
// nothing of each other beyond what they import.
//
// # Start
//
//  1. the data directories are made, tried for writing and locked
//  2. the listeners are bound, so that a port in use stops the start before
//     anything is touched; connections wait in the system's queue
//  3. meta.properties is read or made, and the mark of a clean stop is taken away,
//     in each data directory
//  4. the cluster store is opened and this broker becomes its controller; after
//     an unclean stop every partition gets a new leader epoch
//  5. the logs are found, opened, several at a time, and recovered where needed;
//     what was set while the broker ran is in force before
//  6. the partitions lead; the group coordinator replays its partitions
//  7. requests are served
//
// # Stop
//
// No more connections and requests are taken; what waits for records is
// answered; what waits for the disk is synced and answered; groups resign; the
// logs are closed; checkpoints are written, and last the mark of a clean stop.
//
// # In the background
//
// One goroutine runs the steps: closing old segments, retention, checkpoints,
// forgetting idle producers, opening again what was offline. log.flush.threads
// sync logs when something waits for it, log.cleaner.threads compact those of
// compacted topics.
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
// and coordinator for theirs.
package broker
