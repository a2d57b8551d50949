package faults

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// linearizedMax bounds the operations given to porcupine, whose time and
	// memory grow with the square of their number.
	linearizedMax     = 3000
	linearizedTimeout = 20 * time.Second
	complaintsMax     = 20 // of a partition, in a report
)

// check compares a partition's log, read whole, with what was known before it
// was read, and says what is wrong:
//
//   - every acknowledged record is at the offset that it was acknowledged with;
//   - what a consumer once got is what is there;
//   - no record is there twice, and those of one producer are in its order;
//   - the log has no holes and nothing that was never sent.
//
// sent has the number of values of each producer after the log was read.
func check(before partitionHistory, sent map[int]int, log []entry) []string {
	c := checker{at: make(map[int64]value, len(log)), where: make(map[value]int64, len(log))}
	c.walk(sent, log)
	for _, a := range before.acks {
		c.holds("acknowledged", a.entry)
	}
	for offset, v := range before.seen {
		c.holds("consumed", entry{offset, v})
	}
	return c.complaints
}

type checker struct {
	at         map[int64]value
	where      map[value]int64
	complaints []string
}

func (c *checker) complain(format string, args ...any) {
	switch {
	case len(c.complaints) < complaintsMax:
		c.complaints = append(c.complaints, fmt.Sprintf(format, args...))
	case len(c.complaints) == complaintsMax:
		c.complaints = append(c.complaints, "and more")
	}
}

// walk checks the log in itself.
func (c *checker) walk(sent map[int]int, log []entry) {
	last := map[int]int{}
	for i, e := range log {
		if e.offset != int64(i) {
			c.complain("the record after %d others has offset %d", i, e.offset)
		}
		if n := sent[e.value.producer]; e.value.number >= n || e.value.number < 0 {
			c.complain("record %s at offset %d was never sent: its producer has sent %d", e.value, e.offset, n)
		}
		first, twice := c.where[e.value]
		if before, ok := last[e.value.producer]; twice {
			c.complain("record %s is doubled: offsets %d and %d", e.value, first, e.offset)
		} else if ok && e.value.number != before+1 || !ok && e.value.number != 0 {
			c.complain("record %s at offset %d is not the next of its producer", e.value, e.offset)
		}
		last[e.value.producer] = e.value.number
		c.at[e.offset], c.where[e.value] = e.value, e.offset
	}
}

// holds checks that a record is where it once was.
func (c *checker) holds(what string, e entry) {
	got, ok := c.at[e.offset]
	if ok && got == e.value {
		return
	}
	elsewhere, moved := c.where[e.value]
	switch {
	case moved:
		c.complain("record %s, %s at offset %d, is at %d", e.value, what, e.offset, elsewhere)
	case ok:
		c.complain("record %s, %s at offset %d, is lost: %s is there", e.value, what, e.offset, got)
	default:
		c.complain("record %s, %s at offset %d, is lost: the log ends before it", e.value, what, e.offset)
	}
}

// operation is an append, or the read of one offset, to porcupine.
type operation struct {
	append bool
	offset int64
}

// appends is the model of a partition: a register that is only appended to. Its
// state is its length; check has shown that what is read is what was appended.
var appends = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		length, op := state.(int64), input.(operation)
		if op.append {
			return output.(int64) == length, length + 1
		}
		return op.offset < length, length
	},
	DescribeOperation: func(input, output any) string {
		if op := input.(operation); !op.append {
			return fmt.Sprintf("read(%d)", op.offset)
		}
		return fmt.Sprintf("append() = %d", output)
	},
}

// linearizable gives the first operations of a partition to porcupine. An
// append that is in the log without an acknowledgement may have happened at any
// time after the start of the topic.
func linearizable(began time.Time, before partitionHistory, log []entry) porcupine.CheckResult {
	log = log[:min(len(log), linearizedMax)]
	acked := map[int64]ack{}
	for _, a := range before.acks {
		acked[a.offset] = a
	}
	var ops []porcupine.Operation
	for _, e := range log {
		op := porcupine.Operation{ClientId: e.value.producer, Input: operation{append: true, offset: e.offset}, Output: e.offset, Return: math.MaxInt64}
		if a, ok := acked[e.offset]; ok {
			op.Call, op.Return = a.sent.Sub(began).Nanoseconds(), a.at.Sub(began).Nanoseconds()
		}
		ops = append(ops, op)
	}
	for _, s := range before.sights {
		if s.offset < int64(len(log)) {
			ops = append(ops, porcupine.Operation{ClientId: -1, Input: operation{offset: s.offset},
				Call: s.asked.Sub(began).Nanoseconds(), Return: s.at.Sub(began).Nanoseconds()})
		}
	}
	return porcupine.CheckOperationsTimeout(appends, ops, linearizedTimeout)
}
