package broker

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/broker/commitlog"
)

// cutFS is a file system that a power cut can take the unsynced bytes from.
type cutFS struct {
	commitlog.OSFS
	mu     sync.Mutex
	synced map[string]int64 // how much of each file would be left
	// hold, if not nil, is received from before a log is synced.
	hold chan struct{}
}

func newCutFS() *cutFS { return &cutFS{synced: map[string]int64{}} }

func (f *cutFS) OpenFile(name string, flag int) (commitlog.File, error) {
	file, err := f.OSFS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return &cutFile{file, name, f}, nil
}

func (f *cutFS) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.OSFS.Rename(from, to); err != nil {
		return err
	}
	for name, n := range f.synced {
		if name == from || strings.HasPrefix(name, from+"/") {
			delete(f.synced, name)
			f.synced[to+strings.TrimPrefix(name, from)] = n
		}
	}
	return nil
}

func (f *cutFS) held() chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hold
}

func (f *cutFS) holdSyncs(hold chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = hold
}

type cutFile struct {
	commitlog.File
	name string
	fs   *cutFS
}

func (f *cutFile) Sync() error {
	if hold := f.fs.held(); hold != nil && strings.HasSuffix(f.name, ".log") {
		<-hold
	}
	info, err := os.Stat(f.name)
	if err != nil || info.IsDir() {
		return err
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.synced[f.name] = info.Size()
	return nil
}

// cut is a power cut: of each partition's files only what was synced is left.
func (f *cutFS) cut(t *testing.T, dir string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasPrefix(name, filepath.Join(dir, clusterDir)) {
			return err
		}
		if n, ok := f.synced[name]; ok {
			return os.Truncate(name, n)
		}
		return os.Remove(name)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// powerNode is a broker on a cutFS with a clock of the test's.
type powerNode struct {
	*node
	cfg   Config
	disk  *cutFS
	clock *stoppedClock
}

type stoppedClock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *stoppedClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *stoppedClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func startPowerNode(t *testing.T, groupFsync bool, topicConfig map[string]*string) *powerNode {
	t.Helper()
	p := &powerNode{cfg: testConfig(t), disk: newCutFS(), clock: &stoppedClock{t: time.Now()}}
	p.cfg.FS, p.cfg.Now, p.cfg.NoGroupFsync = p.disk, p.clock.now, !groupFsync
	p.node = startNode(t, p.cfg)
	p.createTopic(t, "t", 1, topicConfig)
	return p
}

// send produces records one by one and waits for each acknowledgement.
func (p *powerNode) send(t *testing.T, acks kgo.Acks, n int) {
	t.Helper()
	cl := p.client(t, kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite(), kgo.ProducerLinger(0))
	defer cl.Close()
	for i := range n {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: fmt.Appendf(nil, "%d", i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// killed is how many records are left when the process is killed, cutOff when
// the machine loses power.
func (p *powerNode) killed(t *testing.T) int64 {
	t.Helper()
	p.abort()
	p.node = startNode(t, p.cfg)
	return p.partitions.Get("t", 0).HighWatermark()
}

func (p *powerNode) cutOff(t *testing.T) int64 {
	t.Helper()
	p.abort()
	p.disk.cut(t, p.cfg.DataDir)
	p.node = startNode(t, p.cfg)
	return p.partitions.Get("t", 0).HighWatermark()
}

// With group fsync, neither a kill nor a power cut takes what acks=all acknowledged.
func TestGroupFsyncLosesNothing(t *testing.T) {
	p := startPowerNode(t, true, nil)
	p.send(t, kgo.AllISRAcks(), 25)
	if left := p.killed(t); left != 25 {
		t.Errorf("%d records of 25 after a kill", left)
	}
	if left := p.cutOff(t); left != 25 {
		t.Errorf("%d records of 25 after a power cut", left)
	}
	p.send(t, kgo.AllISRAcks(), 25)
	if left := p.cutOff(t); left != 50 {
		t.Errorf("%d records of 50 after another", left)
	}
}

// acks=1 and acks=0 do not wait for the sync, but ask for it: what it covers stays.
func TestAcksOneJoinsTheNextSync(t *testing.T) {
	for _, acks := range []kgo.Acks{kgo.LeaderAck(), kgo.NoAck()} {
		t.Run(fmt.Sprintf("%+v", acks), func(t *testing.T) {
			p := startPowerNode(t, true, nil)
			l := p.partitions.Get("t", 0).Log()
			hold := make(chan struct{})
			p.disk.holdSyncs(hold)
			p.send(t, acks, 1) // acknowledged while the sync is held up
			eventually(t, "the record is in the log", func() bool { return l.EndOffset() == 1 })
			if l.SyncedOffset() != 0 {
				t.Fatal("synced already")
			}
			hold <- struct{}{} // without being asked for otherwise
			eventually(t, "the record is synced", func() bool { return l.SyncedOffset() == 1 })
			close(hold)
			if left := p.cutOff(t); left != 1 {
				t.Errorf("%d records of 1", left)
			}
		})
	}
}

// Without group fsync a kill takes nothing, since the page cache is the
// system's, and a power cut all that was not written out.
func TestWithoutGroupFsync(t *testing.T) {
	p := startPowerNode(t, false, nil)
	p.send(t, kgo.AllISRAcks(), 25)
	if left := p.killed(t); left != 25 {
		t.Errorf("%d records of 25 after a kill", left)
	}
	p.send(t, kgo.AllISRAcks(), 25) // the start after the kill has synced the first 25
	if left := p.cutOff(t); left != 25 {
		t.Errorf("%d records after a power cut, of 25 that were synced and 25 that were not", left)
	}
}

// flush.messages=N costs at most N-1 acknowledged records, whatever acks was.
func TestFlushMessages(t *testing.T) {
	for _, acks := range []kgo.Acks{kgo.LeaderAck(), kgo.AllISRAcks()} {
		p := startPowerNode(t, false, map[string]*string{"flush.messages": ptr("10")})
		l := p.partitions.Get("t", 0).Log()
		for acked := int64(1); acked <= 25; acked++ {
			p.send(t, acks, 1)
			if lost := acked - l.SyncedOffset(); lost > 9 {
				t.Fatalf("%d of %d acknowledged records are not synced", lost, acked)
			}
		}
		if left := p.cutOff(t); left != 20 {
			t.Errorf("%d records are left of 25, want 20", left)
		}
	}
}

// flush.ms=N costs at most what was acknowledged in the last N milliseconds, and
// in the time between two looks.
func TestFlushMs(t *testing.T) {
	p := startPowerNode(t, false, map[string]*string{"flush.ms": ptr("5000")})
	look := func() int64 {
		p.flushStep()
		p.flusher.wait()
		return p.partitions.Get("t", 0).Log().SyncedOffset()
	}
	p.send(t, kgo.LeaderAck(), 10)
	p.clock.advance(4 * time.Second)
	p.send(t, kgo.LeaderAck(), 10)
	if synced := look(); synced != 0 {
		t.Errorf("%d records are synced after 4 s", synced)
	}
	p.clock.advance(time.Second)
	if synced := look(); synced != 20 {
		t.Errorf("%d records of 20 are synced when the first is 5 s old", synced)
	}
	p.send(t, kgo.LeaderAck(), 10)
	p.clock.advance(4999 * time.Millisecond)
	if synced := look(); synced != 20 {
		t.Errorf("%d records are synced, the new ones before they are 5 s old", synced)
	}
	if left := p.cutOff(t); left != 20 {
		t.Errorf("%d records are left, want 20", left)
	}
}

// The scheduler's interval makes the looks more frequent, never less.
func TestFlushEvery(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": time.Second, "9223372036854775807": time.Second, "5000": time.Second, "200": 200 * time.Millisecond, "0": time.Millisecond,
	} {
		defaults := map[string]string{}
		if value != "" {
			defaults["log.flush.scheduler.interval.ms"] = value
		}
		if got := flushEvery(defaults); got != want {
			t.Errorf("%q: every %s, want %s", value, got, want)
		}
	}
}

// A closed segment is synced without being asked for, so that the last ones of
// a log are all that a power cut can take.
func TestClosedSegmentsAreSynced(t *testing.T) {
	p := startPowerNode(t, false, map[string]*string{"segment.ms": ptr("1000")})
	p.send(t, kgo.LeaderAck(), 10)
	p.clock.advance(2 * time.Second)
	p.rollStep()
	p.flusher.wait()
	p.send(t, kgo.LeaderAck(), 10)
	if left := p.cutOff(t); left != 10 {
		t.Errorf("%d records are left, want the 10 of the closed segment", left)
	}
}
