package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// SkippedLine sums up the parts that a test run did without, from the file that
// the run wrote: one line, for the end of the run.
func SkippedLine(file string) (string, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		content = nil
	} else if err != nil {
		return "", fmt.Errorf("read the notes of skipped parts: %w", err)
	}
	tests := map[[2]string]int{} // by part and reason
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		if len(fields) == 3 {
			tests[[2]string{fields[0], fields[1]}]++
		}
	}
	if len(tests) == 0 {
		return "parts: all there, no test was skipped for want of one", nil
	}
	var parts []string
	for part, n := range tests {
		parts = append(parts, fmt.Sprintf("%s %d (%s)", part[0], n, part[1]))
	}
	slices.Sort(parts)
	return "parts: tests skipped for want of one: " + strings.Join(parts, ", "), nil
}
