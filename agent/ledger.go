package agent

import "maps"

// Reasons of drops that are not a stage's.
const (
	dropNUL        = "nul_hole"      // bytes: a hole that a truncation left
	dropMark       = "bom"           // bytes: byte-order mark
	dropTooLong    = "line_too_long" // bytes: rest of lines over the limit
	dropLate       = "late_newline"  // bytes: newline that came after its line was sent
	dropFrame      = "frame"         // bytes: lengths, and what stands between counted messages
	dropStopped    = "stopped"       // lines that had come and could not be kept before the agent stopped
	dropDeadLetter = "dead_letter"   // lines acknowledged in the dead-letter topic
	dropRefused    = "refused"       // lines that the broker refused for themselves
)

// Count is an amount of lines and of the bytes they took in their files.
type Count struct {
	Lines, Bytes int64
}

func (c *Count) add(d Count) {
	c.Lines += d.Lines
	c.Bytes += d.Bytes
}

func (c *Count) sub(d Count) {
	c.Lines -= d.Lines
	c.Bytes -= d.Bytes
}

// Account says where everything that was read of one pipeline's input is:
// Read = Acked + InFlight + the sum of Dropped, at any moment.
type Account struct {
	Pipeline string
	Input    string // as in the pipeline file
	Read     Count
	Acked    Count
	InFlight Count
	Dropped  map[string]Count // by reason
	// Sent are lines that went into the journal, and from there to the brokers or on their way.
	Sent Count
	// Recovered are lines that the journal held unsettled at the start; they count as read. Unknown are lines of which it cannot be told
	// whether the brokers had stored them before they were sent again, or held.
	Recovered, Unknown Count
	// JournalBytes is what the journal takes on disk, JournalBatches how many batches in it wait.
	JournalBytes, JournalBatches int64
	// LostBytes estimates what truncations destroyed before it was read.
	LostBytes int64
	// AbandonedBytes are those of removed files that were let go unread because such files kept too much on disk.
	AbandonedBytes int64
	// CutLines were over the line limit; they count as lines wherever they
	// went, their rest as bytes dropped.
	CutLines int64
	// SplitRecords are records of several lines that a limit ended. MalformedLines
	// are lines of containers' files that are not of their form, and were sent as they are.
	SplitRecords, MalformedLines int64
	// UnlabelledLines are those of pods that the API server did not tell of in time.
	UnlabelledLines int64
	// DamagedFiles are compressed files that could not be read to their end.
	DamagedFiles int64
	// Rotations are files that were renamed or removed while followed,
	// Truncations files that were emptied or rewritten.
	Rotations, Truncations int64
	// Copies are files that were recognised as copies of what was read, and
	// not read again.
	Copies int64
	// LagBytes is what the followed files hold that is not acknowledged.
	LagBytes int64
	// FilesOpen are the descriptors held, FilesFollowed the files known.
	FilesOpen, FilesFollowed int64
	// DeletedBytes is what files that no longer have a name keep on disk
	// because they are still read.
	DeletedBytes int64
}

// Balanced says that the account adds up.
func (a Account) Balanced() bool {
	sum := a.Acked
	sum.add(a.InFlight)
	for _, d := range a.Dropped {
		sum.add(d)
	}
	return sum == a.Read
}

// drop counts a drop by reason.
func (a *Account) drop(reason string, d Count) {
	if d == (Count{}) {
		return
	}
	if a.Dropped == nil {
		a.Dropped = map[string]Count{}
	}
	have := a.Dropped[reason]
	have.add(d)
	a.Dropped[reason] = have
}

func (a *Account) clone() Account {
	b := *a
	b.Dropped = maps.Clone(a.Dropped)
	if b.Dropped == nil {
		b.Dropped = map[string]Count{}
	}
	return b
}
