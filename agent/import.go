package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-io/sluice/agent/journald"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

// Imported is a position that another shipper, or another agent, left.
type Imported struct {
	Path   string
	Dev    uint64 // 0: not told
	Ino    uint64 // 0: not told
	Offset int64
	// Pipeline is that whose position it is; "" for every one whose file input takes the path.
	Pipeline string
	// Content is what the file held before the offset, where that was told.
	Content *tail.Position
	// Cursor is where an input without files goes on, Input which that is; then there is no path.
	Cursor, Input string
}

// ImportResult says what became of one of them.
type ImportResult struct {
	Path     string `json:"path"`
	Pipeline string `json:"pipeline,omitempty"`
	Offset   int64  `json:"offset"`
	Input    string `json:"input,omitempty"`
	Cursor   string `json:"cursor,omitempty"`
	// Refused is why it was not taken; "" when it was.
	Refused string `json:"refused,omitempty"`
}

// Import takes positions over into pipelines that have file inputs. A position is refused where the file at its path is not certainly the
// one that it was of, where no pipeline takes the file, and where the pipeline has a position of the file already.
func (s *State) Import(pipes []*pipelines.Pipeline, list []Imported) (out []ImportResult, err error) {
	inputs, err := s.fileInputs(pipes)
	if err != nil {
		return nil, err
	}
	cursors, list := splitCursors(list)
	results := make([][]ImportResult, len(list))
	for _, in := range inputs {
		err := s.Change(in.name, func(files *[]FilePosition) error {
			for i, x := range list {
				if x.Pipeline != "" && x.Pipeline != in.name || x.Pipeline == "" && !in.scanner.Matches(x.Path) {
					continue
				}
				r := ImportResult{Path: x.Path, Pipeline: in.name, Offset: x.Offset}
				if err := take(files, x); err != nil {
					r.Refused = err.Error()
				}
				results[i] = append(results[i], r)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for i, x := range list {
		if len(results[i]) == 0 {
			results[i] = []ImportResult{{Path: x.Path, Offset: x.Offset, Refused: "no pipeline's collect.file takes this path"}}
		}
		out = append(out, results[i]...)
	}
	for _, x := range cursors {
		r := ImportResult{Pipeline: x.Pipeline, Input: x.Input, Cursor: x.Cursor}
		err := s.takeCursor(pipes, x)
		if err != nil {
			var refused cursorRefused
			if !errors.As(err, &refused) {
				return nil, err
			}
			r.Refused = refused.Error()
		}
		out = append(out, r)
	}
	return out, nil
}

func splitCursors(list []Imported) (cursors, files []Imported) {
	for _, x := range list {
		if x.Cursor != "" {
			cursors = append(cursors, x)
		} else {
			files = append(files, x)
		}
	}
	return cursors, files
}

// cursorRefused is why a cursor is not taken.
type cursorRefused string

// Error implements error.
func (e cursorRefused) Error() string { return string(e) }

// takeCursor takes a cursor over into its pipeline, if that has the input, and none yet.
func (s *State) takeCursor(pipes []*pipelines.Pipeline, x Imported) error {
	has := func(p *pipelines.Pipeline) bool {
		return p.Name == x.Pipeline && p.Collect != nil && p.Collect.Input() == x.Input
	}
	if !slices.ContainsFunc(pipes, has) {
		return cursorRefused(fmt.Sprintf("there is no pipeline %s that collects from %s", x.Pipeline, x.Input))
	}
	return s.change(x.Pipeline, func(p *savedPipeline) error {
		if p.Cursor != nil {
			return cursorRefused("the pipeline has a cursor: `sluice agent positions reset --cursor` it first")
		}
		p.Input, p.Cursor = x.Input, &savedCursor{Input: x.Input, Cursor: x.Cursor}
		return nil
	})
}

// ResetCursor has an input without files begin elsewhere, in one pipeline or, with "", in all that have a cursor. It returns how many it
// changed. What is in the journal is sent all the same.
func (s *State) ResetCursor(pipeline string, to ResetTo) (n int, err error) {
	if err := s.knows(pipeline); err != nil {
		return 0, err
	}
	places := map[ResetTo]string{ResetToStart: journald.AtStart, ResetToEnd: journald.AtEnd, ResetForget: ""}
	at, ok := places[to]
	if !ok {
		return 0, fmt.Errorf("there is no place %q: use start, end or forget", to)
	}
	for _, name := range s.Pipelines() {
		if pipeline != "" && name != pipeline {
			continue
		}
		err := s.change(name, func(p *savedPipeline) error {
			if p.Cursor == nil {
				return nil
			}
			n++
			p.Cursor = &savedCursor{Input: p.Cursor.Input, Cursor: at, Count: p.Cursor.Count}
			if at == "" {
				p.Cursor = nil
			}
			return nil
		})
		if err != nil {
			return n, fmt.Errorf("pipeline %s: %w", name, err)
		}
	}
	return n, nil
}

// knows refuses a pipeline that the checkpoint does not have; "" stands for all.
func (s *State) knows(pipeline string) error {
	if pipeline != "" && !slices.Contains(s.Pipelines(), pipeline) {
		return fmt.Errorf("the checkpoint knows no pipeline %s; it has %q", pipeline, s.Pipelines())
	}
	return nil
}

// fileInput is what an import asks of a pipeline.
type fileInput struct {
	name    string
	scanner *tail.Scanner
}

func (s *State) fileInputs(pipes []*pipelines.Pipeline) (out []fileInput, err error) {
	for _, p := range pipes {
		if p.Collect == nil || p.Collect.File == nil {
			continue
		}
		scanner, err := tail.NewScanner(p.Collect.File.Include, p.Collect.File.Exclude, nil)
		if err != nil {
			return nil, fmt.Errorf("pipeline %s: %w", p.Name, err)
		}
		out = append(out, fileInput{p.Name, scanner})
	}
	journal := func(p *pipelines.Pipeline) bool { return p.Collect != nil && p.Collect.Journald != nil }
	if len(out) == 0 && !slices.ContainsFunc(pipes, journal) {
		return nil, errors.New("no pipeline that collects from files or from journald to import positions into: name the pipeline files with --pipelines")
	}
	return out, nil
}

// take adds a position to those of a pipeline, if its file is what it was.
func take(files *[]FilePosition, x Imported) error {
	f, err := x.onDisk()
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(*files, func(y FilePosition) bool { return y.Dev == f.Dev && y.Ino == f.Ino }); i >= 0 {
		return fmt.Errorf("the pipeline has a position of this file, %d: `sluice agent positions reset` it first", (*files)[i].Offset)
	}
	*files = append(*files, FilePosition{savedFile: *f, Size: -1})
	return nil
}

// onDisk is the position as of the file that is there now; an error when that is not the file it was of.
func (x *Imported) onDisk() (*savedFile, error) {
	file, err := os.OpenFile(x.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, fmt.Errorf("the file cannot be opened: %w", err)
	}
	defer file.Close() // only read from
	info, err := tail.InfoOf(file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look at the file: %w", err)
	case !info.Regular:
		return nil, errors.New("it is not a regular file")
	case x.Ino != 0 && x.Ino != info.Ino && x.Content == nil:
		return nil, fmt.Errorf("the path leads to another file now: inode %d, not %d", info.Ino, x.Ino)
	case x.Dev != 0 && x.Dev != info.Dev && x.Content == nil:
		return nil, fmt.Errorf("the path leads to another file system now: device %d, not %d", info.Dev, x.Dev)
	case x.Offset < 0:
		return nil, fmt.Errorf("the offset is %d", x.Offset)
	case x.Offset > info.Size:
		return nil, fmt.Errorf("the file has %d bytes, less than the offset %d: it was truncated or replaced", info.Size, x.Offset)
	}
	at, err := x.place(file)
	if err != nil {
		return nil, err
	}
	return &savedFile{
		Path: filepath.Clean(x.Path), Dev: info.Dev, Ino: info.Ino, Born: tail.Born(file), Offset: at.Offset, Skip: at.Skip,
		HeadLen: at.Head.Len, Head: at.Head.Hash, TailLen: at.Tail.Len, Tail: at.Tail.Hash, Seen: time.Now().Unix(),
	}, nil
}

// place is the position with the sums of the content before it.
func (x *Imported) place(file *os.File) (tail.Position, error) {
	if x.Content == nil {
		return tail.PositionAt(file, x.Offset)
	}
	same, err := x.Content.Matches(file)
	if err != nil {
		return tail.Position{}, err
	}
	if !same {
		return tail.Position{}, errors.New("the file holds another content before the offset than it did")
	}
	return *x.Content, nil
}

// Exported are the positions of a document as they are imported: by path, and by what the files held.
func (p *Positions) Exported() (out []Imported) {
	for _, of := range p.Pipelines {
		if of.Cursor != nil {
			out = append(out, Imported{Pipeline: of.Pipeline, Input: of.Cursor.Input, Cursor: of.Cursor.Cursor})
		}
		for _, f := range of.Files {
			at := f.position()
			out = append(out, Imported{Path: f.Path, Dev: f.Dev, Ino: f.Ino, Offset: f.Offset, Pipeline: of.Pipeline, Content: &at})
		}
	}
	return out
}

// ResetTo says where a reset puts positions.
type ResetTo string

// The places.
const (
	ResetToStart ResetTo = "start" // the file is read again from its beginning
	ResetToEnd   ResetTo = "end"   // what is in the file now is passed over
	ResetForget  ResetTo = "forget"
)

// Reset changes the positions of files by path, in one pipeline or, with "", in all. It returns how many it changed.
func (s *State) Reset(pipeline string, paths []string, to ResetTo) (n int, err error) {
	if err := s.knows(pipeline); err != nil {
		return 0, err
	}
	for _, name := range s.Pipelines() {
		if pipeline != "" && name != pipeline {
			continue
		}
		err := s.Change(name, func(files *[]FilePosition) error {
			keep := (*files)[:0]
			for _, f := range *files {
				if !slices.Contains(paths, f.Path) {
					keep = append(keep, f)
					continue
				}
				n++
				moved, err := f.moved(to)
				if err != nil {
					return fmt.Errorf("%s: %w", f.Path, err)
				}
				if moved != nil {
					keep = append(keep, *moved)
				}
			}
			*files = keep
			return nil
		})
		if err != nil {
			return n, fmt.Errorf("pipeline %s: %w", name, err)
		}
	}
	return n, nil
}

// moved is a position elsewhere; nil when it is forgotten.
func (f FilePosition) moved(to ResetTo) (*FilePosition, error) {
	switch to {
	case ResetForget:
		return nil, nil
	case ResetToStart:
		f.savedFile = savedFile{Path: f.Path, Dev: f.Dev, Ino: f.Ino, Born: f.Born, Generation: f.Generation + 1, Seen: f.Seen}
		return &f, nil
	case ResetToEnd:
	default:
		return nil, fmt.Errorf("there is no place %q: use start, end or forget", to)
	}
	if f.Size < 0 {
		return nil, errors.New("the file is gone: it has no end to go to; forget it")
	}
	file, err := tail.Open(f.Path, &tail.FileConfig{Blocks: &tail.Blocks{}})
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read from
	if err := file.SkipToEnd(); err != nil {
		return nil, err
	}
	at := file.Position()
	f.Offset, f.Skip, f.HeadLen, f.Head, f.TailLen, f.Tail = at.Offset, at.Skip, at.Head.Len, at.Head.Hash, at.Tail.Len, at.Tail.Hash
	return &f, nil
}

// ForgetVanished drops the positions of files that are certainly gone.
func (s *State) ForgetVanished() (n int, err error) {
	for _, name := range s.Pipelines() {
		err := s.Change(name, func(files *[]FilePosition) error {
			*files = slices.DeleteFunc(*files, func(f FilePosition) bool {
				gone := certainlyGone(nil, f.Path, tail.ID{Dev: f.Dev, Ino: f.Ino})
				if gone {
					n++
				}
				return gone
			})
			return nil
		})
		if err != nil {
			return n, fmt.Errorf("pipeline %s: %w", name, err)
		}
	}
	return n, nil
}
