package agent

import (
	"testing"

	"github.com/sluice-io/sluice/agent/tail"
)

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := tail.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Ino
}
