package record

import (
	"encoding/binary"
	"math"
	"runtime"
)

// commonRun is a run of records that were checked together.
type commonRun struct {
	records, bytes int
	least, most    int64 // timestamp deltas
}

const (
	// commonBytesMin is how many bytes there must be for a record to be looked at,
	// and commonMargin how many behind it, since fields are read four bytes at a time.
	commonBytesMin = 16
	commonMargin   = 4
	// nullLength is -1 as a zigzag varint.
	nullLength = 1
	// longVarint is what shortVarint gives for one of more than three bytes: a length
	// that is longer than any record, and odd.
	longVarint = math.MaxInt32
)

// commonRecords checks records from the one at index i on, of count in the batch, as
// long as they are of the common kind: lengths and deltas of up to three bytes, no
// headers. Where it ends, checkRecord must judge. It takes a fifth of checkRecord's
// time, and checking is most of what an append costs outside the kernel.
func commonRecords(buf []byte, i, count int, requireKey bool) commonRun {
	run := commonRun{least: math.MaxInt64, most: math.MinInt64}
	touched := 0
	for ; i < count && len(buf)-run.bytes >= commonBytesMin; i++ {
		size, at := shortVarint(buf, run.bytes)
		end := at + size>>1
		if size&1 != 0 || end > len(buf)-commonMargin {
			break
		}
		if end >= touched && size > touchedBytesMin<<1 {
			touched = touch(buf, end, end-run.bytes)
		}
		ts, at := shortVarint(buf, at+1) // behind the attributes
		offset, at := shortVarint(buf, at)
		if ts == longVarint || offset != i<<1 || at >= end {
			break
		}
		key, at := shortVarint(buf, at)
		if key&1 != 0 && (key != nullLength || requireKey) {
			break
		}
		at += key >> 1 // nothing when it is null
		if at >= end {
			break
		}
		value, at := shortVarint(buf, at)
		if value&1 != 0 && value != nullLength {
			break
		}
		at += value >> 1
		if at != end-1 || buf[at] != 0 { // the end, but for the count of headers
			break
		}
		delta := int64(ts>>1) ^ -int64(ts&1)
		run.least, run.most = min(run.least, delta), max(run.most, delta)
		run.records, run.bytes = run.records+1, end
	}
	return run
}

const (
	// touchedBytesMin is from which length of records on the processor does not see by
	// itself which bytes are needed next, and touchedRecords of how many it is told.
	touchedBytesMin = 256
	touchedRecords  = 16
)

// touch reads the starts of the records from the one at the byte at from on, if they
// are as long as the one before it, and returns up to where. The start of each record
// is known only when the one before it was read, so that each would be waited for in
// turn, if they are no longer in the processor's cache; here they come all at once.
func touch(buf []byte, from, size int) int {
	var sum byte
	for range touchedRecords {
		if from >= len(buf) {
			break
		}
		sum += buf[from]
		from += size
	}
	runtime.KeepAlive(sum)
	return from
}

// shortVarint reads an unsigned varint of up to three bytes, of which a longer one
// gives longVarint. The caller sees to it that four bytes are there.
func shortVarint(buf []byte, at int) (v, next int) {
	w := binary.LittleEndian.Uint32(buf[at:])
	switch {
	case w&0x80 == 0:
		return int(w & 0x7f), at + 1
	case w&0x8000 == 0:
		return int(w&0x7f | w>>1&0x3f80), at + 2
	case w&0x800000 == 0:
		return int(w&0x7f | w>>1&0x3f80 | w>>2&0x1fc000), at + 3
	}
	return longVarint, at
}
