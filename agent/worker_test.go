package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/record"
)

// Host and path are known to keys and stages whether they are sent or not.
func TestKeyWithoutHeaders(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, key, stages, line, want string }{
		{"host", "host", "", "plain line", "web-1"},
		{"path", "path", "", "plain line", "PATH"},
		{"parsed", "headers.host", "process: [{parse: json}]", `{"n":1}`, "web-1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, `
pipeline: test
collect:
  file: {include: ["DIR/*.log"], headers: false}
  labels: {site: shop}
`+tc.stages+`
topic: {name: lines, partitions: 3, key: '`+tc.key+`'}
`)
			r.write("a.log", tc.line+"\n")
			acc := r.once()
			if r.store.count() != 1 {
				t.Fatalf("account %+v", acc)
			}
			rec := r.store.all()[0]
			if want := strings.ReplaceAll(tc.want, "PATH", r.path("a.log")); rec.key != want {
				t.Errorf("key %q, want %q", rec.key, want)
			}
			if rec.headers["host"] != "" || rec.headers["path"] != "" {
				t.Errorf("headers %v are sent", rec.headers)
			}
			if tc.stages != "" && rec.value != `{"n":1,"site":"shop"}` {
				t.Errorf("event %s: its label must be there once", rec.value)
			}
		})
	}
}

func TestCatchingUp(t *testing.T) {
	t.Parallel()
	a, err := newRig(t, plainPipeline).open() // it does not run: the lag is the test's
	if err != nil {
		t.Fatal(err)
	}
	defer a.release()
	x := a.list()[0].input.(*files)
	file := &track{followed: true}
	x.tracks[file.id] = file
	for _, step := range []struct {
		lag  int64
		want bool
	}{{catchUpLagBytes, false}, {catchUpLagBytes + 1, true}, {caughtUpLagBytes + 1, true}, {caughtUpLagBytes, false}, {catchUpLagBytes, false}} {
		file.size = step.lag
		x.measure()
		if got := x.catchingUp.Load(); got != step.want {
			t.Errorf("with %d bytes behind: catching up %v", step.lag, got)
		}
	}
}

// placed runs a pipeline over lines and says where they went.
func placed(t *testing.T, topic string, lines ...string) (at map[string]string, r *rig) {
	t.Helper()
	r = newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/*.log\"], headers: false}\nprocess: [{parse: json}]\ntopic: "+topic+"\n")
	at = map[string]string{}
	r.store.batch = func(b *producer.Batch) {
		_ = b.Data.Each(nil, func(rec *record.Record) error {
			at[string(rec.Value)] = fmt.Sprintf("%s-%d", b.Topic, b.Partition)
			return nil
		})
	}
	r.write("a.log", strings.Join(lines, "\n")+"\n")
	r.once()
	return at, r
}

func TestWhereLinesGo(t *testing.T) {
	t.Parallel()
	hashed := func(text string) string { return fmt.Sprintf("lines-%d", partitionOf([]byte(text), 5)) }
	for _, tc := range []struct {
		name, topic string
		want        map[string]string
	}{
		{"key", "{name: lines, partitions: 5, key: k}", map[string]string{`{"k":"a"}`: hashed("a"), `{"k":"b"}`: hashed("b"), `{"k":17}`: hashed("17")}},
		{"hash before key", "{name: lines, partitions: 5, key: k, hash: h}", map[string]string{`{"k":"a","h":"x"}`: hashed("x"), `{"k":"b","h":"x"}`: hashed("x")}},
		{"partition before both", "{name: lines, partitions: 5, key: k, hash: h, partition: n}", map[string]string{
			`{"k":"a","h":"x","n":3}`: "lines-3", `{"k":"a","h":"x","n":13}`: "lines-3", `{"k":"a","h":"x","n":-1}`: "lines-4", `{"k":"a","h":"x","n":"no"}`: hashed("x")}},
		{"named", "{name: lines, partitions: 5, name_from: t, partition: n}", map[string]string{
			`{"t":"one","n":1}`: "one-1", `{"t":"two","n":2}`: "two-2", `{"n":3}`: "lines-3", `{"t":"no name","n":4}`: "lines-4", `{"t":"__consumer_offsets","n":0}`: "lines-0"}},
		{"named too many", "{name: lines, partitions: 5, name_from: t, topics_max: 2, partition: 'i'}", map[string]string{
			`{"t":"one","i":1}`: "one-1", `{"t":"two","i":2}`: "two-2", `{"t":"three","i":3}`: "lines-3", `{"t":"one","i":4}`: "one-4"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			at, r := placed(t, tc.topic, slices.Sorted(maps.Keys(tc.want))...)
			if tc.name == "named too many" { // by the order of lines
				at, r = placed(t, tc.topic, `{"t":"one","i":1}`, `{"t":"two","i":2}`, `{"t":"three","i":3}`, `{"t":"one","i":4}`)
			}
			if !maps.Equal(at, tc.want) {
				t.Errorf("went to %v, want %v", at, tc.want)
			}
			made := map[string]bool{}
			for _, m := range r.store.made {
				if made[m.Name] = true; m.Partitions != 5 {
					t.Errorf("made %+v", m)
				}
			}
			for _, place := range tc.want {
				if topic, _, _ := strings.Cut(place, "-"); !made[topic] {
					t.Errorf("topic %s was not asked for", topic)
				}
			}
		})
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	for spread, batches := range map[string]int{"file": 1, "round_robin": 4} {
		r := newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/*.log\"]}\ntopic: {name: lines, partitions: 4, spread: "+spread+", batch: {lines: 10}}\n")
		partitions := map[int32]int{}
		r.store.batch = func(b *producer.Batch) { partitions[b.Partition]++ }
		for i := range 40 { // a chunk is a batch at least
			r.write("a.log", fmt.Sprintf("line %d\n", i))
			if i == 0 {
				r.start()
			}
			r.eventually("it is stored", func() bool { return r.store.count() == i+1 })
		}
		r.halt()
		if len(partitions) != batches {
			t.Errorf("%s: batches by partition %v", spread, partitions)
		}
	}
}

// Batches are closed by bytes, by lines and by age, whichever comes first, and hold all codecs.
func TestBatches(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&text, "line %06d %s\n", i, strings.Repeat("x", 86))
	}
	for _, tc := range []struct {
		topic    string
		least    int
		codec    record.Codec
		largest  int
		mostLine int
	}{
		{"{name: lines, batch: {bytes: 16KiB}, compression: none}", 12, record.None, 17 << 10, 200},
		{"{name: lines, compression: gzip}", 1, record.Gzip, 1 << 20, 10_000},
		{"{name: lines, compression: snappy}", 1, record.Snappy, 1 << 20, 10_000},
		{"{name: lines, compression: lz4}", 1, record.LZ4, 1 << 20, 10_000},
		{"{name: lines, compression: zstd}", 1, record.Zstd, 1 << 20, 10_000},
		{"{name: lines, compression: auto}", 1, record.Zstd, 1 << 20, 10_000},
	} {
		r := newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/*.log\"], headers: false}\ntopic: "+tc.topic+"\n")
		batches := 0
		r.store.batch = func(b *producer.Batch) {
			if batches++; b.Data.Codec() != tc.codec || len(b.Data) > tc.largest || int(b.Data.Count()) > tc.mostLine {
				t.Errorf("%s: a batch of %d bytes, %d records, %v", tc.topic, len(b.Data), b.Data.Count(), b.Data.Codec())
			}
		}
		r.write("a.log", text.String())
		if acc := r.once(); acc.Acked.Lines != 2000 || batches < tc.least {
			t.Errorf("%s: %d lines in %d batches", tc.topic, acc.Acked.Lines, batches)
		}
	}
}

// A batch is closed by its age: what comes within it travels together.
func TestBatchAge(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/*.log\"], headers: false}\ntopic: {name: lines, batch: {age: 400ms}}\n")
	var batches []int
	r.store.batch = func(b *producer.Batch) { batches = append(batches, int(b.Data.Count())) }
	r.start()
	r.eventually("the topic is there", func() bool { return r.agent.Ready() == nil })
	r.write("a.log", "one\n")
	r.eventually("it is read", func() bool { return r.account().Read.Lines == 1 })
	r.steady("it waits for its age", 150*time.Millisecond, func() bool { return r.store.count() == 0 })
	r.write("a.log", "two\n")
	r.wants("one", "two")
	r.halt()
	if len(batches) != 1 || batches[0] != 2 {
		t.Errorf("batches of %v lines", batches)
	}
}
