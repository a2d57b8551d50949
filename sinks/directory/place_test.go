package directory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// hourly is a sink with hours of event time t and the record's timestamp ts, which the tests choose.
const hourly = "    format: json\n    compression: none\n    partition: {path: 'dt=%Y-%m-%d/hour=%H', time: t, "

// at is a time of the tests' day.
func at(clock string) time.Time {
	t, err := time.Parse("2006-01-02 15:04", "2026-11-30 "+clock)
	if err != nil {
		panic(err)
	}
	return t
}

// record is one of a partition, with its timestamp and its event's time.
type record struct {
	stamp, event string
}

// storeAt stores records of a partition from an offset on, and returns what was refused.
func (r *rig) storeAt(partition int32, lo int64, records ...record) (refused []error) {
	r.Helper()
	c := claim(lo, lo+int64(len(records))-1)
	c.Partition = partition
	if _, err := r.sink.Stored(r.Context(), c); err != nil {
		r.Fatal(err)
	}
	b, err := r.sink.NewBlock()
	if err != nil {
		r.Fatal(err)
	}
	for i, rec := range records {
		var e pipelines.Event
		value := `{}`
		if rec.event != "" {
			value = fmt.Sprintf(`{"t":%q}`, at(rec.event).Format(time.RFC3339))
		}
		meta := pipelines.Meta{Topic: "p", Partition: partition, Offset: lo + int64(i), Time: at(rec.stamp)}
		if err := r.pipe.ReadRecord(&e, meta, []byte(value)); err != nil {
			r.Fatal(err)
		}
		if err := b.Append(&e); err != nil {
			refused = append(refused, err)
		}
	}
	if b.Rows() > 0 {
		if err := r.sink.Write(r.Context(), &sinks.Batch{Claim: c, Block: b, Identity: c.Identity()}); err != nil {
			r.Fatal(err)
		}
	}
	return refused
}

