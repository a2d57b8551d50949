package tail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
)

// dirDepthMax bounds how deep `**` goes, beside the check for loops of links.
const dirDepthMax = 64

// Found is a file that the patterns match.
type Found struct {
	Path string
	// Real is where a symbolic link leads to; "" for a plain file. Changes are
	// told under that name.
	Real string
	Info
}

// Dir is a directory whose changes matter. The name may come to lead to
// another one.
type Dir struct {
	Path string
	ID
}

// Problem is something that keeps a pattern from being looked at.
type Problem struct {
	Path string
	Err  error
}

// Listing is the result of a scan.
type Listing struct {
	// Files are the regular files that match, oldest change first. A file with
	// several names is there once, with the first of them.
	Files []Found
	// Dirs are the directories whose changes matter.
	Dirs []Dir
	// Problems are directories that are missing or cannot be read.
	Problems []Problem
}

// Scanner finds files by patterns. Safe for concurrent use.
type Scanner struct {
	// Looks are how files are looked at; nil asks the operating system. It is set before the first use.
	Looks *Looks

	include, exclude []*Pattern
	skip             func(path string, info Info) bool
	found            atomic.Int64 // files of the last scan
}

// NewScanner parses patterns. skip, which may be nil, leaves out files by more
// than their name.
func NewScanner(include, exclude []string, skip func(string, Info) bool) (*Scanner, error) {
	s := &Scanner{skip: skip}
	for _, part := range []struct {
		from []string
		to   *[]*Pattern
	}{{include, &s.include}, {exclude, &s.exclude}} {
		for _, text := range part.from {
			p, err := ParsePattern(text)
			if err != nil {
				return nil, err
			}
			*part.to = append(*part.to, p)
		}
	}
	return s, nil
}

// Matches says whether the patterns take a cleaned absolute path.
func (s *Scanner) Matches(path string) bool {
	match := func(p *Pattern) bool { return p.Match(path) }
	return slices.ContainsFunc(s.include, match) && !s.excluded(path)
}

func (s *Scanner) excluded(path string) bool {
	return slices.ContainsFunc(s.exclude, func(p *Pattern) bool { return p.Match(path) })
}

// Look looks at one path. It returns false when there is no file to follow.
func (s *Scanner) Look(path string) (Found, bool) {
	if !s.Matches(path) {
		return Found{}, false
	}
	info, err := s.Looks.Stat(path)
	if err != nil || !info.Regular || s.skip != nil && s.skip(path, info) {
		return Found{}, false
	}
	return Found{Path: path, Real: realPath(path), Info: info}, true
}

// realPath resolves a symbolic link; "" for what is none.
func realPath(path string) string {
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		return ""
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return target
}

// Scan looks for all files.
func (s *Scanner) Scan() Listing {
	expect := int(s.found.Load())
	w := walk{s: s, seen: make(map[ID]bool, expect), dirs: map[string]bool{}, paths: make(map[string]bool, expect)}
	w.out.Files = make([]Found, 0, expect)
	for _, p := range s.include {
		for _, alt := range p.alts {
			w.expand("/", alt[1:], 0, nil)
		}
	}
	slices.SortStableFunc(w.out.Files, func(a, b Found) int {
		switch {
		case a.ModTime < b.ModTime:
			return -1
		case a.ModTime > b.ModTime:
			return 1
		}
		return 0
	})
	s.found.Store(int64(len(w.out.Files)))
	return w.out
}

// walk is one scan.
type walk struct {
	s     *Scanner
	out   Listing
	seen  map[ID]bool
	dirs  map[string]bool
	paths map[string]bool
}

