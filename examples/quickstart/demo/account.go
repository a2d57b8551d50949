package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-io/sluice/sinks/directory"
)

// account reads the stored files back, compares them with the numbers of the generated lines, and says so. Lines that are lost
// or doubled make it an error.
func account(o options, gen *generator, last snapshot) error {
	table := filepath.Join(o.dir, "table")
	stored, err := readBack(table, gen.next)
	if err != nil {
		return err
	}
	fmt.Printf("\nwritten      %9d lines, %.1f MB, %d renames\n", gen.next, float64(gen.bytes)/1e6, gen.rotated)
	fmt.Printf("read         %9.0f\nacknowledged %9.0f\n", last.linesRead, last.acked)
	fmt.Printf("stored       %9d rows in %d files\n", stored.rows, stored.files)
	fmt.Printf("lost         %9d\nduplicated   %9d\n", stored.lost, stored.duplicated)
	if stored.lost != 0 || stored.duplicated != 0 || stored.strange != 0 {
		return fmt.Errorf("the table in %s is not what was written: %d lines lost, %d duplicated, %d rows that nobody wrote; sluice's log is %s",
			table, stored.lost, stored.duplicated, stored.strange, filepath.Join(o.dir, "sluice.log"))
	}
	fmt.Printf(`
Every number from 0 to %d was found once in %s, read back from the files.
Next:
  %s run %s      the same as a service
  examples/quickstart/README.md                      top pages and visitors by hour from these files
  examples/clickhouse                                the same into ClickHouse
`, gen.next-1, table, o.sluice, o.pipeline)
	return nil
}

// A tableCount is what the stored files hold, against the numbers 0 to written-1.
type tableCount struct {
	rows, lost, duplicated int64
	strange                int64 // rows with a number that was not written, or with none
	files                  int
}

func readBack(table string, written int64) (tableCount, error) {
	var c tableCount
	seen := make([]bool, written)
	files := map[string]bool{}
	err := directory.Read(table, func(row directory.Row) error {
		c.rows++
		files[row.File] = true
		n, ok := lineNumber(row)
		switch {
		case !ok || n >= written:
			c.strange++
		case seen[n]:
			c.duplicated++
		default:
			seen[n] = true
		}
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("read the stored files back: %w", err)
	}
	c.files = len(files)
	for _, s := range seen {
		if !s {
			c.lost++
		}
	}
	return c, nil
}

// lineNumber is the number that the generator put into the query of the request.
func lineNumber(row directory.Row) (int64, bool) {
	query, _ := row.Fields["query"].(string)
	digits, ok := strings.CutPrefix(query, "line=")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil && n >= 0
}

func sortedBounds(buckets map[float64]float64) []float64 { return slices.Sorted(maps.Keys(buckets)) }
