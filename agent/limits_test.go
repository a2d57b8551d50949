package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestRotationStorm(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	rotations := 300
	if testing.Short() {
		rotations = 50
	}
	var want []string
	for i := range rotations {
		line := fmt.Sprintf("line %d", i)
		want = append(want, line)
		r.write("x.log", line+"\n")
		for k := range 20 { // noise that the pattern does not match
			r.write(fmt.Sprintf("noise-%d", k), "x")
		}
		r.rename("x.log", fmt.Sprintf("x.log.%d", i))
	}
	r.wants(want...)
	r.steady("nothing is sent twice", 300*time.Millisecond, func() bool { return r.store.count() == len(want) })
}

func TestManyFilesAtOnce(t *testing.T) {
	t.Parallel()
	files := 10_000
	if testing.Short() {
		files = 1000
	}
	r := newRig(t, plainPipeline)
	r.start()
	for i := range files {
		r.write(fmt.Sprintf("%d.log", i), fmt.Sprintf("line of %d\n", i))
	}
	begun := time.Now()
	r.eventually("all are read", func() bool { return r.store.count() >= files })
	t.Logf("all read %s after the last was made", time.Since(begun).Round(time.Millisecond))
	got := r.store.values()
	slices.Sort(got)
	if n := len(slices.Compact(got)); n != files {
		t.Errorf("%d different lines", n)
	}
	for i := range files {
		if i%(files/10) == 0 {
			r.write(fmt.Sprintf("%d.log", i), "more\n")
		}
	}
	r.eventually("later lines", func() bool { return r.store.count() == files+10 })
}

