package agent

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// ownFiles tells files that the agent writes itself, which it must not ship:
// each line about them would make another. They are those of the state
// directory and those that standard output and standard error lead to.
func ownFiles(stateDir string) func(string, tail.Info) bool {
	state, err := filepath.Abs(stateDir)
	if err == nil {
		if real, err := filepath.EvalSymlinks(state); err == nil {
			state = real
		}
	}
	outputs := map[tail.ID]bool{}
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if info, err := tail.InfoOf(f); err == nil && info.Regular {
			outputs[info.ID] = true
		}
	}
	var last atomic.Pointer[resolved]
	return func(path string, info tail.Info) bool {
		if outputs[info.ID] {
			return true
		}
		dir := filepath.Dir(path)
		if r := last.Load(); r != nil && r.dir == dir && time.Since(r.at) < resolvedFor {
			return r.inside
		}
		r := &resolved{dir: dir, inside: inside(dir, state), at: time.Now()}
		last.Store(r)
		return r.inside
	}
}

// resolvedFor is how long it is known where a directory lies: a scan asks that for each of the thousands of files that may be in it.
const resolvedFor = 100 * time.Millisecond

// resolved says whether a directory lies in another.
type resolved struct {
	dir    string
	inside bool
	at     time.Time
}

// inside says whether dir is the directory above, or lies in it, whatever links lead there.
func inside(dir, above string) bool {
	lies := func(dir string) bool {
		return dir == above || strings.HasPrefix(dir, above+string(filepath.Separator))
	}
	if lies(dir) {
		return true
	}
	real, err := filepath.EvalSymlinks(dir)
	return err == nil && lies(real)
}
