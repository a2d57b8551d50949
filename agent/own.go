package agent

import (
	"os"
	"path/filepath"
	"strings"

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
	return func(path string, info tail.Info) bool {
		if outputs[info.ID] {
			return true
		}
		return under(path, state)
	}
}

func under(path, dir string) bool {
	if strings.HasPrefix(path, dir+string(filepath.Separator)) {
		return true
	}
	real, err := filepath.EvalSymlinks(filepath.Dir(path))
	return err == nil && (real == dir || strings.HasPrefix(real, dir+string(filepath.Separator)))
}