func TestOutOfDescriptors(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.cfg.OpenFilesMax = 10
	r.start()
	const files = 100
	total := 0
	for round := range 3 {
		for i := range files {
			r.write(fmt.Sprintf("%d.log", i), fmt.Sprintf("line %d of %d\n", round, i))
			total++
		}
		r.eventually("a round", func() bool { return r.store.count() >= total })
	}
	if r.store.count() != total {
		t.Errorf("%d lines, want %d", r.store.count(), total)
	}
	if open := r.account().FilesOpen; open > 10 {
		t.Errorf("%d files open", open)
	}
	r.rename("5.log", "5.log.1")
	r.write("5.log.1", "after the rename\n")
	r.write("5.log", "new\n")
	r.eventually("renamed while closed", func() bool { return r.store.count() == total+2 })
	if n := strings.Count(r.log.String(), "out of file descriptors"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

func TestBacklogDoesNotStarveTheNew(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.cfg.InFlightBytesMax = 1 << 20
	big := strings.Repeat("a line of the backlog\n", 3_000_000)
	r.write("old.log", big)
	r.store.hold()
	r.start()
	r.eventually("the memory is full", func() bool { return r.store.heldLines() > 1000 })
	r.write("new.log", "fresh\n")
	r.eventually("the new file is found", func() bool { return r.account().FilesFollowed == 2 })
	most := int64(0)
	for _, x := range r.agent.list() {
		x.mu.Lock()
		most = x.memory
		x.mu.Unlock()
	}
	if most > 4<<20 {
		t.Errorf("%d bytes in flight", most)
	}
	r.store.letGo()
	r.eventually("the fresh line", func() bool { return slices.Contains(r.store.values(), "fresh") })
	at := slices.Index(r.store.values(), "fresh")
	if at > 200_000 {
		t.Errorf("it came after %d lines of the backlog", at)
	}
}

func TestDamagedCheckpoints(t *testing.T) {
	t.Parallel()
	whole := func(r *rig) []byte {
		data, err := os.ReadFile(filepath.Join(r.state, checkpointName))
		if err != nil {
			r.t.Fatal(err)
		}
		return data
	}
	for name, damage := range map[string]func([]byte) []byte{
		"NULs":         func(b []byte) []byte { return make([]byte, len(b)) },
		"empty":        func([]byte) []byte { return nil },
		"half-written": func(b []byte) []byte { return b[:len(b)/2] },
		"garbage":      func(b []byte) []byte { return []byte(strings.Repeat("garbage\n", 9)) },
		"flipped":      func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"version":      func(b []byte) []byte { b[len(checkpointMagic)+1] ^= 8; return b[:len(b)-3] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, plainPipeline)
			r.write("a.log", "one\n")
			r.start()
			r.wants("one")
			r.settled()
			r.write("a.log", "two\n")
			r.wants("one", "two")
			r.settled()
			r.halt()
			if err := os.WriteFile(filepath.Join(r.state, checkpointName), damage(whole(r)), 0o600); err != nil {
				t.Fatal(err)
			}
			r.write("a.log", "three\n")
			r.start()
			r.wants("one", "two", "two", "three") // the previous one is of after "one"
			if !strings.Contains(r.log.String(), "using the previous checkpoint") {
				t.Error("not said")
			}
			r.settled()
			r.halt()
			for _, suffix := range []string{"", ".prev"} {
				if err := os.WriteFile(filepath.Join(r.state, checkpointName+suffix), []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r.start()
			r.wants("one", "two", "two", "three", "one", "two", "three")
			if !strings.Contains(r.log.String(), "no whole checkpoint is left") {
				t.Error("not said")
			}
		})
	}
}

func TestKilledWithinACheckpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.write("a.log", "one\n")
	r.start()
	r.wants("one")
	r.settled()
	r.halt()
	r.write("a.log", "two\n")
	// Between the two renames there is no current one; a temporary may be torn.
	if err := os.Rename(filepath.Join(r.state, checkpointName), filepath.Join(r.state, checkpointName+".prev")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.state, checkpointName+".tmp"), []byte("sluice-pos"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wants("one", "two")
}

func TestNewerCheckpointIsRefused(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"version": withSum(checkpointVersion+1, `{"pipelines":{}}`),
		"field":   withSum(checkpointVersion, `{"pipelines":{"test":{"files":[],"later":7}}}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, plainPipeline)
			path := filepath.Join(r.state, checkpointName)
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := r.open()
			var newer *VersionError
			if !errors.As(err, &newer) {
				t.Fatalf("error %v", err)
			}
			t.Log(err)
			if now, _ := os.ReadFile(path); string(now) != content {
				t.Error("the checkpoint was changed")
			}
		})
	}
}

func withSum(version int, body string) string {
	body += "\n"
	return fmt.Sprintf("%s %d %08x\n%s", checkpointMagic, version, checksum([]byte(body)), body)
}

func TestSecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	if _, err := r.open(); err == nil || !strings.Contains(err.Error(), "in use by another agent") {
		t.Errorf("error %v", err)
	}
	r.halt()
	r.start()
}

func TestCheckpointKeepsOtherPipelines(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.write("a.log", "one\n")
	r.start()
	r.wants("one")
	r.settled()
	r.halt()
	was := r.yaml
	r.yaml = strings.ReplaceAll(was, "pipeline: test", "pipeline: other")
	r.start()
	r.wants("one", "one")
	r.settled()
	r.halt()
	r.yaml = was
	r.start()
	r.steady("nothing again", 200*time.Millisecond, func() bool { return r.store.count() == 2 })
}

func TestDrainWaitsUpToItsLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.write("a.log", "one\ntwo\n")
	r.store.hold()
	r.start()
	r.eventually("lines in flight", func() bool { return r.store.heldLines() == 2 })
	begun := time.Now()
	r.halt()
	if took := time.Since(begun); took < r.cfg.DrainTimeout {
		t.Errorf("gave up after %s", took)
	}
	r.store.waiting = nil
	r.store.held = false
	r.start()
	r.wants("one", "two")
	r.store.hold()
	r.write("a.log", "three\n")
	r.eventually("a line in flight", func() bool { return r.store.heldLines() == 1 })
	r.cfg.DrainTimeout = patience
	done := make(chan struct{})
	r.agent.cfg.DrainTimeout = patience
	go func() { r.halt(); close(done) }()
	r.eventually("the loops have ended", func() bool { x := r.agent; return x == nil || x.list()[0].over() })
	r.store.letGo()
	<-done
	r.start()
	r.steady("the drained line is not sent again", 200*time.Millisecond, func() bool { return r.store.count() == 3 })
}

func (r *runner) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

var errTooLarge = errors.New("MESSAGE_TOO_LARGE")

func refuseLong(_, value string) error {
	if len(value) > 10 {
		return errTooLarge
	}
	return nil
}

func TestRefusedRecordIsDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.store.refuse = refuseLong
	r.write("a.log", "one\na line that is too long\ntwo\n")
	r.start()
	r.wants("one", "two")
	r.eventually("accounted", func() bool {
		a := r.account()
		return a.Dropped[dropRefused] == Count{Lines: 1, Bytes: 24} && a.Acked.Lines == 2 && a.InFlight.Lines == 0 && a.LagBytes == 0
	})
}

func TestRefusedRecordIsDeadLettered(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline+"errors: {dead_letter: dlq}\n")
	r.store.refuse = func(topic, value string) error {
		if topic == "dlq" {
			return nil
		}
		return refuseLong(topic, value)
	}
	r.write("a.log", "one\na line that is too long\ntwo\n")
	r.start()
	r.wants("one", "two", "a line that is too long")
	r.eventually("accounted", func() bool {
		a := r.account()
		return a.Dropped[dropDeadLetter] == Count{Lines: 1, Bytes: 24} && a.Acked.Lines == 2 && a.InFlight.Lines == 0
	})
	for _, rec := range r.store.all() {
		if rec.topic != "dlq" {
			continue
		}
		if !strings.HasSuffix(rec.key, "/4") || rec.headers["dlq_reason"] != errTooLarge.Error() || rec.headers["dlq_path"] != r.path("a.log") ||
			rec.headers["dlq_file_offset"] != "4" || rec.headers["dlq_topic"] != "lines" || rec.headers["dlq_stage"] == "" {
			t.Errorf("dead letter %+v", rec)
		}
	}
}

func TestParseFailures(t *testing.T) {
	t.Parallel()
	const good = `1.2.3.4 - - [30/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"`
	for _, tc := range []struct {
		name, errors, topic, reason string
		marked                      bool
	}{
		{"dead letter", "{parse: dead_letter, dead_letter: dlq}", "dlq", dropDeadLetter, false},
		{"drop", "{parse: drop}", "", "parse", false},
		{"keep", "{parse: keep}", "lines", "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, `
pipeline: test
collect:
  file: {include: ["DIR/*.log"]}
  labels: {site: shop}
process:
  - parse: nginx
topic: {name: lines}
errors: `+tc.errors+"\n")
			r.write("a.log", good+"\nnot an access line\n")
			acc := r.once()
			if tc.reason != "" && acc.Dropped[tc.reason] != (Count{Lines: 1, Bytes: 19}) {
				t.Errorf("account %+v", acc)
			}
			all := r.store.all()
			if !strings.Contains(all[0].value, `"status":200`) || !strings.Contains(all[0].value, `"site":"shop"`) || all[0].headers["site"] != "" {
				t.Errorf("event %+v", all[0])
			}
			var bad []stored
			for _, rec := range all {
				if rec.value == "not an access line" {
					bad = append(bad, rec)
				}
			}
			if tc.topic == "" {
				if len(bad) != 0 {
					t.Errorf("sent %+v", bad)
				}
				return
			}
			if len(bad) != 1 || bad[0].topic != tc.topic || (bad[0].headers["sluice_raw"] == "1") != tc.marked {
				t.Errorf("bad line: %+v", bad)
			}
		})
	}
}

func TestKeyChoosesPartition(t *testing.T) {
	t.Parallel()
	// Kafka's own test values: our records lie where its producers put theirs.
	for key, want := range map[string]int32{"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.write("a.log", "one\ntwo\nno newline")
	r.write("a.log.1", "three\n")
	r.once()
	if got := r.store.values(); len(got) != 4 {
		t.Errorf("stored %q", got)
	}
	r.write("a.log", "\nfour\n")
	r.once()
	if got := r.store.values(); len(got) != 5 || got[4] != "four" {
		t.Errorf("then %q", got)
	}
}

func TestWaitsForTheBrokers(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.store.down = errors.New("dial tcp 127.0.0.1:9092: connection refused")
	r.write("a.log", "one\n")
	r.start()
	r.eventually("it is said", func() bool {
		return strings.Contains(r.log.String(), "connection refused") && r.account().FilesFollowed == 1
	})
	if err := r.agent.Ready(); err == nil {
		t.Error("ready without a broker")
	}
	r.rename("a.log", "gone") // while it waits
	r.store.mu.Lock()
	r.store.down = nil
	r.store.mu.Unlock()
	r.wants("one")
	r.eventually("it is ready", func() bool { return r.agent.Ready() == nil })
}

func TestMissingDirectoryHeals(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.ReplaceAll(plainPipeline, "DIR/*.log*", "DIR/later/*.log"))
	r.start()
	r.eventually("it is said", func() bool { return strings.Contains(r.log.String(), r.path("later")) })
	r.steady("said once", 300*time.Millisecond, func() bool { return strings.Count(r.log.String(), "cannot be looked at") == 1 })
	if err := os.Mkdir(r.path("later"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.write("later/a.log", "one\n")
	r.wants("one")
	if err := os.RemoveAll(r.path("later")); err != nil {
		t.Fatal(err)
	}
	r.eventually("gone", func() bool { return r.account().FilesFollowed == 0 })
	if err := os.Mkdir(r.path("later"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.write("later/a.log", "two\n")
	r.wants("one", "two")
}

func TestNotReadyWhileNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	var ahead atomic.Int64 // of the real clock
	r.cfg.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	r.store.hold()
	r.start()
	r.eventually("it is ready", func() bool { return r.agent.Ready() == nil })
	r.write("a.log", "one\n")
	r.eventually("it is under way", func() bool { return r.account().InFlight.Lines == 1 })
	if err := r.agent.Ready(); err != nil {
		t.Errorf("a line has just been sent: %v", err)
	}
	ahead.Store(int64(2 * unreadyAfter))
	if err := r.agent.Ready(); err == nil || !strings.Contains(err.Error(), "topic lines have acknowledged nothing") {
		t.Errorf("nothing is acknowledged, but %v", err)
	}
	r.store.letGo()
	r.wants("one")
	r.eventually("it is ready again", func() bool { return r.agent.Ready() == nil })
}
