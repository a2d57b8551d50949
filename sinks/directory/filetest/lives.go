// Package filetest tests the sink of files on any file system: what the file system has to do, and lives of workers that are killed and frozen at each of their
// steps. Tests alone use it.
package filetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
	"github.com/sluice-io/sluice/sinks/directory"
)

// Fresh makes an empty file system.
type Fresh func(t testing.TB) directory.FS

// partitioned is a sink whose claims have rows for several paths.
const partitioned = `pipeline: p
collect: {file: {include: [/x]}}
process: [{parse: json}]
sink:
  directory:
    path: unused
    format: %s
    compression: none
    partition: {path: 'dt=%%Y-%%m-%%d/k={k}', time: t, success: true, lateness: 0s}
`

func parse(t testing.TB, text string) *pipelines.Pipeline {
	t.Helper()
	pipes, err := pipelines.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return pipes[0]
}

// process is a sink worker's process as far as the file system sees it.
type process struct {
	pipe *pipelines.Pipeline
	sink *directory.Sink
}

func start(pipe *pipelines.Pipeline, f directory.FS) (*process, error) {
	s, err := directory.NewOn(slog.New(slog.DiscardHandler), pipe.Sinks[0], "test", func() (directory.FS, error) { return f, nil })
	if err != nil {
		return nil, err
	}
	_, err = s.Check(context.Background())
	return &process{pipe, s}, err
}

var topicID = sinks.TopicID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

func claim(lo, hi int64) sinks.Claim {
	return sinks.Claim{Pipeline: "p", Topic: "p", TopicID: topicID, Partition: 3, Lo: lo, Hi: hi}
}

// day is the time of records and events, one day for each ten offsets.
func day(offset int64) time.Time {
	return time.Date(2026, 11, 1+int(offset/10), 12, 0, 0, 0, time.UTC)
}

