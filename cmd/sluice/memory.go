package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"
)

// outsideHeapBytes is what a process takes that the runtime does not count: the program itself, as far as it is used.
const outsideHeapBytes = 48 << 20

// limitMemory has the garbage collector work harder before the process takes more than max. A lower limit of GOMEMLIMIT stays.
func limitMemory(max int64) {
	if limit := max - outsideHeapBytes; limit < debug.SetMemoryLimit(-1) {
		debug.SetMemoryLimit(limit)
	}
}

// collectPercent is how much garbage the heap may gain, in percent of what is in use, before it is collected: half of the runtime's default.
// Lines on their way lie in memory that is used again, so that there is little garbage to collect.
const collectPercent = 50

// keepSmall has garbage collected early, and gives memory that the start or a burst of work took back to the system when it is over, until
// ctx ends. A GOGC that is set stays.
func keepSmall(ctx context.Context, log *slog.Logger) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectPercent)
	}
	tick := time.NewTicker(giveBackInterval)
	defer tick.Stop()
	var before uint64
	started := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			cycles, spare := spareMemory()
			quiet := cycles == before
			before = cycles
			if quiet && !started {
				started = true
				forgetStart(log)
			}
			if quiet && spare > spareBytesMax {
				debug.FreeOSMemory()
			}
		}
	}
}

const (
	// giveBackInterval is how long nothing must have been collected for the process to count as quiet.
	giveBackInterval = time.Second
	// spareBytesMax is what a quiet process may keep of memory that it does not use.
	spareBytesMax = 4 << 20
)

// spareMemory is what the heap holds beyond what was in use when it was last collected, and how often that was.
func spareMemory() (cycles, bytes uint64) {
	samples := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	free, objects, live := samples[1].Value.Uint64(), samples[2].Value.Uint64(), samples[3].Value.Uint64()
	return samples[0].Value.Uint64(), free + max(objects, live) - live
}

// sizeValue is a flag of bytes: 256MiB, 64KiB, 1GiB, or a number.
type sizeValue int64

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// Set implements pflag.Value.
func (v *sizeValue) Set(text string) error {
	for _, u := range sizeUnits {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n <= 0 || n > math.MaxInt64/u.bytes {
			return fmt.Errorf("%q is no size: write 256MiB, 1GiB or a number of bytes", text)
		}
		*v = sizeValue(n * u.bytes)
		return nil
	}
	return nil
}

// String implements pflag.Value.
func (v *sizeValue) String() string {
	for _, u := range sizeUnits {
		if n := int64(*v); n%u.bytes == 0 && (n >= u.bytes || u.bytes == 1) {
			return fmt.Sprintf("%d%s", n/u.bytes, u.suffix)
		}
	}
	return "0"
}

// Type implements pflag.Value.
func (v *sizeValue) Type() string { return "size" }
