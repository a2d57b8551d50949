// Package api turns requests of the Kafka protocol into calls on the partitions,
// the controller and the group coordinator, and errors into the protocol's
// codes. There is one file for each request kind, named after it, with the
// differences of its versions at the top.
//
// Most requests are decoded and encoded by kmsg. Produce and Fetch are not:
// their cost is that of the records, which are neither copied nor looked at more
// than the checks need. A Produce is decoded in place, its batches are checked
// and appended as they came; a Fetch is answered with regions of the log's
// files.
//
// # Waiting
//
// A request that waits is one object that is the waiter of all its partitions
// (see package replica), with one timer, and no goroutine:
//
//   - a Produce with acks=all, until the high watermarks have passed its
//     records. Its answer is encoded when it begins to wait; what is decided
//     later are the error codes in it.
//   - a Fetch, until there are min_bytes to read. It then reads again.
//
// Both end too when a partition no longer serves, when their time is over, and
// when the client has gone. While they wait the request's memory is given back.
//
// # Locks
//
// produceWait.mu and fetch.mu are taken with no other lock held and released
// before a partition is called. fetchSessions.mu is taken under
// fetchSession.mu. producerIDs.mu is held while the controller hands out a
// block, and API.large, for a large request, while it is started. All others
// are leaves.
package api
