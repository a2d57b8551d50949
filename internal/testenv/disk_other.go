//go:build !linux

package testenv

import "testing"

// CanMount says whether this process may mount file systems.
func CanMount() bool { return false }

func smallDisk(t testing.TB, _ string, _ int64) {
	t.Helper()
	t.Fatal("small disks are mounted on Linux alone")
}

func fillDisk(t testing.TB, _ string) func() {
	t.Helper()
	t.Fatal("small disks are mounted on Linux alone")
	return nil
}
