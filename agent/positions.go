package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/internal/dirlock"
	"github.com/sluice-io/sluice/pipelines"
)

// positionsFormat and positionsVersion name the document of exported positions.
const (
	positionsFormat  = "sluice-positions"
	positionsVersion = 1
	// positionsBytesMax bounds what is read of such a document.
	positionsBytesMax = 256 << 20
)

// Positions are how far the files of pipelines are, and their other inputs: what `sluice agent positions export` writes and import reads.
type Positions struct {
	Format    string                `json:"format"`
	Version   int                   `json:"version"`
	Pipelines []PositionsOfPipeline `json:"pipelines"`
}

// PositionsOfPipeline are those of one pipeline, in order of path.
type PositionsOfPipeline struct {
	Pipeline string         `json:"pipeline"`
	Files    []FilePosition `json:"files"`
	// Input is what the pipeline collects from, where that is not files; Cursor where it goes on, if it can be asked for what follows a cursor.
	Input  string       `json:"input,omitempty"`
	Cursor *savedCursor `json:"cursor,omitempty"`
	// Journal is what its journal holds.
	Journal *JournalState     `json:"journal,omitempty"`
	saved   savedPipeline     // as stored, with what the journal adds
	acked   map[tail.ID]int64 // as the checkpoint has it
}

// JournalState is what a pipeline's journal holds: for an input without files all that it took and that is not delivered.
type JournalState struct {
	Bytes            int64 `json:"bytes"`
	UnsettledBatches int64 `json:"unsettled_batches"`
	UnsettledLines   int64 `json:"unsettled_lines"`
}

// FilePosition is how far one file is: all before the offset is delivered, dropped on purpose, or in the journal on its way.
type FilePosition struct {
	savedFile
	// Size is the file's now, -1 when its name does not lead to it any more.
	Size int64 `json:"size"`
}

func newPositions() *Positions { return &Positions{Format: positionsFormat, Version: positionsVersion} }

func (p *Positions) add(name string, s savedPipeline, acked map[tail.ID]int64, journal *JournalState) {
	of := PositionsOfPipeline{Pipeline: name, Files: []FilePosition{}, Input: s.Input, Cursor: s.Cursor, Journal: journal, saved: s, acked: acked}
	if s.Cursor != nil {
		of.Input = s.Cursor.Input
	}
	for _, f := range s.Files {
		x := FilePosition{savedFile: f, Size: -1}
		if info, err := tail.Stat(f.Path); err == nil && info.Dev == f.Dev && info.Ino == f.Ino {
			x.Size = info.Size
		}
		of.Files = append(of.Files, x)
	}
	slices.SortFunc(of.Files, func(a, b FilePosition) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Ino, b.Ino))
	})
	p.Pipelines = append(p.Pipelines, of)
}

// Positions are those of the running agent: what is acknowledged.
func (a *Agent) Positions() *Positions {
	a.saving.Lock()
	defer a.saving.Unlock()
	all, journals := map[string]savedPipeline{}, map[string]*JournalState{}
	maps.Copy(all, a.others)
	for _, m := range a.list() {
		s, moved, known := m.snapshot()
		if moved {
			m.soil() // it is not stored by being asked for
		}
		if known {
			all[m.pipe.Name] = s
			acc := m.snapshotAccount()
			journals[m.pipe.Name] = &JournalState{Bytes: acc.JournalBytes, UnsettledBatches: acc.JournalBatches, UnsettledLines: acc.InFlight.Lines}
		}
	}
	out := newPositions()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out.add(name, all[name], nil, journals[name])
	}
	return out
}

// Ask asks the agent that runs on a state directory for its positions; ErrNotRunning when none does.
func Ask(ctx context.Context, state string) (*Positions, error) {
	p := &Positions{}
	return p, call(ctx, state, http.MethodGet, "/v1/positions", nil, p)
}

// AskExplain asks the agent that runs on a state directory about a file; ErrNotRunning when none does.
func AskExplain(ctx context.Context, state, path string) (*Explanation, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("explain %s: %w", path, err)
	}
	e := &Explanation{}
	return e, call(ctx, state, http.MethodGet, "/v1/explain", url.Values{"path": {abs}}, e)
}

// AskForgetVanished has the agent that runs on a state directory forget the positions of files that are gone; ErrNotRunning when none does.
func AskForgetVanished(ctx context.Context, state string) (int, error) {
	var f forgotten
	return f.Forgotten, call(ctx, state, http.MethodPost, "/v1/positions/forget-vanished", nil, &f)
}

// State is the state directory of an agent that does not run, held until Close.
type State struct {
	log   *slog.Logger
	dir   string
	lock  *dirlock.Lock
	saved saved
}

