package pipelines

import (
	"strings"
	"testing"
)

const sameBase = `
pipeline: a
brokers: {addr: [k:9092]}
collect: {file: {include: [/a.log]}, labels: {x: y}}
process:
  - parse: json
  - drop: n > 1
  - set: {z: 'n + 1'}
topic: {name: t, partitions: 2, key: n, config: {retention.ms: 1}}
sink: {clickhouse: {addr: [c:9000], table: t, columns: {n: n}}}
errors: {parse: drop}
tests: [{in: '{"n":1}', out: [{z: 2}]}]
`

func TestSameCollecting(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		same     bool
	}{
		{"", "", true},
		{"pipeline: a", "# a comment that moves all lines\n\npipeline: a", true},
		{"k:9092", "k:9093", false},
		{"/a.log", "/b.log", false},
		{"x: y", "x: z", false},
		{"n > 1", "n > 2", false},
		{"'n + 1'", "'n + 2'", false},
		{"name: t,", "name: u,", false},
		{"partitions: 2", "partitions: 3", false},
		{"key: n", "key: z", false},
		{"retention.ms: 1", "retention.ms: 2", false},
		{"parse: drop", "parse: keep", false},
		{"columns: {n: n}", "columns: {n: z}", true},
		{"{z: 2}", "{n: 1}", true},
	} {
		p, err := Parse("p.yaml", []byte(sameBase))
		if err != nil {
			t.Fatal(err)
		}
		q, err := Parse("p.yaml", []byte(strings.Replace(sameBase, tc.from, tc.to, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if got := p[0].SameCollecting(q[0]); got != tc.same {
			t.Errorf("%q for %q: the agent does the same: %v", tc.to, tc.from, got)
		}
	}
}
