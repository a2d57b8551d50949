package directory

import "time"

// Row is one stored row.
type Row struct {
	File      string
	Topic     string
	Partition int32
	Offset    int64
	Time      time.Time
	Fields    map[string]any // nil, bool, int64, float64, string, time.Time
}

// Read calls fn for every row of every finished file in dir, in the order of the files' names. It reads what is there, whoever wrote it, and
// stops at the first error.
func Read(dir string, fn func(Row) error) error { return nil }
