// Package producer carries chunks of records to a destination and tells, for
// every record, whether the destination took it or refused it for itself.
// Trouble of the destination (down, moving, not authorised) is never a
// record's fault: it is waited out, in order, for ever.
package producer

import "time"

// Header is one record header. The value may be shared between records.
type Header struct {
	Key   string
	Value []byte
}

// Record is one line or event on its way. Key, Value and Headers may alias
// pooled memory of the chunk's owner; they are not touched after Chunk.Done.
type Record struct {
	Topic     string
	Partition int32
	Tag       uint32 // the owner's: which line this is
	Key       []byte
	Value     []byte
	Headers   []Header
	// Err is set before Chunk.Done for a record that the destination refused
	// for itself (too large, invalid). Nil means acknowledged.
	Err error
}

// Chunk is the unit of sending and of acknowledgement. Records of one
// partition are stored in the order of chunks and, within, of Records.
// A chunk is not safe for concurrent use and belongs to the destination from
// Send until Done is called.
type Chunk struct {
	Records []Record
	// Timestamp is that of every record, in milliseconds precision.
	Timestamp time.Time
	// Done is called once, from any goroutine, when every record is
	// acknowledged or has its Err. It must not block. A destination that is
	// closed first never calls it.
	Done func()

	flight flight
}
