//go:build !linux

package testenv

import "testing"

// CanMount says whether this process may mount file systems.
func CanMount() bool { return false }

// SmallDisk is for Linux.
func SmallDisk(t testing.TB, _ string, _ int64) {
	t.Helper()
	t.Fatal("small disks are mounted on Linux alone")
}

// FillDisk is for Linux.
func FillDisk(t testing.TB, _ string) func() {
	t.Helper()
	t.Fatal("small disks are mounted on Linux alone")
	return nil
}
