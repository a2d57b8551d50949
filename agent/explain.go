package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// Limits of explanations.
const (
	// countedBytesMax bounds what is read of a file to count the lines that are not delivered; beyond it their number is estimated.
	countedBytesMax = 64 << 20
	// slowAfter is the age of the oldest unacknowledged line after which the brokers are what is waited for.
	slowAfter = time.Second
)

// Explanation says what becomes of one file.
type Explanation struct {
	Path string `json:"path"`
	// Live says that the running agent was asked; otherwise it is what the checkpoint and the journal know.
	Live bool `json:"live"`
	// Exists says that there is something at the path; File what it is, and Target where it leads to as a symbolic link.
	Exists bool           `json:"exists"`
	Absent string         `json:"absent,omitempty"` // why it does not exist, as far as can be seen
	File   *FileState     `json:"file,omitempty"`
	Target string         `json:"target,omitempty"`
	Inputs []InputOfAFile `json:"inputs"`
}

// FileState is a file as the file system has it.
type FileState struct {
	Dev      uint64    `json:"dev"`
	Ino      uint64    `json:"ino"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
}

// InputOfAFile is what one pipeline's file input makes of a file.
type InputOfAFile struct {
	Pipeline string `json:"pipeline"`
	// Takes says that the input would take the file; Why by what, or why not.
	Takes bool   `json:"takes"`
	Why   string `json:"why"`
	// Position is what is known of the file; nil when nothing is.
	Position *PositionOfAFile `json:"position,omitempty"`
	// Waits are what the file's lines wait for; empty when all is delivered.
	Waits []string `json:"waits,omitempty"`
	// Error is the last trouble with the file or with its brokers.
	Error string `json:"error,omitempty"`
}

// PositionOfAFile is how far a file is.
type PositionOfAFile struct {
	Path       string    `json:"path"` // the name it was first found under
	Identity   string    `json:"identity"`
	Dev        uint64    `json:"dev"`
	Ino        uint64    `json:"ino"`
	Generation uint64    `json:"generation"` // how often it was rewritten
	Seen       time.Time `json:"seen"`
	// Acknowledged is the position: all before it is delivered or dropped on purpose. Read is how far it was read; what lies between is on
	// its way.
	Acknowledged int64 `json:"acknowledged"`
	Read         int64 `json:"read"`
	Size         int64 `json:"size"` // as of the last look; -1 when the file is gone
	LagBytes     int64 `json:"lag_bytes"`
	LagLines     int64 `json:"lag_lines"` // -1: not known
	Estimated    bool  `json:"lag_lines_estimated,omitempty"`
	Open         bool  `json:"open"`
	Renamed      bool  `json:"renamed,omitempty"` // no name of the patterns leads to it any more
}

// look begins an explanation.
func look(path string) (*Explanation, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("explain %s: %w", path, err)
	}
	e := &Explanation{Path: abs, Inputs: []InputOfAFile{}}
	info, err := tail.Stat(abs)
	if err != nil {
		e.Absent = whyAbsent(abs, err)
		return e, nil
	}
	e.Exists = true
	e.File = &FileState{Dev: info.Dev, Ino: info.Ino, Size: info.Size, Modified: time.Unix(0, info.ModTime)}
	if real, err := filepath.EvalSymlinks(abs); err == nil && real != abs {
		e.Target = real
	}
	return e, nil
}

// whyAbsent says why there is nothing to be seen at a path.
func whyAbsent(path string, err error) string {
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("it cannot be looked at: %v", errors.Unwrap(err))
	}
	if target, err := os.Readlink(path); err == nil {
		return fmt.Sprintf("it is a symbolic link to %s, where there is no file", target)
	}
	return "there is no such file"
}

// Explain says which pipelines take a file, how far they are with it and what it waits for.
func (a *Agent) Explain(path string) (*Explanation, error) {
	e, err := look(path)
	if err != nil {
		return nil, err
	}
	e.Live = true
	for _, m := range a.list() {
		switch in := m.input.(type) {
		case *files:
			e.Inputs = append(e.Inputs, in.explain(e))
		case *streams:
			if p := m.pipe.Collect.Pipe; p != nil && filepath.Clean(p.Path) == e.Path {
				e.Inputs = append(e.Inputs, in.explain())
			}
		}
	}
	return e, nil
}

// explain is what a named pipe's input has to say.
func (s *streams) explain() InputOfAFile {
	out := InputOfAFile{Pipeline: s.pipe.Name, Takes: true, Why: "it is the pipeline's named pipe (collect.pipe)", Error: s.trouble()}
	if err := s.waitsFor(); err != nil {
		out.Waits = append(out.Waits, err.Error())
	}
	if s.oldestUnacked(s.cfg.Now()) > 0 {
		out.Waits = append(out.Waits, s.waitsForBrokers())
	}
	return out
}

// explain is one input's part. It is called from any goroutine.
func (r *files) explain(e *Explanation) InputOfAFile {
	out := InputOfAFile{Pipeline: r.pipe.Name}
	var count *lineCount
	r.stepping.Lock()
	s, t := r.lookUp(e)
	out.Takes, out.Why = r.judge(e, s)
	if t != nil {
		out.Position, count = r.position(e, s, t)
		out.Waits = r.waits(s, out.Position)
		out.Why += r.fate(e, s, t)
	}
	out.Error = r.said[place{"file", e.Path}]
	if s != nil && out.Error == "" {
		out.Error = r.said[place{"file", s.path}]
	}
	r.stepping.Unlock()
	count.into(out.Position) // outside the lock: it reads the file
	if t == nil && out.Takes {
		out.Waits = r.waitsUnmet(e)
	}
	if out.Error == "" {
		out.Error = r.trouble()
	}
	return out
}

// lookUp is what is known of the file at a path: by what the file system says now, else by its name.
func (r *files) lookUp(e *Explanation) (*source, *track) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.File != nil {
		id := tail.ID{Dev: e.File.Dev, Ino: e.File.Ino}
		return r.sources[id], r.tracks[id]
	}
	if s := r.byPath[e.Path]; s != nil {
		return s, s.track
	}
	for id, t := range r.tracks {
		if t.path == e.Path {
			return r.sources[id], t
		}
	}
	return nil, nil
}

func readable(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			return p.Err
		}
		return err
	}
	return f.Close()
}

// position is how far a file is; count finds out how many lines are not delivered.
func (r *files) position(e *Explanation, s *source, t *track) (*PositionOfAFile, *lineCount) {
	r.mu.Lock()
	p := positionOf(t)
	r.mu.Unlock()
	if s == nil {
		p.Size = -1
		if info, err := tail.Stat(t.path); err == nil && info.ID == t.id {
			p.Size = info.Size
			p.LagBytes = max(info.Size-p.Acknowledged, 0)
		}
		return p, &lineCount{path: t.path, from: p.Acknowledged, to: p.Size, id: t.id}
	}
	p.Read, p.Open, p.Renamed = s.file.Offset(), s.file.Handle() != nil, s.detached
	if s.file.Compressed() {
		return p, nil // its lines are not those of its bytes
	}
	if e.File != nil && e.File.Dev == t.id.Dev && e.File.Ino == t.id.Ino { // newer than the last look
		p.Size = e.File.Size
		p.LagBytes = max(p.Size-p.Acknowledged, 0)
	}
	count := &lineCount{path: s.path, from: p.Acknowledged, to: p.Size, id: t.id}
	if p.Open {
		if fd, err := syscall.Dup(int(s.file.Handle().Fd())); err == nil {
			count.file = os.NewFile(uintptr(fd), s.path)
		}
	}
	return p, count
}

func positionOf(t *track) *PositionOfAFile {
	return &PositionOfAFile{
		Path: t.path, Identity: t.fileID(), Dev: t.id.Dev, Ino: t.id.Ino, Generation: t.generation, Seen: t.seen,
		Acknowledged: t.acked.Offset, Read: t.acked.Offset, Size: t.size, LagBytes: t.lag(), LagLines: -1,
	}
}

// waits says what the lines of a followed file wait for. It needs stepping.
func (r *files) waits(s *source, p *PositionOfAFile) (out []string) {
	if s == nil {
		if p.LagBytes > 0 {
			out = append(out, "the next scan of the directories")
		}
		return out
	}
	unread := p.Size - p.Read
	if s.file.Compressed() {
		unread = s.file.Unread() // the position is one of the content
	}
	if unread > 0 || !r.work.begun {
		out = append(out, r.waitsToRead()...)
		out = append(out, r.waitsOfItsOwn(s)...)
	}
	if p.Read > p.Acknowledged {
		out = append(out, r.waitsForBrokers())
	}
	switch {
	case s.detached:
		out = append(out, fmt.Sprintf("%s of quiet, after which it is closed: it was renamed or removed", r.cfg.RotateGrace))
	case unread > 0 && len(out) == 0 && s.queued:
		out = append(out, "its turn among the files")
	case unread > 0 && len(out) == 0 && p.Size > r.sizeOf(s):
		out = append(out, "the next look at it, which a change event or a scan brings")
	case unread > 0 && len(out) == 0:
		out = append(out, fmt.Sprintf("the rest of its last line or record, %d bytes so far; after %s without more it is sent as it is", unread, r.cfg.LineIdle))
	}
	return slices.Compact(out)
}

// sizeOf is the file's size as of the last look.
func (r *files) sizeOf(s *source) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.track.size
}

// waitsToRead are what keeps the pipeline from reading. It needs stepping.
func (r *files) waitsToRead() (out []string) {
	r.mu.Lock()
	ready := r.ready
	r.mu.Unlock()
	switch {
	case ready != nil:
		out = append(out, fmt.Sprintf("topic %s: %v", r.pipe.Topic.Name, ready))
	case !r.kept.stored.Load():
		out = append(out, "the first checkpoint, which cannot be written yet")
	case r.kept.full():
		out = append(out, "room in the journal, which is full (--journal-bytes-max)")
	case r.kept.trouble() != nil:
		out = append(out, r.journalTrouble())
	case !r.room():
		out = append(out, "memory: what is on its way takes all that it may")
	case !r.rate.ready(r.cfg.Now()):
		out = append(out, "the rate limit (collect.file.rate_limit)")
	}
	return out
}

func (r *runner) journalTrouble() string {
	return fmt.Sprintf("the journal, which cannot be written to: %v", r.kept.trouble())
}

func (r *runner) waitsForBrokers() string {
	if r.kept.trouble() != nil {
		return r.journalTrouble()
	}
	age := r.oldestUnacked(r.cfg.Now())
	if age < slowAfter {
		return fmt.Sprintf("acknowledgements of topic %s, which are on their way", r.pipe.Topic.Name)
	}
	return fmt.Sprintf("the brokers of topic %s, which have acknowledged nothing for %s", r.pipe.Topic.Name, age.Round(100*time.Millisecond))
}

// waitsUnmet says what a file waits for that the input takes and does not follow yet.
func (r *files) waitsUnmet(e *Explanation) []string {
	if !e.Exists {
		return []string{"the file"}
	}
	r.stepping.Lock()
	defer r.stepping.Unlock()
	id := tail.ID{Dev: e.File.Dev, Ino: e.File.Ino}
	if looksCompressed(e.Path) {
		if r.surveys[id] != nil {
			return []string{"its content to be compared with that of the files that it may be a compressed copy of"}
		}
		return []string{fmt.Sprintf("%s without a change, after which a compressed file is whole", r.cfg.RotateGrace)}
	}
	if _, ok := r.suspects[id]; ok || e.File.Size == 0 {
		return []string{"a moment in which it turns out whether it is the copy of a followed file (copytruncate) or a file of its own"}
	}
	return []string{"the next scan of the directories, which comes at least every 10 s"}
}

// trouble is the last failure to produce, while lines wait.
func (r *runner) trouble() string {
	x := r.lastError.Load()
	if x == nil || r.oldestUnacked(r.cfg.Now()) == 0 {
		return ""
	}
	return (*x).Error()
}

// lineCount counts the lines between two places of a file.
type lineCount struct {
	file     *os.File // nil: by the path, when it still leads to the file
	path     string
	id       tail.ID
	from, to int64
}

// into puts the number into a position; a file that cannot be read any more leaves it unknown.
func (c *lineCount) into(p *PositionOfAFile) {
	if c == nil || p == nil {
		return
	}
	f := c.file
	if f == nil {
		var err error
		if f, err = os.OpenFile(c.path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
			return
		}
	}
	defer f.Close() // only read from
	if info, err := tail.InfoOf(f); err != nil || info.ID != c.id {
		return
	}
	lines, read := countLines(f, c.from, min(c.to, c.from+countedBytesMax))
	if left := c.to - c.from - read; left > 0 && read > 0 {
		p.Estimated = true
		lines += left * lines / read
	}
	p.LagLines = lines
}

// countLines counts newlines, and one more for a rest without.
func countLines(r io.ReaderAt, from, to int64) (lines, read int64) {
	buf := make([]byte, 256<<10)
	last := byte('\n')
	for from < to {
		n, err := r.ReadAt(buf[:min(int64(len(buf)), to-from)], from)
		if n > 0 {
			lines += int64(bytes.Count(buf[:n], []byte{'\n'}))
			last = buf[n-1]
		}
		read += int64(n)
		from += int64(n)
		if err != nil || n == 0 {
			break
		}
	}
	if last != '\n' {
		lines++
	}
	return lines, read
}