// expand matches the elements of a pattern under dir. above are the
// directories that `**` came through, to notice loops of links.
func (w *walk) expand(dir string, elements []string, depth int, above []ID) {
	if len(elements) == 0 || depth > dirDepthMax {
		return
	}
	first, rest := elements[0], elements[1:]
	switch {
	case first == "**":
		w.descend(dir, elements, depth, above)
	case literal(first):
		w.enter(filepath.Join(dir, first), rest, depth, above)
	default:
		w.list(dir, func(name string, entry fs.DirEntry) {
			if !matchName(first, name) {
				return
			}
			if len(rest) > 0 && entry.Type().IsRegular() {
				return
			}
			if len(rest) == 0 {
				w.take(filepath.Join(dir, name), false, entry.Type()&fs.ModeSymlink != 0)
				return
			}
			w.enter(filepath.Join(dir, name), rest, depth, above)
		})
	}
}

// enter goes on below a path, or takes it when nothing is left to match.
func (w *walk) enter(path string, rest []string, depth int, above []ID) {
	if len(rest) > 0 {
		w.expand(path, rest, depth+1, above)
		return
	}
	w.watch(filepath.Dir(path))
	w.take(path, true, true)
}

// descend matches `**` and what follows it in dir and in all below it.
func (w *walk) descend(dir string, elements []string, depth int, above []ID) {
	info, err := w.s.Looks.Stat(dir)
	if err != nil {
		w.problem(dir, err)
		return
	}
	if !info.Dir || slices.Contains(above, info.ID) || depth > dirDepthMax {
		return
	}
	rest := elements[1:]
	if len(rest) == 0 {
		rest = []string{"*"}
	}
	w.expand(dir, rest, depth, above)
	below := append(slices.Clip(above), info.ID)
	w.list(dir, func(name string, entry fs.DirEntry) {
		if hidden(name) || entry.Type().IsRegular() {
			return
		}
		sub := filepath.Join(dir, name)
		if isDir(sub, entry) {
			w.descend(sub, elements, depth+1, below)
		}
	})
}

func isDir(path string, entry fs.DirEntry) bool {
	if entry.Type()&fs.ModeSymlink == 0 {
		return entry.IsDir()
	}
	info, err := Stat(path)
	return err == nil && info.Dir
}

func (w *walk) list(dir string, fn func(string, fs.DirEntry)) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.problem(dir, err)
		return
	}
	w.watch(dir)
	for _, e := range entries {
		fn(e.Name(), e)
	}
}

func (w *walk) watch(dir string) {
	if w.dirs[dir] {
		return
	}
	w.dirs[dir] = true
	if info, err := w.s.Looks.Stat(dir); err == nil && info.Dir {
		w.out.Dirs = append(w.out.Dirs, Dir{Path: dir, ID: info.ID})
	}
}

func (w *walk) problem(path string, err error) {
	for _, p := range w.out.Problems {
		if p.Path == path {
			return
		}
	}
	w.out.Problems = append(w.out.Problems, Problem{Path: path, Err: err})
}

// take adds a file. named says that the pattern names it without wildcard, so
// that its absence is worth a word; link that it may be a symbolic link.
func (w *walk) take(path string, named, link bool) {
	if w.paths[path] || w.s.excluded(path) {
		return
	}
	w.paths[path] = true
	info, err := w.s.Looks.Stat(path)
	if err != nil {
		w.missing(path, err, named)
		return
	}
	if !info.Regular || w.seen[info.ID] || w.s.skip != nil && w.s.skip(path, info) {
		return
	}
	w.seen[info.ID] = true
	found := Found{Path: path, Info: info}
	if link {
		if found.Real = realPath(path); found.Real != "" {
			w.watch(filepath.Dir(found.Real))
		}
	}
	w.out.Files = append(w.out.Files, found)
}

func (w *walk) missing(path string, err error, named bool) {
	if !errors.Is(err, fs.ErrNotExist) {
		w.problem(path, err)
		return
	}
	if !named { // vanished between the listing and the look
		return
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		w.problem(filepath.Dir(path), err)
		return
	}
	w.problem(path, fmt.Errorf("%w (it is followed when it appears)", fs.ErrNotExist))
}
