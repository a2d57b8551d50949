// Package server speaks the framing of the Kafka protocol: it accepts
// connections, cuts requests out of them, hands each to a Handler and sends
// the answers in the order of the requests. It knows no request kind.
//
// # A connection
//
// Each connection has one goroutine. It reads a frame, parses the request
// header, calls Handler.Handle, and writes what is ready to be written. A
// request whose answer comes later (a long poll, a produce that waits for
// replication) costs no goroutine: whoever answers it starts a short-lived one
// if it is the request's turn, so answering never blocks. While requests wait,
// the connection's goroutine reads on, which is also how it learns that the
// client has gone.
//
//	size   int32   of what follows
//	key    int16
//	version int16
//	correlation id int32
//	client id      nullable string
//	tagged fields  from header version 2 on
//	body
//
// # Limits
//
// Nothing a client sends makes the server allocate before it is checked: the
// size against Config.MaxRequestBytes, and the key, version and size against
// Config.Check. The memory of all requests that are not yet answered or that
// are being read is charged to one budget, half of it for requests of up to
// 1 MiB and half for larger ones, so that a few huge requests that stall do
// not keep the small ones out; a connection that finds no room waits, unread.
// A frame of more than 1 MiB gets its memory as its bytes arrive.
//
// One janitor looks at all connections once a second and closes those that are
// idle, stopped in the middle of a frame, or do not read their answers.
package server
