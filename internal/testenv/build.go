package testenv

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// binaryKept is how long a built binary that no test used since stays cached.
const binaryKept = 24 * time.Hour

var sluice = binary{pkg: "./cmd/sluice"}

// Sluice returns the path of the sluice binary of this tree. It is built once
// per test binary, and all that build the same content share one file.
func Sluice(t testing.TB) string {
	t.Helper()
	notShort(t)
	path, err := sluice.path()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// binary is a main package of this tree, or a package's tests, built on first
// use.
type binary struct {
	dir  string // of its module, below the root; empty: the root
	pkg  string
	test bool
	// overlay, if not nil, writes what go build is to take in the place of some files.
	overlay func(root, dir string) (string, error)
	once    sync.Once
	file    string
	err     error
}

func (b *binary) path() (string, error) {
	b.once.Do(func() { b.file, b.err = b.build() })
	return b.file, b.err
}

// build returns a file named after its content, which is never written again: a
// running program's file stays what it was.
func (b *binary) build() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// One builder at a time: two would link the same thing on the same cores.
	unlock, err := lockFile(filepath.Join(dir, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	dropOld(dir)
	if err := readSourceDirectories(root); err != nil {
		return "", err
	}

	name := filepath.Base(filepath.Join(root, b.dir, b.pkg))
	built := filepath.Join(dir, ".build-"+shortHash([]byte(root))+"-"+name)
	how := []string{"build"}
	if b.test {
		how = []string{"test", "-vet=off", "-c"}
	}
	if b.overlay != nil {
		path, err := b.overlay(root, dir)
		if err != nil {
			return "", fmt.Errorf("build %s: %w", b.pkg, err)
		}
		how = append(how, "-overlay", path)
	}
	cmd := exec.Command("go", append(how, "-o", built, b.pkg)...)
	cmd.Dir = filepath.Join(root, b.dir)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", b.pkg, err, out)
	}
	return keepByContent(built, filepath.Join(dir, name))
}

// readSourceDirectories reads every directory of sources, and nothing else: the
// go command keeps a test's result only while the directories that the test
// has read look the same, and it cannot see what our `go build` reads.
func readSourceDirectories(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root && slices.Contains(notSources, d.Name()) {
			return filepath.SkipDir
		}
		return err
	})
}

var notSources = []string{".git", ".ci", "bin", "build", "docs"}

// keepByContent copies file to PREFIX-HASH unless that is there, and returns it.
func keepByContent(file, prefix string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	kept := prefix + "-" + shortHash(content)
	if _, err := os.Stat(kept); err == nil {
		now := time.Now()
		return kept, os.Chtimes(kept, now, now)
	}
	temp := kept + ".tmp"
	if err := os.WriteFile(temp, content, 0o755); err != nil {
		return "", err
	}
	return kept, os.Rename(temp, kept)
}

func dropOld(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > binaryKept && e.Name() != ".lock" {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

func shortHash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
