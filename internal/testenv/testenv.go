// Package testenv gives tests the real servers and clients that Sluice talks
// to: Apache Kafka and its tools, Apache ZooKeeper, HDFS, a KDC, ClickHouse, Prometheus, the client libraries
// of other languages, and the sluice binary itself.
//
// The parts are fetched once, at pinned versions, by the ordinary clients of
// the package registries (mvn, npm, apt-get, pip, go) into a cache outside the
// tree: $SLUICE_TESTENV, else sluice-testenv under the user's cache directory.
// Several test binaries may fetch and start parts at once.
//
// A part that cannot be had skips the test that wants it and is noted in the
// file $SLUICE_SKIPPED_PARTS, from which `make test` prints its closing line.
// With SLUICE_CI=1 the same absence fails the test, unless the part is optional. With -short every test
// that asks for a part or starts a process is skipped.
//
// Everything started here listens on loopback, works in a directory of its own
// and does not outlive the test binary, however that ends.
package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// CacheDir returns the directory of the fetched parts. It need not exist.
func CacheDir() (string, error) {
	if dir := os.Getenv("SLUICE_TESTENV"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache for test parts (SLUICE_TESTENV sets one): %w", err)
	}
	return filepath.Join(dir, "sluice-testenv"), nil
}

// notShort skips t in the fast inner loop.
func notShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real processes: not with -short")
	}
}

// need returns the directory of a part, fetching it if it is not in the cache.
// Without it t ends here: skipped, or failed in CI.
func need(t testing.TB, p Part) string {
	t.Helper()
	notShort(t)
	dir, err := p.Ensure(t.Context())
	if err == nil {
		return dir
	}
	if os.Getenv("SLUICE_CI") == "1" && !p.optional {
		t.Fatalf("%s %s cannot be had: %v", p.Name, p.Version, err)
	}
	noteSkipped(t, p, err)
	t.Skipf("%s %s cannot be had: %v", p.Name, p.Version, err)
	return ""
}

// noteSkipped appends to the file that ReadSkipped reads. One short write with
// O_APPEND is atomic, so test binaries share the file without a lock. Since the
// test opens the file, which each run empties, the go command does not take the
// test's result from its cache, and the note is written again.
func noteSkipped(t testing.TB, p Part, reason error) {
	t.Helper()
	file := os.Getenv("SLUICE_SKIPPED_PARTS")
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		t.Logf("note the skipped part: %v", err)
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%s\t%s\t%s\n", p.Name, oneLine(reason), t.Name())
}

// moduleRoot is the directory of go.mod above the working directory, which for
// a test is its package's.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no go.mod above %s", dir)
		}
	}
}