// block has the rows of a range, which go to three paths.
func (p *process) block(lo, hi int64, present []sinks.Range) (sinks.Block, error) {
	b, err := p.sink.NewBlock()
	if err != nil {
		return nil, err
	}
	for i := lo; i <= hi; i++ {
		if slices.ContainsFunc(present, func(r sinks.Range) bool { return r.Lo <= i && i <= r.Hi }) {
			continue
		}
		var e pipelines.Event
		meta := pipelines.Meta{Topic: "p", Partition: 3, Offset: i, Time: day(i)}
		if err := p.pipe.ReadRecord(&e, meta, fmt.Appendf(nil, `{"n":%d,"k":%d,"t":%q}`, i, i%3, day(i).Format(time.RFC3339))); err != nil {
			return nil, err
		}
		if err := b.Append(&e); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// store does what the worker does with a claim after it got the partition.
func (p *process) store(lo, hi int64) error {
	c := claim(lo, hi)
	stored, err := p.sink.Stored(context.Background(), c)
	if err != nil {
		return err
	}
	b, err := p.block(lo, hi, stored.Present)
	if err != nil || b.Rows() == 0 {
		return err
	}
	return p.sink.Write(context.Background(), &sinks.Batch{Claim: c, Block: b, Identity: fmt.Sprint(c.Identity(), stored.Present)})
}

// stored reads everything back: each offset with its path, which must be there once. It refuses rows in the wrong place.
func stored(t testing.TB, f directory.FS) map[int64]string {
	t.Helper()
	rows := map[int64]string{}
	err := directory.ReadFrom(f, func(row directory.Row) error {
		if before, twice := rows[row.Offset]; twice {
			return fmt.Errorf("offset %d is in %s and in %s", row.Offset, before, row.File)
		}
		dir := filepath.ToSlash(filepath.Dir(row.File))
		if want := fmt.Sprintf("dt=%s/k=%d", day(row.Offset).Format(time.DateOnly), row.Offset%3); dir != want {
			return fmt.Errorf("offset %d is in %s, want %s", row.Offset, dir, want)
		}
		if row.Fields["n"] != row.Offset {
			return fmt.Errorf("offset %d has %v", row.Offset, row.Fields)
		}
		rows[row.Offset] = row.File
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func wantOffsets(t testing.TB, rows map[int64]string, n int64) {
	t.Helper()
	for i := range n {
		if rows[i] == "" {
			t.Fatalf("offset %d is missing among %d rows", i, len(rows))
		}
	}
	if int64(len(rows)) != n {
		t.Fatalf("%d rows, want %d", len(rows), n)
	}
}

// leftovers are the temporary files and directories that are there.
func leftovers(t testing.TB, f directory.FS, dir string) (found []string) {
	t.Helper()
	entries, err := f.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := strings.TrimPrefix(dir+"/"+e.Name, "/")
		switch {
		case strings.HasPrefix(e.Name, ".check."), strings.HasPrefix(e.Name, "._schema-"): // nobody's claim
		case strings.HasSuffix(e.Name, ".tmp"):
			found = append(found, name)
		case e.Dir:
			found = append(found, leftovers(t, f, name)...)
		}
	}
	return found
}

// errKilled is what a process gets that was killed: nothing it asks for is done any more.
var errKilled = errors.New("killed")

// bytesPerStep are written in one step.
const bytesPerStep = 97

// killFS lets a process do so many steps; each of its calls is one, and each bytesPerStep bytes written. answerLost has the last call be done and its answer lost.
type killFS struct {
	directory.FS
	left       int
	answerLost bool
	onKill     func() // called at the first step that is not done
}

func (f *killFS) step() (do bool, err error) {
	if f.left <= 0 {
		if f.onKill != nil {
			f.onKill()
		}
		return false, errKilled
	}
	f.left--
	if f.left > 0 || !f.answerLost {
		return true, nil
	}
	return true, errKilled
}

func (f *killFS) List(dir string) ([]directory.Entry, error) {
	if do, err := f.step(); !do {
		return nil, err
	}
	return f.FS.List(dir)
}

func (f *killFS) Create(name string) (directory.File, error) {
	do, err := f.step()
	if !do {
		return nil, err
	}
	file, createErr := f.FS.Create(name)
	if createErr == nil && err != nil {
		file.Close()
		return nil, err
	}
	return &killFile{f, file}, createErr
}

func (f *killFS) Open(name string) (io.ReadCloser, error) {
	if do, err := f.step(); !do {
		return nil, err
	}
	return f.FS.Open(name)
}

func (f *killFS) Rename(from, to string) error {
	do, err := f.step()
	if !do {
		return err
	}
	return errors.Join(f.FS.Rename(from, to), err)
}

func (f *killFS) Remove(name string) error {
	do, err := f.step()
	if !do {
		return err
	}
	return errors.Join(f.FS.Remove(name), err)
}

type killFile struct {
	fs *killFS
	directory.File
}

func (f *killFile) Write(b []byte) (int, error) {
	n := min(len(b), f.fs.left*bytesPerStep)
	f.fs.left -= (n + bytesPerStep - 1) / bytesPerStep
	written, err := f.File.Write(b[:n])
	if err == nil && n < len(b) {
		err = errKilled
	}
	return written, err
}

func (f *killFile) Close() error {
	do, err := f.fs.step()
	if !do {
		f.File.Close()
		return err
	}
	return errors.Join(f.File.Close(), err)
}

// Killed kills a process that writes two claims of several paths at its calls, before and after they are done, and within its writes; another then
// writes them. Whatever is there in between can be read, and in the end each row is stored once, in its place, and nothing is left over. stride is how many steps lie
// between two deaths.
func Killed(t *testing.T, fresh Fresh, format string, stride int) {
	pipe := parse(t, fmt.Sprintf(partitioned, format))
	for steps, finished := 0, false; !finished; steps += stride {
		for _, lost := range []bool{false, true} {
			finished = killedOnce(t, pipe, fresh(t), steps, lost)
		}
	}
}

// killedOnce is one life and the next; finished says that the first got to its end.
func killedOnce(t *testing.T, pipe *pipelines.Pipeline, f directory.FS, steps int, answerLost bool) (finished bool) {
	t.Helper()
	err := life(pipe, &killFS{FS: f, left: steps, answerLost: answerLost})
	if err != nil && !errors.Is(err, errKilled) {
		t.Fatalf("after %d steps: %v", steps, err)
	}
	nextLife(t, pipe, f, fmt.Sprintf("after %d steps", steps))
	return err == nil
}

// life stores twelve records in two claims.
func life(pipe *pipelines.Pipeline, f directory.FS) error {
	p, err := start(pipe, f)
	if err == nil {
		err = p.store(0, 8)
	}
	if err == nil {
		err = p.store(9, 11)
	}
	return err
}

// nextLife is that of a worker that nobody disturbs, after one that was killed.
func nextLife(t *testing.T, pipe *pipelines.Pipeline, f directory.FS, what string) {
	t.Helper()
	stored(t, f)
	if err := life(pipe, f); err != nil {
		t.Fatalf("the second process, %s: %v", what, err)
	}
	wantOffsets(t, stored(t, f), 12)
	if left := leftovers(t, f, ""); len(left) > 0 {
		t.Fatalf("%s: %v are left over", what, left)
	}
}

// Frozen stops a process at its calls, has another take the partition over, store the claim and go on, and lets the first go on as if nothing had
// been. It must not store anything twice, nor take anything away, even where it never looks at a clock.
func Frozen(t *testing.T, fresh Fresh, stride int) {
	pipe := parse(t, fmt.Sprintf(partitioned, "json"))
	for steps, finished := 0, false; !finished; steps += stride {
		f := fresh(t)
		frozen := &freezeFS{FS: f, left: steps}
		frozen.wake = func() {
			p, err := start(pipe, f)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range [][2]int64{{0, 8}, {9, 11}} {
				if err := p.store(c[0], c[1]); err != nil {
					t.Fatal(err)
				}
			}
			if steps%2 == 0 { // and goes on
				if err := p.store(12, 14); err != nil {
					t.Fatal(err)
				}
			}
		}
		p, err := start(pipe, frozen)
		if err == nil {
			err = p.store(0, 8)
		}
		if err == nil {
			err = p.store(9, 11)
		}
		finished = frozen.left >= 0
		if err != nil && finished {
			t.Fatal(err)
		}
		n := int64(12)
		if steps%2 == 0 && !finished {
			n = 15
		}
		wantOffsets(t, stored(t, f), n)
		// The first may get the partition back.
		for try := 0; ; try++ {
			if err = p.store(9, 14); err == nil || try > 3 {
				break
			}
		}
		if err != nil {
			t.Fatalf("frozen after %d steps, with the partition again: %v", steps, err)
		}
		wantOffsets(t, stored(t, f), 15)
	}
}

// freezeFS freezes once, before the call after so many.
type freezeFS struct {
	directory.FS
	left int
	wake func() // what happens while it is frozen
}

func (f *freezeFS) step() {
	if f.left--; f.left == -1 {
		f.wake()
	}
}

func (f *freezeFS) List(dir string) ([]directory.Entry, error) { f.step(); return f.FS.List(dir) }
func (f *freezeFS) Create(name string) (directory.File, error) {
	f.step()
	return f.FS.Create(name)
}
func (f *freezeFS) Open(name string) (io.ReadCloser, error) { f.step(); return f.FS.Open(name) }
func (f *freezeFS) Rename(from, to string) error            { f.step(); return f.FS.Rename(from, to) }
func (f *freezeFS) Remove(name string) error                { f.step(); return f.FS.Remove(name) }

// LateRenames: a rename that was not answered is done later, when its process has tried again: then the same files count, once.
func LateRenames(t *testing.T, fresh Fresh) {
	pipe := parse(t, fmt.Sprintf(partitioned, "json"))
	for late := 1; late < 12; late++ {
		f := fresh(t)
		slow := &slowRenames{FS: f, after: late}
		p, err := start(pipe, slow)
		if err != nil {
			t.Fatal(err)
		}
		var errs []error
		for _, c := range [][2]int64{{0, 8}, {9, 11}} {
			for try := 0; ; try++ {
				err := p.store(c[0], c[1])
				if err == nil {
					break
				}
				if errs = append(errs, err); try > 5 {
					t.Fatalf("late %d: %v", late, errs)
				}
			}
		}
		wantOffsets(t, stored(t, f), 12)
	}
}

var errNoAnswer = errors.New("no answer")

// slowRenames does not answer one rename, and does it at the second call after it.
type slowRenames struct {
	directory.FS
	after   int
	pending func() error
	wait    int
}

func (f *slowRenames) Rename(from, to string) error {
	if f.after--; f.after == 0 {
		f.pending, f.wait = func() error { return f.FS.Rename(from, to) }, 2
		return errNoAnswer
	}
	f.land()
	return f.FS.Rename(from, to)
}

func (f *slowRenames) List(dir string) ([]directory.Entry, error) {
	f.land()
	return f.FS.List(dir)
}

func (f *slowRenames) land() {
	if f.wait--; f.wait == 0 && f.pending != nil {
		_ = f.pending() // whatever comes of it, nobody hears
		f.pending = nil
	}
}

// Deadline: a claim whose files take longer than its deadline is stored with the next try, from the files that are there.
func Deadline(t *testing.T, fresh Fresh) {
	pipe := parse(t, fmt.Sprintf(partitioned, "json"))
	f := fresh(t)
	counted := &countFS{FS: f}
	p, err := start(pipe, counted)
	if err != nil {
		t.Fatal(err)
	}
	c := claim(0, 8)
	if _, err := p.sink.Stored(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	b, err := p.block(0, 8, nil)
	if err != nil {
		t.Fatal(err)
	}
	batch := &sinks.Batch{Claim: c, Block: b, Identity: "x"}
	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := p.sink.Write(past, batch); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if rows := stored(t, f); len(rows) != 0 {
		t.Fatalf("%d rows are stored after the deadline", len(rows))
	}
	files := counted.created
	if _, err := p.sink.Stored(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := p.sink.Write(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	wantOffsets(t, stored(t, f), 9)
	if counted.created != files+1 { // the ledger's entry
		t.Errorf("%d files were made by the second try", counted.created-files)
	}
}

type countFS struct {
	directory.FS
	created int
}

func (f *countFS) Create(name string) (directory.File, error) {
	f.created++
	return f.FS.Create(name)
}
