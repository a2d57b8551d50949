package sinks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/sluice-io/sluice/pipelines"
)

// Sink is a destination. All methods are safe for concurrent use: partitions are written side by side.
type Sink interface {
	// Check asks the destination whether it can take the pipeline's rows and what it promises. An error says where the trouble is
	// and how to mend it; the worker repeats Check until it succeeds, so no error is final.
	Check(ctx context.Context) (Destination, error)
	// NewBlock returns an empty block of the current schema. It fails only while Check has not succeeded.
	NewBlock() (Block, error)
	// Stored reads back which offsets of the claim's range the destination holds, and the largest it holds of the partition. Rows of another
	// topic that had the same name, by their topic ID, are not counted.
	Stored(ctx context.Context, c Claim) (Stored, error)
	// Write stores the batch's block whole or not at all, and returns only when it is stored: nothing may still be queued. Written
	// again under the same identity it changes nothing where the destination has DropsRepeats. Every error is the destination's
	// trouble: the worker waits, reads back what is there and writes again, for ever. ErrSchemaChanged asks for a new block first, SplitError
	// for pieces; ErrTooMuch and ErrTooOften say what helps.
	Write(ctx context.Context, b *Batch) error
	// Close releases what the sink holds. No write is in progress.
	Close() error
}

// Block gathers rows in the destination's own form. Not safe for concurrent use.
type Block interface {
	// Append adds the event as a row. A *RejectError says that this record cannot be stored, and leaves the block as it was.
	Append(e *pipelines.Event) error
	// Rows is the number of rows gathered.
	Rows() int
	// Bytes is about the memory the rows take.
	Bytes() int64
	// Reset empties the block for another batch.
	Reset()
}

// Destination is what Check found.
type Destination struct {
	Server string // who answers: host and port, or a directory
	Schema string // hash of mapping and destination schema; rows encoded under another hash are not the same bytes
	// DropsRepeats says that a second write under one identity is dropped by the destination itself, also one that arrives late. Where it
	// does not, exactly once rests on reading back alone, which cannot see a write that is still on its way.
	DropsRepeats bool
	// Alterable says that others may change the schema at any time: it is read again before records are given up for not fitting it.
	Alterable bool
	// RepeatsFill says that a write repeated under its identity brings what hangs on the destination up to date (a materialised view that failed), and that
	// the destination drops the rows themselves: then what is stored is not left out of it.
	RepeatsFill bool
	Guarantee   string // a sentence for the operator: what this destination makes of crashes, and why
}

// Stored is what a destination holds of a claim's range.
type Stored struct {
	Present []Range // of the claim's range: ascending, apart from each other
	Max     int64   // largest offset of the whole partition, -1 if there is none
	// MaxUnknown is the largest offset among the rows counted above that do not say which topic they are of, only its name; -1 if there is
	// none. They may be of an earlier topic of that name.
	MaxUnknown int64
	// Mend says how to make such rows tell, with the claim's topic ID; for the operator.
	Mend string
}

// Range is a run of offsets, both ends inclusive.
type Range struct{ Lo, Hi int64 }

// Holds says that offset lies in one of the ranges, which ascend.
func Holds(ranges []Range, offset int64) bool {
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].Hi >= offset })
	return i < len(ranges) && ranges[i].Lo <= offset
}

// Batch is one write: the block of a claim.
type Batch struct {
	Claim Claim
	Block Block
	// Identity names the write at the destination: Claim.Identity(), or a derived one when some of the claim's rows were found
	// stored and the block holds only the absent.
	Identity string
	// Repeat says that an earlier write of this claim may have succeeded or may still be running.
	Repeat bool
	// Again is how often the destination was found without rows of the batch which it says it has: see ErrNotKept. Identity is another each time.
	Again int
	// Mark is the sink's own: what Write sets is there when the batch is written again.
	Mark int64
	// Parts is set by Write: how many pieces the destination made of it, each of which it has to merge.
	Parts int
}

// SplitError is returned by Sink.Write when the destination refused the block, whole, since it takes its rows only in several pieces. Pieces are
// the offsets of each, ascending, all rows of the block once; the same block is always split in the same way.
type SplitError struct {
	Pieces [][]int64
	Err    error
}

func (e *SplitError) Error() string {
	return fmt.Sprintf("to be written in %d pieces: %v", len(e.Pieces), e.Err)
}

func (e *SplitError) Unwrap() error { return e.Err }

// ErrSchemaChanged is returned by Sink.Write when the destination's schema is no longer that of the block.
var ErrSchemaChanged = errors.New("the destination's schema has changed")

// ErrForgotten is returned by Sink.Write for a repeated batch which the destination may no longer drop: what is stored is read back first, and left out.
var ErrForgotten = errors.New("the destination may no longer know the batch")

// ErrNotKept is returned by Sink.Write when the destination took a repeated batch for one that it has, and lacks rows of it: what is stored is read back, and the
// rest is written under another identity.
var ErrNotKept = errors.New("the destination says that it has the batch, and lacks rows of it")

// AgainMax bounds the other identities of a batch: rows that are gone after so many writes are taken away by the destination itself, as by a TTL.
const AgainMax = 3

// ErrLate is why a record is rejected that came later than its sink takes.
var ErrLate = errors.New("the record is late")

// ErrConstraint is why a record is rejected that breaks a constraint of its destination.
var ErrConstraint = errors.New("it breaks the constraint")

// RejectError says that one record cannot be stored, whatever the state of the destination: it goes to the dead-letter topic.
type RejectError struct {
	Column string // "": of no single one
	Err    error  // why; may wrap pipelines.ErrRange, ErrType or ErrNull, or ErrLate or ErrConstraint, which name the counter's reason
}

func (e *RejectError) Error() string {
	if e.Column == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("column %s: %v", e.Column, e.Err)
}

func (e *RejectError) Unwrap() error { return e.Err }

// OwnColumn says whether a mapping names a column that the sink itself fills with what the record is known by. A pipeline may list it with its own
// name as expression, which changes nothing; anything else is refused.
func OwnColumn(c pipelines.Column, own ...string) (bool, error) {
	if !slices.Contains(own, c.Name) {
		return false, nil
	}
	if strings.TrimSpace(c.Expr.Text) != c.Name {
		return true, fmt.Errorf("%s: column %s is filled by the sink itself: take it out of the sink's columns", c.Expr.Pos, c.Name)
	}
	return true, nil
}