// OpenState takes the state directory of an agent that does not run.
func OpenState(ctx context.Context, log *slog.Logger, dir string) (*State, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("open the state directory (--state): %w", err)
	}
	lock, err := lockDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	s := &State{log: log, dir: dir, lock: lock}
	if s.saved, err = peekCheckpoint(dir); err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	if s.saved.Pipelines == nil {
		s.saved.Pipelines = map[string]savedPipeline{}
	}
	return s, nil
}

// Close lets go of the directory.
func (s *State) Close() error { return s.lock.Release() }

// peekCheckpoint reads the newest whole checkpoint and leaves all as it is.
func peekCheckpoint(dir string) (saved, error) {
	c := checkpointFile{dir: dir}
	for _, suffix := range []string{"", ".prev"} {
		s, err := c.loadOne(c.path(suffix))
		if err == nil || !errors.Is(err, errNotWhole) && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
	}
	return saved{}, nil
}

// Positions are how far the files are by the checkpoint and the journals together. Nothing is changed.
func (s *State) Positions() (*Positions, error) {
	out := newPositions()
	for _, name := range slices.Sorted(maps.Keys(s.saved.Pipelines)) {
		p := s.saved.Pipelines[name]
		j, loaded, err := s.openJournal(name, p, lookFS{})
		if err != nil {
			return nil, err
		}
		acked := map[tail.ID]int64{}
		for _, f := range p.Files {
			acked[tail.ID{Dev: f.Dev, Ino: f.Ino}] = f.Offset
		}
		state := &JournalState{UnsettledBatches: int64(len(loaded.Unsettled))}
		for _, b := range loaded.Unsettled {
			state.UnsettledLines += b.Lines
		}
		if j != nil {
			state.Bytes, _ = j.Bytes()
		}
		out.add(name, replayed(p, loaded), acked, state)
	}
	return out, nil
}

// openJournal opens the journal of a pipeline; there is none where none was written.
func (s *State) openJournal(name string, p savedPipeline, fsys journal.FS) (*journal.Journal, *journal.Loaded, error) {
	dir := filepath.Join(s.dir, journalsDir, name)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, &journal.Loaded{}, nil
	}
	return journal.Open(s.log, dir, journal.Config{FS: fsys, From: p.Journal})
}

// replayed are the positions of a checkpoint with what a journal adds.
func replayed(p savedPipeline, loaded *journal.Loaded) savedPipeline {
	f := &files{runner: &runner{log: slog.New(slog.DiscardHandler), cfg: Config{Now: time.Now}}, tracks: map[tail.ID]*track{}}
	f.restore(p, true)
	f.replay(loaded.Moves)
	out := p
	out.Files, out.Gone = nil, nil
	f.saveLocked(&out) // nobody else knows of it
	for i := range loaded.Moves {
		if input := loaded.Moves[i].Input; input != inputFile {
			at, _ := cmp.Or(p.Cursor, &savedCursor{}).moved(input, loaded.Moves)
			out.Cursor = &at
			break
		}
	}
	return out
}

// Change changes the positions of a pipeline and stores them. What lies in its journal stays, and is settled at the next start as ever.
func (s *State) Change(name string, change func(*[]FilePosition) error) error {
	return s.change(name, func(p *savedPipeline) error {
		all := newPositions()
		all.add(name, *p, nil, nil)
		list := all.Pipelines[0].Files
		if err := change(&list); err != nil {
			return err
		}
		p.Files = make([]savedFile, len(list))
		for i := range list {
			p.Files[i] = list[i].savedFile
		}
		return nil
	})
}

// change changes what is stored of a pipeline.
func (s *State) change(name string, change func(*savedPipeline) error) error {
	p := s.saved.Pipelines[name]
	j, loaded, err := s.openJournal(name, p, journal.OSFS{}) // which makes durable what the new positions rely on
	if err != nil {
		return err
	}
	p = replayed(p, loaded)
	if j != nil {
		p.Journal = j.Next()
		if err := j.Close(); err != nil {
			return fmt.Errorf("close the journal: %w", err)
		}
	}
	if err := change(&p); err != nil {
		return err
	}
	next := saved{Pipelines: maps.Clone(s.saved.Pipelines)}
	next.Pipelines[name] = p
	if err := (&checkpointFile{dir: s.dir, log: s.log}).save(next); err != nil {
		return err
	}
	s.saved = next
	return nil
}

// Pipelines are those that the checkpoint knows, by name.
func (s *State) Pipelines() []string { return slices.Sorted(maps.Keys(s.saved.Pipelines)) }

