package hdfs_test

import (
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestPairOfNameNodes: a sink that knows both NameNodes goes on over a failover by hand, over the death of the active one under writes, and over its return as standby;
// each row is stored once, and the standby's answers are never taken.
func TestPairOfNameNodes(t *testing.T) {
	if !*everyStep {
		t.Skip("takes a minute: make test-files")
	}
	s := testenv.StartHDFS(t, testenv.HDFSConfig{Pair: true})
	w := newWorker(t, s.NameNodes(), s.User, "/pair", plain+"    block_size: 1MiB\n")
	next := int64(0)
	claim := func() {
		t.Helper()
		w.until(time.Minute, func() error { return w.once(next, next+299) })
		next += 300
	}
	claim()
	s.Failover(t) // both live
	claim()
	s.Failover(t)
	claim()
	w.wantStored(next)

	// The active one dies while claims are written, and the other is made active.
	died := make(chan struct{})
	go func() {
		defer close(died)
		s.Active().Kill()
	}()
	for range 3 {
		if err := w.once(next, next+299); err != nil {
			break
		}
		next += 300
	}
	<-died
	if err := w.once(next, next+299); err == nil {
		t.Fatal("a claim was stored while no NameNode was active")
	}
	dead := s.Active()
	s.Failover(t)
	claim()
	w.wantStored(next)
	dead.Restart(t) // stands by
	claim()
	s.Failover(t)
	claim()
	w.wantStored(next)
	t.Logf("%d tries failed, the last: %v", len(w.errs), last(w.errs))
}
