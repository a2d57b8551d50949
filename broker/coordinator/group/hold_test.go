package group

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A group whose assignments cannot be stored, as below min.insync.replicas, tries again
// with pauses that grow, and not as fast as its members join; when they can be stored
// again it goes on within the longest pause.
func TestAGroupThatCannotBeStoredBacksOff(t *testing.T) {
	f := newFixture(t, Config{})
	var logged strings.Builder
	f.c = New(slog.New(slog.NewTextHandler(&logged, nil)), nil, f.clock, Config{})
	f.c.newID = func() string { return "m" }
	f.c.SetPartitions(1)
	f.elect(f.log)
	f.log.refuse = errors.New("not enough in-sync replicas")
	req := joinRequest("g")
	id, w := f.joinWithID(req)
	req.MemberID = id
	generations := 0
	for end := f.clock.Now().Add(60 * time.Second); f.clock.Now().Before(end); f.clock.advance(5 * time.Millisecond) {
		if len(w.answers) == 0 {
			continue
		}
		generations++
		generation := w.get().Generation
		f.wantErr("sync", f.sync(SyncRequest{Group: "g", MemberID: id, Generation: generation, Assignments: []Assignment{{id, []byte("a")}}}).get().Err, ErrUnavailable)
		w = f.join(req)
	}
	if generations < 20 || generations > 30 {
		t.Errorf("%d generations in a minute", generations)
	}
	if n := strings.Count(logged.String(), "coordinator writes are refused"); n < 5 || n > 7 {
		t.Errorf("said %d times that writes are refused", n)
	}
	f.log.refuse = nil
	f.clock.advance(unstoredPauseMax)
	f.syncAll("g", []string{id}, w.get().Generation)
	// It is forgotten then.
	f.log.refuse = errors.New("not enough in-sync replicas")
	w = f.join(req)
	f.sync(SyncRequest{Group: "g", MemberID: id, Generation: w.get().Generation})
	w = f.join(req)
	w.mustWait()
	f.clock.advance(unstoredPauseMin)
	w.get()
}
