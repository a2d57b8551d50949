package producer

import (
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// TopicID is a topic's own identity, which a topic of the same name made later does not have. The zero value is that of brokers that
// give none.
type TopicID [16]byte

// ID names a batch in the journal.
type ID struct {
	Entry uint64
	Index uint32
}

// Class says what the lines of a batch are to their owner.
type Class uint8

// Mark is what the owner knows a record by: where its line began in its source, and the bytes it took there.
type Mark struct {
	Source int32 // index in the bundle's ranges
	Bytes  int32
	Offset int64
}

// Batch is the records of one partition, built and compressed, on its way. Until Send it is the owner's, then the destination's.
type Batch struct {
	Topic     string
	Partition int32
	// Data are the bytes as they are sent; nil when they are only in the journal.
	Data record.Batch
	// Marks are one for each record; nil after a restart.
	Marks []Mark
	// Lines and SourceBytes are what the batch counts in accounts.
	Lines, SourceBytes int64
	Class              Class

	// The rest is given when the batch is taken, or comes from the journal.
	ID           ID
	Cluster      string
	TopicID      TopicID
	Producer     int64
	Epoch        int16
	BaseSequence int32
	Records      int32
	Size         int
	// Recovered says that the batch was written by an earlier run.
	Recovered bool

	bundle *Bundle
	flight flight
	piece  bool // made of another, whose marks it shares
}

// Ranges are what the owner gave the batch's bundle; nil after a restart.
func (b *Batch) Ranges() any {
	if b.bundle == nil {
		return nil
	}
	return b.bundle.Ranges
}

// In says whose a batch is. Destinations that take bundles apart by themselves use it.
func (b *Batch) In(x *Bundle) *Batch {
	b.bundle = x
	return b
}

// LastSequence is the sequence of the last record.
func (b *Batch) LastSequence() int32 { return record.AddSequence(b.BaseSequence, b.Records-1) }

func (b *Batch) identity() identity { return identity{b.Producer, b.Epoch, true} }

// identity is a producer ID with its epoch. The zero value is none: 0 is a producer ID like any other.
type identity struct {
	id    int64
	epoch int16
	known bool
}

// Bundle is what is written to the journal whole or not at all: the batches of some pieces of sources.
type Bundle struct {
	Batches []*Batch
	// Ranges are the owner's: which pieces. They are handed to the Log.
	Ranges any
	// Written is called when the bundle is in the journal, with the sequence of its entry, and Done when all of its batches are settled;
	// both on the destination's goroutine. They must not block.
	Written func(sequence uint64)
	Done    func()

	left     int
	finished bool
}

// finish tells the owner once, when nothing is left.
func (b *Bundle) finish() {
	if b == nil || b.left > 0 || b.finished {
		return
	}
	b.finished = true
	if b.Done != nil {
		b.Done()
	}
}

// state says where a batch is between the journal and its acknowledgement.
type state int8

const (
	queued   state = iota // to be sent
	flying                // sent, not answered
	presumed              // the broker says that it has it; a later acknowledgement will prove it
	settled
)

// flight is what the lane knows of a batch.
type flight struct {
	state state
	// check says that the broker must be asked what it has before the batch is sent again.
	check bool
	// doubt says that the batch may have been stored by an attempt that got no answer.
	doubt bool
	// before is doubt as it was before the attempt under way.
	before    bool
	sends     int
	firstSent time.Time
	refusal   *refusal // the last answer, when it was one
	sequence  int      // answers in a row that its sequence is not due
}

// refusal is an answer that the batch itself is the trouble.
type refusal struct {
	err      error
	tooLarge bool
	records  []int // the bad ones, when they were told
}
