package clickhouse

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// TestMorePartitionsThanAnInsertMayHave: the block is refused whole, and the pieces it is to be split into are the same each time, also when some of them are
// stored already.
func TestMorePartitionsThanAnInsertMayHave(t *testing.T) {
	server := testenv.ClickHouse(t)
	for _, protocol := range protocols {
		t.Run(string(protocol), func(t *testing.T) {
			r := newRigOver(t, server, protocol, "n Int32, s LowCardinality(String), d DateTime('UTC')", "MergeTree PARTITION BY (n, toYYYYMMDD(d)) ORDER BY _offset SETTINGS non_replicated_deduplication_window = 100", "")
			fill := func(skip func(int64) bool) {
				r.offset = 0
				for i := range 260 {
					if skip(r.offset) {
						r.offset++
						continue
					}
					if err := r.add(fmt.Sprintf(`{"n":%d,"s":"x","d":"2026-11-30T00:00:00Z"}`, i%130)); err != nil {
						t.Fatal(err)
					}
				}
			}
			pieces := func() [][]int64 {
				var split *sinks.SplitError
				if err := r.write(0); !errors.As(err, &split) {
					t.Fatalf("%v", err)
				}
				return split.Pieces
			}
			fill(func(int64) bool { return false })
			first := pieces()
			if len(first) != 3 {
				t.Fatalf("%d pieces", len(first))
			}
			fill(func(int64) bool { return false })
			if again := pieces(); !slices.EqualFunc(first, again, slices.Equal) {
				t.Error("split in another way")
			}
			// With the first piece stored the rest is few enough partitions for one block, whose name is that of the remaining rows.
			fill(func(o int64) bool { return !slices.Contains(first[0], o) })
			r.mustWrite(0)
			if got := r.query("count(), uniqExact(n)"); got != "100\t50" {
				t.Error(got)
			}
		})
	}
}

func TestPiecesOfWhatRemainsAreThoseThatWereLeft(t *testing.T) {
	rows := func(from int) (out [][]string) {
		for i := from; i < 40; i++ {
			out = append(out, []string{fmt.Sprint(i), fmt.Sprintf("(%02d)", i%20)})
		}
		return out
	}
	whole, err := piecesOf(rows(0), 6)
	if err != nil || len(whole) != 4 {
		t.Fatalf("%v %v", whole, err)
	}
	rest := slices.DeleteFunc(rows(0), func(row []string) bool { return row[1] < "(06)" })
	left, err := piecesOf(rest, 6)
	if err != nil || !slices.EqualFunc(left, whole[1:], slices.Equal) {
		t.Errorf("%v\nwant %v", left, whole[1:])
	}
}

// TestNestedColumns fills the arrays of a flattened Nested column from a list of objects.
func TestNestedColumns(t *testing.T) {
	server := testenv.ClickHouse(t)
	r := newRig(t, server, "n Nested(a UInt8, b String), w Array(UInt8)", window, "")
	for _, good := range []string{`{"n":[{"a":1,"b":"x"},{"a":2,"b":"y"}],"w":[7]}`, `{"n":[],"w":[]}`} {
		if err := r.add(good); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.add(`{"n":[{"a":300,"b":"x"}],"w":[]}`); !errors.Is(err, pipelines.ErrRange) {
		t.Errorf("%v", err)
	}
	r.mustWrite(0)
	if got := r.query("n.a, n.b, w"); got != "[1,2]\t['x','y']\t[7]\n[]\t[]\t[]" {
		t.Errorf("%q", got)
	}
}

// TestMisfitsByPolicy stores what does not fit in the way the pipeline says, and names the columns.
func TestMisfitsByPolicy(t *testing.T) {
	server := testenv.ClickHouse(t)
	r := newRig(t, server, "u UInt8, i Nullable(Int8), t DateTime('UTC'), d Date, f FixedString(2), s String, e Enum8('a' = 1), m Decimal(4, 2), a Array(UInt8), _marks Array(LowCardinality(String))", window, "")
	misfit := &r.pipe.Sinks[0].ClickHouse.Misfit
	full := `{"u":%s,"i":%s,"t":%s,"d":%s,"f":"ab","s":%s,"e":"a","m":%s,"a":[1]}`
	for _, c := range []struct {
		policy pipelines.Misfit
		value  string
		want   string // "" when it is refused
	}{
		{pipelines.Misfit{}, fmt.Sprintf(full, "300", "1", "0", `"2026-11-30"`, `""`, "1"), ""},
		{pipelines.Misfit{}, fmt.Sprintf(full, "30", "1", "0", `"2026-11-30"`, `""`, "1"), "30 1 1970-01-01 00:00:00 2026-11-30 1 []"},
		{pipelines.Misfit{Range: pipelines.MisfitClamp}, fmt.Sprintf(full, "300", "-1000", `"2150-01-01T00:00:00Z"`, `"1950-01-01"`, `""`, "123.4"), "255 -128 2106-02-07 06:28:15 1970-01-01 99.99 ['u','i','t','d','m']"},
		{pipelines.Misfit{Range: pipelines.MisfitClamp}, fmt.Sprintf(full, "-1", "1", "0", `"2026-11-30"`, `""`, "1.005"), ""}, // too many digits lie beyond no bound
		{pipelines.Misfit{Range: pipelines.MisfitNull}, fmt.Sprintf(full, "1", "1000", "0", `"2026-11-30"`, `""`, "1"), `1 \N 1970-01-01 00:00:00 2026-11-30 1 ['i']`},
		{pipelines.Misfit{Range: pipelines.MisfitNull}, fmt.Sprintf(full, "300", "1", "0", `"2026-11-30"`, `""`, "1"), ""},
		{pipelines.Misfit{Null: pipelines.MisfitZero}, fmt.Sprintf(full, "null", "null", "0", `"2026-11-30"`, `null`, "1"), `0 \N 1970-01-01 00:00:00 2026-11-30 1 ['u','s']`},
		{pipelines.Misfit{Time: pipelines.MisfitRecordTime}, fmt.Sprintf(full, "1", "1", `"soon"`, "null", `""`, "1"), "1 1 2026-11-30 10:00:00 2026-11-30 1 ['t','d']"},
		{pipelines.Misfit{Time: pipelines.MisfitRecordTime}, fmt.Sprintf(full, "1", "1", `"2150-01-01T00:00:00Z"`, "null", `""`, "1"), ""},
	} {
		*misfit = c.policy
		r.restart()
		lo := r.offset
		err := r.add(c.value)
		if c.want == "" {
			if err == nil {
				t.Errorf("%+v: %s was taken", c.policy, c.value)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %s: %v", c.policy, c.value, err)
			continue
		}
		r.mustWrite(lo)
		got := server.Query(t, fmt.Sprintf("SELECT concat(toString(u), ' ', ifNull(toString(i), '\\\\N'), ' ', toString(t), ' ', toString(d), ' ', toString(m), ' ', toString(_marks)) FROM %s WHERE _offset = %d FORMAT TSVRaw", r.table, lo))
		if got != c.want {
			t.Errorf("%+v: %s\nis   %s\nwant %s", c.policy, c.value, got, c.want)
		}
	}
}
