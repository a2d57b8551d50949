//go:build unix

// Package journald takes the entries of systemd's journal from journalctl, which it asks for what follows a cursor. It hands over an entry
// as journalctl prints it, a JSON object on a line, and the cursor with it, so that who keeps both neither loses nor doubles an entry.
package journald

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/sluice-io/sluice/agent/stream"
	"github.com/sluice-io/sluice/agent/tail"
)

const (
	// restartMin and Max bound the pause before journalctl is started again.
	restartMin = time.Second
	restartMax = 30 * time.Second
	// steadyAfter is how long it must have run for the pauses to begin anew.
	steadyAfter = time.Minute
	// complaintBytesMax cuts what it says on standard error.
	complaintBytesMax = 4 << 10
)

// Config configures a Feed.
type Config struct {
	// Command is journalctl, with what is to stand before the arguments that the feed gives it.
	Command []string
	// Units, Matches and Boot choose entries, as journalctl does.
	Units   []string
	Matches []string
	Boot    bool
	// Directory holds journal files; "" means the machine's own.
	Directory string
	// AtEnd begins with entries that come from now on, where no cursor says otherwise.
	AtEnd bool
	// IgnoreOlder passes over entries that are older, where no cursor says otherwise; 0: none.
	IgnoreOlder time.Duration
	// Once takes what is there and ends.
	Once bool
	// EntryBytesMax cuts longer entries; 0 means 1 MiB.
	EntryBytesMax int
	Origin        *stream.Origin
}

// Feed takes entries from the journal.
type Feed struct {
	log     *slog.Logger
	cfg     Config
	waiting stream.Waiting
	cursor  string // of the last entry that is kept; it belongs to Run
	itself  bool   // the entry of the cursor is wanted too; it belongs to Run

	mu    sync.Mutex
	stats stream.Stats // guarded by mu
}

// New makes a feed.
func New(log *slog.Logger, cfg Config) *Feed {
	if cfg.EntryBytesMax == 0 {
		cfg.EntryBytesMax = tail.LineBytesMaxDefault
	}
	f := &Feed{log: log.With("command", cfg.Command[0]), cfg: cfg, stats: stream.Stats{Exits: map[string]int64{}}}
	f.waiting.Begin(errors.New("the journal is not read yet"))
	return f
}

// Places that Seek takes beside cursors: no entry's cursor is like these.
const (
	AtStart = "start" // the beginning of the journal, whatever Config says
	AtEnd   = "end"   // entries that come from now on
)

// Seek says behind which entry to go on, or, with itself, at which. It is called before Run.
func (f *Feed) Seek(cursor string, itself bool) { f.cursor, f.itself = cursor, itself }

// Stats implements stream.Feed.
func (f *Feed) Stats() stream.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Exits = maps.Clone(s.Exits)
	s.Waiting = f.waiting.Get()
	return s
}

// Run implements stream.Feed.
func (f *Feed) Run(ctx context.Context, to stream.Taker) {
	wait := restartMin
	for ctx.Err() == nil {
		begun := time.Now()
		err := f.once(ctx, to)
		if errors.Is(err, stream.ErrOver) || f.cfg.Once && err == nil || ctx.Err() != nil {
			return
		}
		f.waiting.Set(f.log, "read the journal", err)
		if time.Since(begun) >= steadyAfter {
			wait = restartMin
		}
		stream.Pause(ctx, wait)
		wait = min(wait*2, restartMax)
	}
}

// once reads until journalctl ends. It returns nil when that was to be.
func (f *Feed) once(ctx context.Context, to stream.Taker) error {
	if f.cursor == AtEnd || f.cursor == "" && f.cfg.AtEnd {
		if err := f.findEnd(ctx, to); err != nil {
			return err
		}
	}
	return f.read(ctx, to, f.arguments())
}

// arguments are journalctl's, for what follows the cursor.
func (f *Feed) arguments() []string {
	args := f.common()
	switch {
	case f.cursor == AtStart, f.cursor == AtEnd: // which the journal has none of: what comes is from its beginning
	case f.cursor == "" && f.cfg.IgnoreOlder > 0:
		args = append(args, fmt.Sprintf("--since=@%d", time.Now().Add(-f.cfg.IgnoreOlder).Unix()))
	case f.cursor != "" && f.itself:
		args = append(args, "--cursor="+f.cursor)
	case f.cursor != "":
		args = append(args, "--after-cursor="+f.cursor)
	}
	if !f.cfg.Once {
		args = append(args, "--follow", "--no-tail")
	}
	return append(args, f.chosen()...)
}

func (f *Feed) common() []string {
	args := []string{"--output=json", "--all", "--no-pager", "--quiet"}
	if f.cfg.Directory != "" {
		args = append(args, "--directory="+f.cfg.Directory)
	}
	return args
}

func (f *Feed) chosen() (args []string) {
	if f.cfg.Boot {
		args = append(args, "--boot")
	}
	for _, u := range f.cfg.Units {
		args = append(args, "--unit="+u)
	}
	return append(args, f.cfg.Matches...)
}

// findEnd takes the cursor of the newest entry, whatever it is about, and has it kept: a restart before the first entry that is wanted must
// not lose it.
func (f *Feed) findEnd(ctx context.Context, to stream.Taker) error {
	last := &newest{}
	end := Feed{log: f.log, cfg: f.cfg, stats: stream.Stats{Exits: map[string]int64{}}}
	if err := end.read(ctx, last, append(f.common(), "--lines=1")); err != nil {
		return err
	}
	if last.cursor == "" {
		return nil // an empty journal: what comes is from its beginning
	}
	if err := to.Take(&stream.Offer{Origin: f.cfg.Origin, Cursor: last.cursor, More: true}); err != nil {
		return err
	}
	f.cursor = last.cursor
	return nil
}

