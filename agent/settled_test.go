package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

// While lines of a content that is gone are on their way, a checkpoint holds how far it is delivered: not less, for the journal is not kept
// from there on, and not more.
func TestContentOnItsWayIsSavedAsFarAsItIsDelivered(t *testing.T) {
	now := time.Unix(100, 0)
	at := func(offset int64) tail.Position { return tail.Position{Offset: offset} }
	x := &track{}
	first, second := x.begin(at(7), now), x.begin(at(14), now)
	o := orphan{place: at(14), track: x, generation: 0}
	x.renew()
	third := x.begin(at(5), now) // of the next content
	saved := func() int64 {
		f := o.save()
		return f.Offset
	}
	if got := saved(); got != 0 {
		t.Errorf("nothing is delivered: %d", got)
	}
	x.settle(first)
	if got := saved(); got != 7 {
		t.Errorf("the first chunk is delivered: %d", got)
	}
	x.settle(third) // out of turn: it says nothing of the content before
	if got := saved(); got != 7 || x.acked.Offset != 0 {
		t.Errorf("the next content is delivered: %d, and of that %d", got, x.acked.Offset)
	}
	x.settle(second)
	if got := saved(); got != 14 || x.acked.Offset != 5 {
		t.Errorf("all is delivered: %d, and of the next %d", got, x.acked.Offset)
	}
	// A former chunk of another content than the orphan's does not count.
	x.renew()
	x.begin(at(9), now)
	last := orphan{place: at(9), track: x, generation: 1}
	x.pending[0].generation = 1
	if f := last.save(); f.Offset != 0 {
		t.Errorf("another content was delivered to %d", f.Offset)
	}
}

// What a compressed copy is known by is forgotten with the copy that has all of it: a longer one may follow a shorter.
func TestWhatACompressedCopyIsKnownBy(t *testing.T) {
	for name, tc := range map[string]struct {
		offset int64
		left   int
	}{"all of it": {14, 0}, "a shorter copy": {7, 1}} {
		gone := &track{id: tail.ID{Ino: 1}, path: "/d/app.log"}
		r := &files{runner: &runner{log: slog.New(slog.DiscardHandler)}, tracks: map[tail.ID]*track{gone.id: gone}}
		place := tail.Position{Offset: 14}
		r.orphans = []orphan{{place: place, names: [2]string{"/d/app.log", "/d/app.log"}}}
		r.claimedPacked(tail.Found{}, packedOriginal{place: place, orphan: &r.orphans[0]}, tc.offset)
		r.claimedPacked(tail.Found{}, packedOriginal{place: place, track: gone}, tc.offset)
		if len(r.orphans) != tc.left || len(r.tracks) != tc.left || r.account.Copies != 2 || !r.dirty {
			t.Errorf("%s: %d orphans, %d tracks, %d copies", name, len(r.orphans), len(r.tracks), r.account.Copies)
		}
	}
	// A file that has the identity since keeps its track.
	later := &track{id: tail.ID{Ino: 1}}
	r := &files{runner: &runner{log: slog.New(slog.DiscardHandler)}, tracks: map[tail.ID]*track{later.id: later}}
	r.claimedPacked(tail.Found{}, packedOriginal{place: tail.Position{Offset: 14}, track: &track{id: later.id}}, 14)
	if r.tracks[later.id] != later {
		t.Error("another file's track is gone")
	}
}

// A source whose time has come is never left without one while something of it waits.
func TestTimeOfASource(t *testing.T) {
	now := time.Unix(100, 0)
	const idle = 5 * time.Second
	path := filepath.Join(t.TempDir(), "app.log")
	for name, tc := range map[string]struct {
		prepare func(*files, *source)
		due     time.Duration // from now; 0: none
		scan    bool
		queued  bool
	}{
		"the topic is not known": {func(r *files, _ *source) { r.work.begun = false }, idle, false, false},
		"in the queue":           {func(r *files, s *source) { r.enqueue(s) }, 250 * time.Millisecond, false, true},
		"nothing waits": {func(_ *files, s *source) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			var err error
			if s.file, err = tail.Open(path, &tail.FileConfig{}); err != nil {
				t.Fatal(err)
			}
		}, 0, false, false},
		"no descriptor is free": {func(r *files, s *source) {
			if err := s.file.Park(); err != nil {
				t.Fatal(err)
			}
			r.handles = 1
		}, time.Second, true, true},
		"it has another name": {func(_ *files, s *source) {
			if err := s.file.Park(); err != nil {
				t.Fatal(err)
			}
			s.path += ".1"
		}, time.Second, true, false},
	} {
		if err := os.WriteFile(path, []byte("unfinished"), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := tail.Open(path, &tail.FileConfig{})
		if err != nil {
			t.Fatal(err)
		}
		r := &files{
			runner: &runner{
				log: slog.New(slog.DiscardHandler), said: map[place]string{}, work: &worker{begun: true},
				pipe: &pipelines.Pipeline{Collect: &pipelines.Collect{File: &pipelines.FileInput{}}},
				cfg:  Config{Now: func() time.Time { return now }, LineIdle: idle, RotateGrace: time.Second, ScanInterval: time.Second, OpenFilesMax: 1},
			},
			sources: map[tail.ID]*source{}, byPath: map[string]*source{}, tracks: map[tail.ID]*track{},
		}
		s := &source{file: file, path: path, track: &track{}}
		tc.prepare(r, s)
		r.onTime(s, now)
		due := time.Duration(0)
		if !s.due.IsZero() {
			due = s.due.Sub(now)
		}
		if due != tc.due || r.scanWanted != tc.scan || s.queued != tc.queued {
			t.Errorf("%s: due in %v, scan %v, queued %v", name, due, r.scanWanted, s.queued)
		}
		file.Close()
		s.file.Close()
	}
}