// Explain says what the checkpoint and the journals know of a file, and what the file inputs of pipes, which may be none, would make of it.
func (s *State) Explain(path string, pipes []*pipelines.Pipeline) (*Explanation, error) {
	e, err := look(path)
	if err != nil {
		return nil, err
	}
	all, err := s.Positions()
	if err != nil {
		return nil, err
	}
	inputs := map[string]*files{}
	for _, p := range pipes {
		if p.Collect == nil || p.Collect.File == nil {
			continue
		}
		scanner, err := tail.NewScanner(p.Collect.File.Include, p.Collect.File.Exclude, nil)
		if err != nil {
			return nil, fmt.Errorf("pipeline %s: %w", p.Name, err)
		}
		inputs[p.Name] = &files{runner: &runner{pipe: p}, scanner: scanner, links: newLinks(p.Collect.File), own: ownFiles(s.dir)}
		if !slices.ContainsFunc(all.Pipelines, func(x PositionsOfPipeline) bool { return x.Pipeline == p.Name }) {
			all.Pipelines = append(all.Pipelines, PositionsOfPipeline{Pipeline: p.Name})
		}
	}
	for i := range all.Pipelines {
		of := &all.Pipelines[i]
		in := of.explain(e)
		if f := inputs[of.Pipeline]; f != nil {
			in.Takes, in.Why = f.judge(e, nil)
		} else if in.Position == nil {
			continue
		}
		e.Inputs = append(e.Inputs, in)
	}
	return e, nil
}

// explain is what the positions of a pipeline say of a file.
func (of *PositionsOfPipeline) explain(e *Explanation) InputOfAFile {
	out := InputOfAFile{Pipeline: of.Pipeline, Why: "not known: the agent does not run, and no pipeline file was given (--pipelines)"}
	i := slices.IndexFunc(of.Files, func(f FilePosition) bool {
		return e.File != nil && f.Dev == e.File.Dev && f.Ino == e.File.Ino || e.File == nil && f.Path == e.Path
	})
	if i < 0 {
		return out
	}
	f := &of.Files[i]
	t := loadTrack(f.savedFile)
	t.size = max(f.Size, 0)
	p := positionOf(t)
	p.Size = f.Size
	id := tail.ID{Dev: f.Dev, Ino: f.Ino}
	if acked, ok := of.acked[id]; ok {
		p.Acknowledged = min(acked, p.Read)
	}
	p.LagBytes = max(p.Size-p.Acknowledged, 0)
	path := f.Path
	if e.File != nil {
		path = e.Path
		p.Size = e.File.Size
		p.LagBytes = max(p.Size-p.Acknowledged, 0)
	}
	(&lineCount{path: path, id: id, from: p.Acknowledged, to: p.Size}).into(p)
	out.Position = p
	if p.Read > p.Acknowledged {
		out.Waits = append(out.Waits, fmt.Sprintf("a start of the agent: %d bytes were read beyond what the checkpoint knows to be acknowledged; they are in the journal and settled first", p.Read-p.Acknowledged))
	} else if p.LagBytes > 0 {
		out.Waits = append(out.Waits, "a start of the agent")
	}
	return out
}

// ReadPositions reads what export wrote.
func ReadPositions(r io.Reader) (*Positions, error) {
	d := json.NewDecoder(io.LimitReader(r, positionsBytesMax))
	d.DisallowUnknownFields()
	var p Positions
	if err := d.Decode(&p); err != nil {
		return nil, fmt.Errorf("read positions: %w", err)
	}
	if p.Format != positionsFormat {
		return nil, fmt.Errorf("read positions: the format is %q, not %q", p.Format, positionsFormat)
	}
	if p.Version != positionsVersion {
		return nil, fmt.Errorf("read positions: version %d; this one knows %d", p.Version, positionsVersion)
	}
	return &p, nil
}

// lookFS is a journal's file system on which nothing changes.
type lookFS struct{ journal.OSFS }

func (lookFS) MkdirAll(string) error                   { return nil }
func (lookFS) Create(string) (journal.File, error)     { return lookFile{}, nil }
func (lookFS) Remove(string) error                     { return nil }
func (lookFS) Truncate(string, int64) error            { return nil }
func (lookFS) Reuse(_, _ string) (journal.File, error) { return lookFile{}, nil }
func (f lookFS) Open(name string) (journal.File, error) {
	file, err := f.OSFS.Open(name)
	return lookFile{file}, err
}

// lookFile takes what is written to it and keeps nothing.
type lookFile struct{ journal.File }

func (f lookFile) Write(p []byte) (int, error) { return len(p), nil }
func (f lookFile) Sync() error                 { return nil }
func (f lookFile) Close() error {
	if f.File == nil {
		return nil
	}
	return f.File.Close()
}
