package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

// links says which symbolic links are followed, on the way to a file too.
type links struct {
	mode  pipelines.Symlinks
	roots []string // absolute
}

func newLinks(in *pipelines.FileInput) *links {
	l := &links{mode: in.Symlinks}
	roots := in.Roots
	if len(roots) == 0 {
		for _, p := range in.Include {
			roots = append(roots, fixedDir(p))
		}
	}
	for _, r := range roots {
		if abs, err := filepath.Abs(r); err == nil {
			l.roots = append(l.roots, abs)
		}
	}
	return l
}

// fixedDir is the directory that a pattern begins with, before anything with a special meaning.
func fixedDir(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[{\`); i >= 0 {
		pattern = pattern[:i]
	}
	return filepath.Dir(pattern + "x")
}

// follows says that every link is followed.
func (l *links) follows() bool { return l.mode == "" || l.mode == pipelines.SymlinksFollow }

// skip leaves out the files that only a link leads to which is not followed, on top of what more leaves out.
func (l *links) skip(more func(string, tail.Info) bool) func(string, tail.Info) bool {
	if l.follows() {
		return more
	}
	return func(path string, info tail.Info) bool {
		_, _, ok := l.place(path)
		return !ok || more != nil && more(path, info)
	}
}

// place finds a file below a root, by the names that it has without links.
func (l *links) place(path string) (root, name string, ok bool) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", "", false
	}
	for _, r := range l.roots {
		root, err := filepath.EvalSymlinks(r)
		if err != nil {
			continue
		}
		name, err := filepath.Rel(root, real)
		if err != nil || !filepath.IsLocal(name) {
			continue
		}
		if l.mode == pipelines.SymlinksNone && filepath.Join(r, name) != path {
			continue
		}
		return root, name, true
	}
	return "", "", false
}

// open opens a file. A link that is put in the way in between leads nowhere: the root is not left.
func (l *links) open(path string) (*os.File, error) {
	if l.follows() {
		return os.OpenFile(path, tail.OpenFlags, 0)
	}
	root, name, ok := l.place(path)
	if !ok {
		return nil, fmt.Errorf("open %s: %w below the roots", path, os.ErrNotExist)
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close() // only read from
	return dir.OpenFile(name, tail.OpenFlags, 0)
}
