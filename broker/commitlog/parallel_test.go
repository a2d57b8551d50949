package commitlog

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/sluice-io/sluice/internal/record"
)

// TestParallel appends, reads, flushes, checkpoints, retains and looks up times
// at once; it is for the race detector, and checks that every reader sees whole
// batches in order.
func TestParallel(t *testing.T) {
	const batches = 800
	cfg := Config{SegmentBytes: 4000, IndexIntervalBytes: 200, RetentionBytes: 40_000, DeleteDelay: -1}
	l, _ := openTest(t, t.TempDir()+"/t-0", cfg, OpenOptions{Files: NewFileCache(4)})
	done := make(chan struct{})
	var wg sync.WaitGroup
	run := func(fn func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := fn(); err != nil {
				t.Error(err)
			}
		}()
	}
	until := func(fn func() error) func() error {
		return func() error {
			for {
				select {
				case <-done:
					return nil
				default:
				}
				if err := fn(); err != nil {
					return err
				}
			}
		}
	}
	run(func() error {
		defer close(done)
		for i := 0; i < batches; i++ {
			batch := buildBatch(t, record.BuildOptions{Idempotent: true, ProducerID: 1, BaseSequence: int32(2 * i)}, int64(i), fmt.Sprint(2*i), fmt.Sprint(2*i+1))
			if _, err := l.Append(batch, int32(i/500), testTime); err != nil {
				return err
			}
		}
		return nil
	})
	for range 3 {
		offset := int64(0)
		run(until(func() error {
			next, err := followOnce(l, offset)
			offset = next
			return err
		}))
	}
	run(until(func() error { _, err := l.Flush(); return err }))
	run(until(func() error { _, err := l.Checkpoint(); return err }))
	run(until(func() error {
		if _, err := l.Retain(testTime, l.EndOffset()); err != nil {
			return err
		}
		_, err := l.RemoveDeleted(testTime)
		return err
	}))
	run(until(func() error {
		_, _, _, _, err := l.OffsetForTimestamp(l.StartOffset()/2+3, l.EndOffset())
		if err == nil {
			_, _, _, _, err = l.MaxTimestamp(l.EndOffset())
		}
		l.ActiveProducers()
		l.EndOffsetForEpoch(1)
		l.Segments()
		return err
	}))
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// followOnce reads on from an offset, from the log's start when retention took it.
func followOnce(l *Log, offset int64) (next int64, err error) {
	r, err := l.Read(offset, 3000, l.EndOffset(), true)
	if errors.Is(err, ErrOffsetOutOfRange) {
		return l.StartOffset(), nil
	}
	if err != nil {
		return offset, err
	}
	defer r.Release()
	data := make([]byte, r.Len)
	if r.Len > 0 {
		if _, err := r.File.ReadAt(data, r.Pos); err != nil && !errors.Is(err, io.EOF) {
			return offset, err
		}
	}
	for len(data) > 0 {
		b, rest, err := record.Next(data)
		if err == nil {
			err = b.CheckCRC()
		}
		if err == nil && (b.BaseOffset() > offset && !l.Config().Compact || b.LastOffset() < offset) {
			err = fmt.Errorf("batch %d-%d at offset %d", b.BaseOffset(), b.LastOffset(), offset)
		}
		if err != nil {
			return offset, err
		}
		offset, data = b.LastOffset()+1, rest
	}
	return offset, nil
}