// newest is a taker that wants the cursor only.
type newest struct{ cursor string }

// Take implements stream.Taker.
func (n *newest) Take(o *stream.Offer) error {
	n.cursor = o.Cursor
	return nil
}

// Drop implements stream.Taker.
func (n *newest) Drop(string, int64, int64) {}

// read runs journalctl once and hands over what it prints.
func (f *Feed) read(ctx context.Context, to stream.Taker, args []string) error {
	program := stream.Program{Command: append(append([]string{}, f.cfg.Command...), args...)}
	run, err := program.Start()
	if err != nil {
		return err
	}
	f.count(func(s *stream.Stats) { s.Starts++ })
	f.waiting.Set(f.log, "read the journal", nil)
	complaint := ""
	stdout, stderr := &stream.Output{File: run.Stdout}, &stream.Output{File: run.Stderr}
	var reading sync.WaitGroup
	var readErr error
	reading.Go(func() { readErr = f.entries(stdout, to) })
	reading.Go(func() {
		lines := stream.Lines{LineBytesMax: complaintBytesMax, PartialAfter: time.Second}
		_ = lines.Copy(stderr, stream.Each(func(line string) { complaint = line }))
	})
	select {
	case <-run.Ended():
	case <-ctx.Done():
		run.Stop(stream.KillAfter)
	}
	stdout.Finish()
	stderr.Finish()
	reading.Wait()
	status := run.Reap()
	f.count(func(s *stream.Stats) { s.Exits[status]++ })
	err = errors.Join(run.Stdout.Close(), run.Stderr.Close(), readErr)
	if err == nil && (status != "0" || !f.cfg.Once && len(args) > 0 && !strings.HasPrefix(args[len(args)-1], "--lines")) {
		err = fmt.Errorf("%s ended (%s): %s", f.cfg.Command[0], status, complaint)
	}
	return err
}

func (f *Feed) count(change func(*stream.Stats)) {
	f.mu.Lock()
	change(&f.stats)
	f.mu.Unlock()
}

// entries hands over what is printed whole; the rest will be asked for again.
func (f *Feed) entries(r io.Reader, to stream.Taker) error {
	frame := &framer{bytesMax: f.cfg.EntryBytesMax, cursor: f.cursor}
	in := tail.NewStream(frame.frame)
	for {
		_, err := in.Read(r)
		o := stream.Offer{Origin: f.cfg.Origin, More: in.Full()}
		for in.Next(&o.Chunk, tail.Whole) {
			o.Cursor = frame.cursor
			if err := to.Take(&o); err != nil {
				return err
			}
			f.cursor, f.itself = frame.cursor, false
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read what journalctl prints: %w", err)
		}
	}
}

const (
	// entryBytesMax bounds an entry in memory. The cursor of one beyond it is not known.
	entryBytesMax = 64 << 20
	// entriesMax bounds the entries of a chunk.
	entriesMax = 8192
)

// framer finds entries and the cursor of the last.
type framer struct {
	bytesMax int
	cursor   string
	skip     bool // in the rest of an entry beyond entryBytesMax
}

func (f *framer) frame(c *tail.Chunk, data []byte, at int, _ bool) int {
	for at < len(data) && len(c.Lines) < entriesMax {
		n := bytes.IndexByte(data[at:], '\n')
		if n < 0 {
			if f.skip || len(data)-at > entryBytesMax {
				at = f.giveUp(c, data, at)
			}
			return at
		}
		if f.skip {
			f.skip = false
			c.Skipped.TooLong += int64(n + 1)
			at += n + 1
			continue
		}
		if cursor, ok := CursorOf(data[at : at+n]); ok {
			f.cursor = cursor
		}
		f.add(c, at, n, at+n+1)
		at += n + 1
	}
	return at
}

// add adds an entry of n bytes, cut at the limit.
func (f *framer) add(c *tail.Chunk, at, n, next int) {
	if n == 0 {
		c.Skipped.Frame += int64(next - at)
		return
	}
	l := tail.Line{Start: uint32(at), End: uint32(at + n), Next: uint32(next)}
	if n > f.bytesMax {
		l.End, l.Next, l.Cut = uint32(at+f.bytesMax), uint32(at+f.bytesMax), true
		c.Skipped.TooLong += int64(next - at - f.bytesMax)
		c.Skipped.Cuts++
	}
	c.Lines = append(c.Lines, l)
}

// giveUp takes the beginning of an entry that is too long to be held, and skips the rest.
func (f *framer) giveUp(c *tail.Chunk, data []byte, at int) int {
	if !f.skip {
		f.skip = true
		f.add(c, at, len(data)-at, len(data))
	} else {
		c.Skipped.TooLong += int64(len(data) - at)
	}
	return len(data)
}

// CursorOf finds the cursor in an entry. In the text of a value the name's quotes would be escaped.
func CursorOf(entry []byte) (string, bool) {
	_, rest, ok := bytes.Cut(entry, []byte(`"__CURSOR"`))
	if !ok {
		return "", false
	}
	rest = bytes.TrimLeft(rest, " \t:")
	if len(rest) == 0 || rest[0] != '"' {
		return "", false
	}
	value, _, ok := bytes.Cut(rest[1:], []byte(`"`))
	if !ok || len(value) == 0 {
		return "", false
	}
	return string(value), true
}
