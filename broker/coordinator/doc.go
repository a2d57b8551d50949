// Package coordinator holds what every coordinator shard shares, whatever it coordinates: one
// writer over one partition of an internal topic, replayed from that partition, timers in heap
// order, and answers that wait for the high watermark.
//
// # How a shard works
//
// A shard belongs to one partition and, while this broker leads it, to one leadership of it. All of
// its state is a Machine, which does no I/O, starts no goroutine and reads no clock: it is handed
// an input and the time, and says in an Actions what to write and whom to answer. The Shard around
// it owns a mutex, the partition's Log and one clock timer:
//
//	input -> Machine -> Actions{writes, replies}
//	                      |         `-> run once the mutex is free
//	                      `-> Log.Append -> Log.Await -> Write.Done -> more Actions
//
// # Invariants
//
//   - One writer: every input runs under the shard's mutex, one at a time, so the
//     order of the log is the order of the decisions.
//   - A Machine shows only what the high watermark has passed. It applies a Write
//     in its Done, and Dones run in log order; or, where the next decision has to
//     build on it, in its Appended, and then tells nobody before the Done.
//   - Each timer fires in a pass of its own: what the one before it asked to be
//     written is in the log, or was refused, when the next one decides.
//   - Until the log is replayed up to its end as it was at the election, and the
//     high watermark has passed that end, every input is refused with ErrLoading:
//     a shard that knows only half of its log must not say "no offset".
//   - When the leadership ends, or a written record is lost, the Machine is thrown
//     away with everything that was not yet committed. The next leadership replays.
//
// # Locks
//
// The shard's mutex is taken before any lock of the Log. Replies run, and Log.Await is called,
// without the mutex. Log may therefore call back from any goroutine, also from within Await.
package coordinator
