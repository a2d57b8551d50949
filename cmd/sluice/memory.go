package main

import (
	"fmt"
	"math"
	"runtime/debug"
	"strconv"
	"strings"
)

// outsideHeapBytes is what a process takes that the runtime does not count: the program itself, as far as it is used.
const outsideHeapBytes = 48 << 20

// limitMemory has the garbage collector work harder before the process takes more than max. A lower limit of GOMEMLIMIT stays.
func limitMemory(max int64) {
	if limit := max - outsideHeapBytes; limit < debug.SetMemoryLimit(-1) {
		debug.SetMemoryLimit(limit)
	}
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
