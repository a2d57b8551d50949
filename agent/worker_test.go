package agent

import (
	"strings"
	"testing"
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
