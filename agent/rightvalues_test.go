package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What a truncation destroyed after it was seen and before it was read is counted to the byte.
func TestUnreadBytesOfATruncationAreCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.cfg.InFlightBytesMax = 1 // one chunk at a time
	r.store.hold()
	line := "a line that a truncation destroys\n"
	text := strings.Repeat(line, 100_000)
	r.write("f.log", text)
	r.start()
	r.eventually("a first chunk is sent", func() bool { return r.store.heldLines() > 0 })
	read := r.account().Read.Bytes
	if read >= int64(len(text)) {
		t.Fatal("all of it was read at once")
	}
	r.eventually("what is behind is known", func() bool { return r.account().LagBytes == int64(len(text)) })
	r.rewrite("f.log", "after\n")
	r.store.letGo()
	r.eventually("what follows", func() bool { return slices.Contains(r.store.values(), "after") })
	a := r.account()
	if a.Truncations != 1 || a.LostBytes != int64(len(text))-(a.Read.Bytes-int64(len("after\n"))) {
		t.Errorf("%d truncations, %d bytes lost, %d of %d read before", a.Truncations, a.LostBytes, a.Read.Bytes-int64(len("after\n")), len(text))
	}
	if got := int64(strings.Count(strings.Join(r.store.values(), "\n"), strings.TrimSpace(line))) * int64(len(line)); got+a.LostBytes != int64(len(text)) {
		t.Errorf("%d bytes sent and %d lost of %d", got, a.LostBytes, len(text))
	}
}

// No checkpoint is left: the files of now are followed as the setting says of a first start, and what is appended comes.
func TestNoCheckpointIsLeftWithStartAtEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.ReplaceAll(plainPipeline, "*.log*\"]", "*.log*\"], start_at: end"))
	r.start()
	r.eventually("the first look", func() bool { return r.agent.Ready() == nil })
	r.write("a.log", "one\n")
	r.wants("one")
	r.settled()
	r.halt()
	for _, suffix := range []string{"", ".prev"} {
		if err := os.WriteFile(filepath.Join(r.state, checkpointName+suffix), make([]byte, 100), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	r.eventually("it is said", func() bool { return strings.Contains(r.log.String(), "no whole checkpoint is left") })
	r.eventually("the file is followed", func() bool { return r.account().FilesFollowed == 1 && r.agent.Ready() == nil })
	r.write("a.log", "two\n")
	r.wants("one", "two")
}

// What cannot be seen is told from what is not there.
func TestExplainWhatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	link(t, r.path("nowhere"), r.path("broken.log"))
	link(t, r.path("loop.log"), r.path("loop.log"))
	r.start()
	r.says("broken.log", "it is a symbolic link to "+r.path("nowhere")+", where there is no file")
	r.says("loop.log", "it cannot be looked at: too many levels of symbolic links")
	r.says("gone.log", "there is no such file")
}
