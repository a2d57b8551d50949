// Package quickio reads and writes sockets and the page cache without telling Go's scheduler, which keeps a monitor thread awake for each system call
// that might wait, and hands the processor to another thread when the call is long. It starts no goroutine.
package quickio

import (
	"os"
	"sync/atomic"
	"time"
)

const (
	// quickWriteMax is how long a quick write takes at the most unless it has waited.
	quickWriteMax = 10 * time.Millisecond
	// quickPauseMin and quickPauseMax bound the time without quick writes after one
	// that has waited: it doubles as long as they do not last as long again.
	quickPauseMin = time.Second
	quickPauseMax = 2 * time.Minute
)

// Writes lets appends write without telling Go's scheduler. A write goes to
// the page cache, which takes as long as the copy does, and what the scheduler does
// about a system call that might wait costs a small append a quarter of its time
// and a large one a sixth: its monitor thread is woken after each idle moment, and
// the processor is handed to another thread in the middle of the copy.
//
// But a write does wait, when more is dirty than the system allows or the file
// system's journal is busy, and one that the scheduler does not know of then keeps
// one of its processors, and a collection of garbage from its start. So at most
// half of the processors write so at a time, none if there is one only, and not at
// all for a while after a write that took longer than quickWriteMax.
//
// Safe for concurrent use.
type Writes struct {
	most    int32 // at a time
	epoch   time.Time
	running atomic.Int32
	// In nanoseconds since epoch: until when writes are ordinary ones, and how long
	// that time was.
	resume, pause atomic.Int64
}

// NewWrites is for a process of so many processors.
func NewWrites(processors int) *Writes {
	return &Writes{most: int32(processors / 2), epoch: time.Now()}
}

// begin tells whether a write may be quick; end must follow if so.
func (q *Writes) begin(now time.Duration) bool {
	if int64(now) < q.resume.Load() {
		return false
	}
	if q.running.Add(1) > q.most {
		q.running.Add(-1)
		return false
	}
	return true
}

// end takes note of how long a write took.
func (q *Writes) end(began, ended time.Duration) {
	q.running.Add(-1)
	if ended-began <= quickWriteMax {
		return
	}
	pause := time.Duration(q.pause.Load())
	if began-time.Duration(q.resume.Load()) > pause {
		pause = 0
	}
	pause = min(max(2*pause, quickPauseMin), quickPauseMax)
	q.pause.Store(int64(pause))
	q.resume.Store(int64(ended + pause))
}

// WriteAt is file.WriteAt, quick if it may be. The file must not be closed meanwhile.
func (q *Writes) WriteAt(file *os.File, data []byte, at int64) (int, error) {
	if q.most == 0 {
		return file.WriteAt(data, at)
	}
	began := time.Since(q.epoch)
	if !q.begin(began) {
		return file.WriteAt(data, at)
	}
	n, err := writeQuickly(file, data, at)
	q.end(began, time.Since(q.epoch))
	return n, err
}
