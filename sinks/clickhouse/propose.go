package clickhouse

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-io/sluice/pipelines"
)

// Proposal says what a proposed table is to be like.
type Proposal struct {
	TTLDays    int  // rows are deleted so many days after their time; 0: never
	Replicated bool // a ReplicatedMergeTree, on servers with the macros shard and replica
}

// proposedWindow is the dedup window of a proposed table: that of a minute at the highest rate of parts that a server bears for long, many times over.
const proposedWindow = 10_000

// Types of fields by their names: what web servers and agents are known to write.
var (
	fewValues   = []string{"host", "method", "protocol", "level", "severity", "scheme", "service", "namespace", "container", "stream", "site", "env", "region"}
	neverAbsent = []string{"status", "bytes", "remote_addr"} // of `parse: nginx`
)

// Propose writes the CREATE TABLE for a sink: its columns by what the pipeline says of them, and those by which the sink knows its rows.
func Propose(spec *pipelines.SinkSpec, p Proposal) (string, error) {
	mapping, err := spec.NewColumns()
	if err != nil {
		return "", err
	}
	names := mapping.Names()
	if len(names) == 0 {
		return "", fmt.Errorf("%s: the pipeline does not say which fields its events have: name the columns under the sink's columns", spec.Pos)
	}
	var lines []string
	timeColumn := ""
	for i, name := range names {
		if isOwn(name) {
			continue
		}
		kind := mapping.Kind(i)
		if timeColumn == "" && kind == pipelines.KindTime {
			timeColumn = name
			lines = append(lines, quoteName(name)+" "+timeType) // a sorting key takes no null
			continue
		}
		lines = append(lines, quoteName(name)+" "+proposeType(name, kind))
	}
	lines = append(lines,
		columnTopic+" LowCardinality(String) CODEC(ZSTD(1))",
		columnTopicID+" LowCardinality(String) CODEC(ZSTD(1))",
		columnPartition+" UInt32 CODEC(T64, ZSTD(1))",
		columnOffset+" UInt64 CODEC(DoubleDelta, ZSTD(1))",
		columnTime+" "+timeType,
		columnMarks+" Array(LowCardinality(String)) CODEC(ZSTD(1))",
		"INDEX sluice_offsets "+columnOffset+" TYPE minmax GRANULARITY 1")
	if timeColumn == "" {
		timeColumn = columnTime
	}
	return "CREATE TABLE " + quoteName(spec.ClickHouse.Database) + "." + quoteName(spec.ClickHouse.Table) + "\n(\n    " + strings.Join(lines, ",\n    ") + "\n)\n" +
		p.engine(quoteName(timeColumn)), nil
}

func (p Proposal) engine(at string) string {
	engine, window := "MergeTree", "non_replicated_deduplication_window"
	if p.Replicated {
		engine, window = "ReplicatedMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}')", "replicated_deduplication_window"
	}
	ttl := ""
	if p.TTLDays > 0 {
		ttl = fmt.Sprintf("TTL toDateTime(%s) + INTERVAL %d DAY\n", at, p.TTLDays)
	}
	return fmt.Sprintf("ENGINE = %s\nPARTITION BY toDate(%s)\nORDER BY (%s, %s, %s)\n%sSETTINGS %s = %d", engine, at, at, columnPartition, columnOffset, ttl, window, proposedWindow)
}

const timeType = "DateTime64(3, 'UTC') CODEC(DoubleDelta, ZSTD(1))"

func proposeType(name string, kind pipelines.Kind) string {
	nullable := func(typ string) string {
		if slices.Contains(neverAbsent, name) {
			return typ
		}
		return "Nullable(" + typ + ")"
	}
	switch {
	case kind == pipelines.KindTime:
		return "Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1))"
	case kind == pipelines.KindInt && name == "status":
		return nullable("UInt16") + " CODEC(T64, ZSTD(1))"
	case kind == pipelines.KindInt && name == "bytes":
		return nullable("UInt64") + " CODEC(T64, ZSTD(1))"
	case kind == pipelines.KindInt:
		return nullable("Int64") + " CODEC(T64, ZSTD(1))"
	case kind == pipelines.KindUint:
		return nullable("UInt64") + " CODEC(T64, ZSTD(1))"
	case kind == pipelines.KindFloat:
		return nullable("Float64") + " CODEC(ZSTD(1))"
	case kind == pipelines.KindBool:
		return nullable("Bool")
	case slices.Contains(fewValues, name):
		return "LowCardinality(" + nullable("String") + ") CODEC(ZSTD(1))"
	}
	return nullable("String") + " CODEC(ZSTD(1))"
}
