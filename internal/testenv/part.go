package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// failureRemembered is how long tests believe an earlier failed fetch, so that
// on a machine without a network each test binary does not wait for it anew.
const failureRemembered = 10 * time.Minute

// Part is a real server or client at one pinned version.
type Part struct {
	Name    string
	Version string
	From    string   // the client that fetches it
	toFetch []string // commands that fetching it takes
	toRun   []string // commands that running it takes
	// optional: tests go without it in CI too, since what fetches it is not on every machine.
	optional bool
	fetch    func(ctx context.Context, dir, version string) error
	check    func(ctx context.Context) error // whether it can run here; nil: toRun says all
}

// Parts lists all that tests may ask for.
func Parts() []Part {
	return []Part{kafkaPart, zooKeeperPart, hdfsPart, clickHousePart, oldClickHousePart, kcatPart, prometheusPart, kerberosPart,
		librdkafkaPart, kafkaPythonPart, aiokafkaPart, kafkajsPart, goClientsPart}
}

// Optional says that a machine without the part is in order.
func (p Part) Optional() bool { return p.optional }

// Ensure returns the part's directory in the cache, fetching the part first
// when it is not there. A failed fetch is remembered for failureRemembered.
func (p Part) Ensure(ctx context.Context) (string, error) {
	return p.ensure(ctx, true)
}

// Fetch is Ensure without regard to an earlier failure.
func (p Part) Fetch(ctx context.Context) (string, error) {
	return p.ensure(ctx, false)
}

func (p Part) ensure(ctx context.Context, rememberFailure bool) (string, error) {
	if err := p.canRun(ctx); err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, p.Name+"-"+p.Version)
	if isDir(dir) {
		return dir, nil
	}
	if err := haveCommands(p.toFetch); err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache of parts: %w", err)
	}
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(dir) { // another process fetched it while we waited
		return dir, nil
	}
	failure := dir + ".failed"
	if rememberFailure {
		if err := recentFailure(failure); err != nil {
			return "", err
		}
	}
	if err := p.fetchInto(ctx, cache, dir); err != nil {
		_ = os.WriteFile(failure, []byte(oneLine(err)), 0o644) // only saves time
		return "", err
	}
	_ = os.Remove(failure)
	return dir, nil
}

func (p Part) canRun(ctx context.Context) error {
	if err := haveCommands(p.toRun); err != nil || p.check == nil {
		return err
	}
	return p.check(ctx)
}

func haveCommands(commands []string) error {
	for _, command := range commands {
		if _, err := exec.LookPath(command); err != nil {
			return fmt.Errorf("it takes %s, which is not installed", command)
		}
	}
	return nil
}

// fetchInto fetches beside the final place and renames, so that a directory
// under its final name is always whole.
func (p Part) fetchInto(ctx context.Context, cache, dir string) error {
	temp, err := os.MkdirTemp(cache, p.Name+".fetching-*")
	if err != nil {
		return fmt.Errorf("make the cache of parts: %w", err)
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	if err := p.fetch(ctx, temp, p.Version); err != nil {
		return fmt.Errorf("fetch by %s: %w", p.From, err)
	}
	return os.Rename(temp, dir)
}

func recentFailure(file string) error {
	st, err := os.Stat(file)
	if err != nil || time.Since(st.ModTime()) > failureRemembered {
		return nil
	}
	reason, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return errors.New(string(reason))
}

// lockFile waits for an exclusive lock that the kernel drops with the process.
func lockFile(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}

// runIn runs a command to its end; its output is in the error.
func runIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, complaint(string(out)))
	}
	return nil
}

// complaint picks from a client's output the lines that say what failed.
func complaint(out string) string {
	var said []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if lower := strings.ToLower(line); strings.Contains(lower, "error") || strings.HasPrefix(line, "E:") {
			said = append(said, line)
		}
	}
	if len(said) == 0 {
		return lastLines(out, 3)
	}
	return strings.Join(said[:min(2, len(said))], "\n")
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