// places are the directories of rows, by partition and offset.
func (r *rig) places() map[string]string {
	r.Helper()
	out := map[string]string{}
	err := Read(r.dir, func(row Row) error {
		dir, err := filepath.Rel(r.dir, filepath.Dir(row.File))
		out[fmt.Sprintf("%d/%d", row.Partition, row.Offset)] = filepath.ToSlash(dir)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	return out
}

func TestLateRowsGoWhereTheyAreTold(t *testing.T) {
	records := []record{
		{"10:30", "10:15"}, // on time
		{"10:31", ""},      // no event time: the record's own
		{"11:09", "10:59"}, // within the lateness
		{"11:11", "10:58"}, // past it
		{"11:12", "11:00"},
		{"11:05", "10:57"}, // a timestamp that goes back: the log had 11:12 before
	}
	for _, c := range []struct {
		policy  string
		want    []string
		refused int
	}{
		{"late: keep", []string{"hour=10", "hour=10", "hour=10", "hour=10", "hour=11", "hour=10"}, 0},
		{"late: path, late_path: 'late/%Y'", []string{"hour=10", "hour=10", "hour=10", "late/2026", "hour=11", "late/2026"}, 0},
		{"late: dead_letter", []string{"hour=10", "hour=10", "hour=10", "", "hour=11", ""}, 2},
	} {
		t.Run(c.policy, func(t *testing.T) {
			r := newRig(t, jsonTopic, hourly+"lateness: 10m, "+c.policy+"}\n")
			refused := r.storeAt(3, 0, records...)
			if len(refused) != c.refused {
				t.Errorf("refused: %v", refused)
			}
			for _, err := range refused {
				if !errors.Is(err, sinks.ErrLate) {
					t.Error(err)
				}
			}
			got := r.places()
			for i, want := range c.want {
				if want != "" && !strings.HasPrefix(want, "late/") {
					want = "dt=2026-11-30/" + want
				}
				if got[fmt.Sprintf("3/%d", i)] != want {
					t.Errorf("offset %d is in %q, want %q", i, got[fmt.Sprintf("3/%d", i)], want)
				}
			}
			// The next worker knows how far the log was.
			r.restart()
			r.storeAt(3, 6, record{"11:05", "10:56"})
			want := map[string]string{"late: keep": "dt=2026-11-30/hour=10", "late: dead_letter": ""}[c.policy]
			if strings.HasPrefix(c.policy, "late: path") {
				want = "late/2026"
			}
			if got := r.places()["3/6"]; got != want {
				t.Errorf("after a restart a late row is in %q, want %q", got, want)
			}
		})
	}
}

func TestRowsWithoutEventTimeAreMarked(t *testing.T) {
	for _, format := range []string{"json", "parquet", "avro"} {
		t.Run(format, func(t *testing.T) {
			r := newRig(t, jsonTopic, strings.Replace(hourly, "json", format, 1)+"}\n")
			r.storeAt(3, 0, record{"10:30", "10:15"}, record{"10:31", ""})
			rows := r.rows()
			if len(rows) != 2 || rows[0].Fields[columnNoTime] != nil || rows[1].Fields[columnNoTime] != true {
				t.Errorf("%+v", rows)
			}
		})
	}
}

// TestHourEdgeMakesNoFilePerRecord: rows of two hours that come in turns are two files.
func TestHourEdgeMakesNoFilePerRecord(t *testing.T) {
	for _, format := range []string{"json", "parquet", "avro"} {
		t.Run(format, func(t *testing.T) {
			r := newRig(t, jsonTopic, strings.Replace(hourly, "json", format, 1)+"}\n")
			var records []record
			for i := range 1000 {
				records = append(records, record{"11:00", []string{"10:59", "11:00"}[i%2]})
			}
			r.storeAt(3, 0, records...)
			files := map[string]int{}
			for _, row := range r.rows() {
				files[row.File]++
			}
			paths, err := filepath.Glob(filepath.Join(r.dir, "dt=*/hour=*/p-*"))
			if len(paths) != 2 || err != nil || len(files) != 1 || len(r.places()) != 1000 {
				t.Errorf("%v %v %v", paths, files, err)
			}
		})
	}
}

func TestPathsAreEscaped(t *testing.T) {
	r := newRig(t, jsonTopic, "    format: json\n    partition: {path: 'a/{k}/k={k}', paths_max: 7}\n")
	values := []string{`"x/../y"`, `"."`, `"_hidden"`, `null`, `""`, `7`, `"a=b%c"`, `"` + strings.Repeat("l", 300) + `"`, `"good"`, `"toomany"`}
	var texts []string
	for _, v := range values {
		texts = append(texts, `{"k":`+v+`}`)
	}
	b, refused := r.block(0, texts...)
	if len(refused) != 2 || !strings.Contains(refused[0].Error(), "longer than") || !strings.Contains(refused[1].Error(), "too many paths") {
		t.Fatal(refused)
	}
	r.store(b, 0, 9)
	got := r.places()
	// One of hidden name is what Hive calls null; in a segment of its own it is passed over by readers, ours too.
	want := map[string]string{
		"3/0": "a/x%2F..%2Fy/k=x%2F..%2Fy", "3/1": "a/%2E/k=.", "3/2": "a/%5Fhidden/k=_hidden", "3/5": "a/7/k=7", "3/6": "a/a%3Db%25c/k=a%3Db%25c", "3/8": "a/good/k=good",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "a", hiveNull, "k="+hiveNull)); err != nil {
		t.Error(err)
	}
}

func TestSpans(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	howe, err := time.LoadLocation("Australia/Lord_Howe")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at, unit string
		zone     *time.Location
		from, to string
	}{
		{"2026-02-28T23:59:59Z", "d", time.UTC, "2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"2026-12-31T23:59:59Z", "m", time.UTC, "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"2026-06-01T00:00:00Z", "Y", time.UTC, "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"2026-11-30T10:59:59Z", "H", time.UTC, "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"},
		{"2026-11-30T10:59:59Z", "M", time.UTC, "2026-11-30T10:59:00Z", "2026-11-30T11:00:00Z"},
		// The clock is put back from 3 to 2: the hour that is shown twice is one.
		{"2026-10-25T00:30:00Z", "H", berlin, "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"},
		{"2026-10-25T01:30:00Z", "H", berlin, "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"},
		{"2026-10-25T02:30:00Z", "H", berlin, "2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"},
		{"2026-10-24T23:30:00Z", "H", berlin, "2026-10-24T23:00:00Z", "2026-10-25T00:00:00Z"},
		{"2026-10-25T12:00:00Z", "d", berlin, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		// Half an hour back, from 2:00 to 1:30: 1 o'clock lasts an hour and a half.
		{"2026-04-04T14:15:00Z", "H", howe, "2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z"},
		{"2026-04-04T15:15:00Z", "H", howe, "2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z"},
	} {
		when, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		from, to := pipelines.TimeUnit(c.unit[0]).Span(when, c.zone)
		if got := from.UTC().Format(time.RFC3339) + " " + to.UTC().Format(time.RFC3339); got != c.from+" "+c.to {
			t.Errorf("%s by %s in %s: %s, want %s %s", c.at, c.unit, c.zone, got, c.from, c.to)
		}
	}
}

// marked are the hours that have their marker.
func (r *rig) marked() (hours []string) {
	r.Helper()
	found, err := filepath.Glob(filepath.Join(r.dir, "dt=*/hour=*/_SUCCESS"))
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range found {
		hours = append(hours, strings.TrimPrefix(filepath.Base(filepath.Dir(f)), "hour="))
	}
	return hours
}

func (r *rig) passed(partition int32, clock string) {
	r.Helper()
	p := sinks.Position{Topic: "p", TopicID: topicID, Partition: partition, Partitions: 2, At: at(clock)}
	if err := r.sink.Passed(r.Context(), p); err != nil {
		r.Fatal(err)
	}
}

// TestSuccessMarkers: an hour is marked when both partitions are past it, over workers that come and go, and partitions without records count too.
func TestSuccessMarkers(t *testing.T) {
	r := newRig(t, jsonTopic, hourly+"lateness: 10m, success: true, late: path, late_path: late}\n")
	want := func(what string, hours ...string) {
		t.Helper()
		if got := r.marked(); !slices.Equal(got, hours) {
			t.Fatalf("%s: hours %v are marked, want %v", what, got, hours)
		}
	}
	r.storeAt(0, 0, record{"10:30", "10:15"}, record{"11:30", "11:15"})
	r.passed(0, "11:31")
	want("the other partition was never heard of")
	r.storeAt(1, 0, record{"10:40", "10:20"})
	r.passed(0, "11:32")
	want("the other partition is at 10:40")
	r.restart() // another worker
	r.passed(1, "11:09")
	r.passed(0, "11:33")
	want("the other partition is within the lateness")
	r.passed(1, "11:11")
	want("partition 0 has not been told")
	r.passed(0, "11:34")
	want("both are past 10", "10")
	r.storeAt(1, 1, record{"11:02", "10:30"}) // from a producer that was held up
	if got := r.places()["1/1"]; got != "late" {
		t.Errorf("a row that came after the marker is in %s", got)
	}
	r.storeAt(1, 2, record{"12:20", "12:15"})
	r.passed(0, "12:09")
	want("partition 0 is at 12:09", "10")
	r.restart()
	r.passed(0, "12:30")
	want("both are past 11", "10", "11")
	r.passed(1, "13:30")
	r.passed(0, "13:31")
	want("both are past 12", "10", "11", "12")
}

// TestNoMarkerWhileFilesMove: an entry in the ledger whose files are not yet in their places does not count.
func TestNoMarkerWhileFilesMove(t *testing.T) {
	r := newRig(t, jsonTopic, hourly+"lateness: 0s, success: true}\n")
	r.storeAt(0, 0, record{"10:30", "10:15"})
	r.storeAt(1, 0, record{"10:40", "10:20"})
	moves := &stuckFS{FS: osFS{dir: r.dir, cfg: OSConfig{FileMode: 0o644, DirMode: 0o755}}}
	r.sink.fs, moves.stuck = moves, true
	c := claim(1, 1)
	c.Partition = 1
	b, err := r.sink.NewBlock()
	if err != nil {
		t.Fatal(err)
	}
	var e pipelines.Event
	if err := r.pipe.ReadRecord(&e, pipelines.Meta{Topic: "p", Partition: 1, Offset: 1, Time: at("11:01")}, []byte(`{"t":"2026-11-30T10:50:00Z"}`)); err != nil {
		t.Fatal(err)
	}
	if err := b.Append(&e); err != nil {
		t.Fatal(err)
	}
	if err := r.sink.Write(t.Context(), &sinks.Batch{Claim: c, Block: b, Identity: "x"}); !errors.Is(err, errStuck) {
		t.Fatal(err)
	}
	r.passed(0, "11:05")
	if got := r.marked(); len(got) > 0 {
		t.Fatalf("%v are marked while a file is on its way", got)
	}
	moves.stuck = false
	if _, err := r.sink.Stored(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	r.passed(0, "11:06")
	if got := r.marked(); !slices.Equal(got, []string{"10"}) {
		t.Fatalf("%v are marked", got)
	}
}

var errStuck = errors.New("stuck")

// stuckFS does not move rows.
type stuckFS struct {
	FS
	stuck bool
}

func (f *stuckFS) Rename(from, to string) error {
	if f.stuck && !strings.Contains(to, entryPrefix) {
		return errStuck
	}
	return f.FS.Rename(from, to)
}

// TestInterleavedSchemasMakeOneFile: rows of two shapes that come in turns, and of one field with two types, are one file, and each has its values.
func TestInterleavedSchemasMakeOneFile(t *testing.T) {
	for _, format := range []string{"json", "parquet", "avro"} {
		t.Run(format, func(t *testing.T) {
			r := newRig(t, jsonTopic, "    format: "+format+"\n")
			values := make([]string, 1000)
			for i := range values {
				values[i] = []string{`{"a":1,"x":7}`, `{"b":"two","x":"seven"}`}[i%2]
			}
			r.write(0, values...)
			rows := r.rows()
			if len(rows) != len(values) {
				t.Fatalf("%d rows, want %d", len(rows), len(values))
			}
			for i, row := range rows {
				if even := i%2 == 0; even != (fmt.Sprint(row.Fields["a"]) == "1") || even == (fmt.Sprint(row.Fields["b"]) == "two") {
					t.Fatalf("row %d: %v", i, row.Fields)
				}
				if want := []string{"7", "seven"}[i%2]; fmt.Sprint(row.Fields["x"]) != want || row.File != rows[0].File {
					t.Fatalf("row %d of %s: %v", i, row.File, row.Fields)
				}
			}
		})
	}
}