// TestReadsDuringSlowWriteAndSync has a write and a sync hang, and reads go on.
func TestReadsDuringSlowWriteAndSync(t *testing.T) {
	hang := &hangingFS{FS: OSFS{}}
	l, _, err := Open(hang, t.TempDir()+"/t-0", Config{}, OpenOptions{Now: testTime})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(buildBatch(t, record.BuildOptions{}, 1, "a"), 0, testTime); err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]func() error{
		"write": func() error {
			_, err := l.Append(buildBatch(t, record.BuildOptions{}, 1, "b"), 0, testTime)
			return err
		},
		"sync": func() error { _, err := l.Flush(); return err },
	} {
		entered, release := hang.arm(name)
		result := make(chan error, 1)
		go func() { result <- block() }()
		<-entered
		end := l.EndOffset()
		if got := readValues(t, l, 0); int64(len(got)) != end {
			t.Errorf("during a %s: %v", name, got)
		}
		if name == "sync" {
			if _, err := l.Append(buildBatch(t, record.BuildOptions{}, 1, "c"), 0, testTime); err != nil {
				t.Error(err)
			}
		}
		close(release)
		if err := <-result; err != nil {
			t.Error(name, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// hangingFS is the real file system, of which one operation can be made to wait.
type hangingFS struct {
	FS
	mu      sync.Mutex
	op      string
	entered chan struct{}
	release chan struct{}
}

func (h *hangingFS) arm(op string) (entered, release chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.op, h.entered, h.release = op, make(chan struct{}), make(chan struct{})
	return h.entered, h.release
}

func (h *hangingFS) wait(op string) {
	h.mu.Lock()
	armed := h.op == op
	if armed {
		h.op = ""
	}
	entered, release := h.entered, h.release
	h.mu.Unlock()
	if armed {
		close(entered)
		<-release
	}
}

func (h *hangingFS) OpenFile(name string, flag int) (File, error) {
	f, err := h.FS.OpenFile(name, flag)
	return &hangingFile{f, h}, err
}

type hangingFile struct {
	File
	fs *hangingFS
}

func (f *hangingFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.wait("write")
	return f.File.WriteAt(p, off)
}

func (f *hangingFile) Sync() error {
	f.fs.wait("sync")
	return f.File.Sync()
}

// TestOpenFilesAreBounded reads from many segments of many logs.
func TestOpenFilesAreBounded(t *testing.T) {
	const maxIdle, logs = 5, 4
	files := NewFileCache(maxIdle)
	for i := range logs {
		l, _ := openTest(t, fmt.Sprintf("%s/t-%d", t.TempDir(), i), Config{SegmentBytes: 200, IndexIntervalBytes: 1}, OpenOptions{Files: files})
		for n := range 40 {
			if _, err := l.Append(buildBatch(t, record.BuildOptions{}, int64(n), "value"), 0, testTime); err != nil {
				t.Fatal(err)
			}
		}
		for offset := range int64(40) {
			readValues(t, l, offset)
		}
		if n := files.OpenFiles(); n > maxIdle+logs {
			t.Fatalf("%d open files", n)
		}
	}
}

// TestCleanOpenReadsNoData counts what opening a log of many segments reads.
func TestCleanOpenReadsNoData(t *testing.T) {
	dir := t.TempDir() + "/t-0"
	cfg := Config{SegmentBytes: 20_000, IndexIntervalBytes: 1000}
	l, _ := openTest(t, dir, cfg, OpenOptions{})
	for i := range 2000 {
		if _, err := l.Append(buildBatch(t, record.BuildOptions{Idempotent: true, ProducerID: 1, BaseSequence: int32(i)}, int64(i), fmt.Sprintf("%0200d", i)), 0, testTime); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	counter := &countingFS{FS: OSFS{}}
	l, rec, err := Open(counter, dir, cfg, OpenOptions{Clean: true, Now: testTime})
	if err != nil || !rec.Clean {
		t.Fatal(rec, err)
	}
	if n := len(l.Segments()); n < 25 || counter.opened > 8 || counter.bytes > 8<<10 {
		t.Errorf("%d segments: opened %d files and read %d bytes", n, counter.opened, counter.bytes)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

type countingFS struct {
	FS
	opened int
	bytes  int
}

func (c *countingFS) OpenFile(name string, flag int) (File, error) {
	c.opened++
	f, err := c.FS.OpenFile(name, flag)
	return &countingFile{f, c}, err
}

type countingFile struct {
	File
	fs *countingFS
}

func (f *countingFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.fs.bytes += n
	return n, err
}
