package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-io/sluice/internal/testenv"
)

const (
	nobody  = 65534
	readers = 54321 // a group that owns some files
)

// guest is an agent that runs as nobody, in directories that nobody may enter.
type guest struct {
	*liveAgent
	dir, program string
}

func newGuest(t *testing.T) *guest {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can run a process as somebody else")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("there is no setpriv")
	}
	dir, err := os.MkdirTemp("", "sluice-guest-") // those of the test are closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	g := &guest{liveAgent: newLiveAgent(t), dir: dir, program: filepath.Join(dir, "sluice")}
	text, err := os.ReadFile(testenv.Sluice(t))
	if err != nil {
		t.Fatal(err)
	}
	g.file = filepath.Join(dir, "p.yaml")
	g.liveAgent.dir = dir
	state, logs := filepath.Join(dir, "state"), filepath.Join(dir, "logs")
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(g.program, text, 0o755), os.Chmod(g.program, 0o755), os.Mkdir(state, 0o700), os.Chown(state, nobody, nobody), os.Mkdir(logs, 0o755), os.Chmod(logs, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// log makes a log of a line.
func (g *guest) log(name string, mode os.FileMode, group int) string {
	g.t.Helper()
	path := filepath.Join(g.dir, "logs", name)
	if err := errors.Join(os.WriteFile(path, []byte(name+"\n"), 0o600), os.Chown(path, 0, group), os.Chmod(path, mode)); err != nil {
		g.t.Fatal(err)
	}
	return path
}

// run starts the agent with setpriv's arguments.
func (g *guest) run(args ...string) {
	g.t.Helper()
	g.configure("pipeline: p\ncollect: {file: {include: ['DIR/logs/**/*.log'], headers: false}}\ntopic: {name: lines}\n")
	if err := os.Chmod(g.file, 0o644); err != nil {
		g.t.Fatal(err)
	}
	g.now = testenv.Start(g.t, testenv.Command{Name: "agent", Path: "setpriv", Dir: g.dir,
		Args: append(append([]string{"--reuid", fmt.Sprint(nobody), "--regid", fmt.Sprint(nobody)}, args...),
			g.program, "agent", g.file, "--state", filepath.Join(g.dir, "state"), "--brokers", g.addr, "--metrics", g.metrics),
		Ready: func(ctx context.Context) error { return getOK(ctx, "http://"+g.metrics+"/healthz") }})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.now.PID()))
	if err != nil || !strings.Contains(string(status), fmt.Sprintf("Uid:\t%d\t%d\t%d", nobody, nobody, nobody)) {
		g.t.Fatalf("it does not run as nobody: %v\n%s", err, status)
	}
}

// holds checks that the topic holds these lines.
func (g *guest) holds(lines ...string) {
	g.t.Helper()
	got := map[string]int{}
	for _, v := range readTopics(g.t, g.addr, len(lines), "lines") {
		got[v]++
	}
	for _, v := range lines {
		if got[v] != 1 {
			g.t.Errorf("%s is there %d times", v, got[v])
		}
	}
	if len(got) != len(lines) {
		g.t.Errorf("%v, want %q", got, lines)
	}
}

// grant gives a user the right to read a file by an access control list.
func grant(path string, user uint32) error {
	const version, owner, named, group, mask, other = 2, 0x01, 0x02, 0x04, 0x10, 0x20
	acl := binary.LittleEndian.AppendUint32(nil, version)
	for _, e := range []struct {
		tag, rights uint16
		id          uint32
	}{{owner, 6, ^uint32(0)}, {named, 4, user}, {group, 0, ^uint32(0)}, {mask, 4, ^uint32(0)}, {other, 0, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.rights)
		acl = binary.LittleEndian.AppendUint32(acl, e.id)
	}
	return unix.Setxattr(path, "system.posix_acl_access", acl, 0)
}

// As nobody the agent reads what a group, an access control list or everybody may; what it may not is said, and read when that changes.
func TestAgentOfNobody(t *testing.T) {
	g := newGuest(t)
	g.broker.up()
	g.log("world.log", 0o644, 0)
	g.log("group.log", 0o640, readers)
	closed := g.log("closed.log", 0o600, 0)
	want := []string{"world.log", "group.log"}
	switch err := grant(g.log("acl.log", 0o600, 0), nobody); {
	case errors.Is(err, unix.ENOTSUP):
		t.Log("this file system has no access control lists")
		os.Remove(filepath.Join(g.dir, "logs", "acl.log"))
	case err != nil:
		t.Fatal(err)
	default:
		want = append(want, "acl.log")
	}
	g.run("--groups", fmt.Sprint(readers))
	g.holds(want...)
	waitUntil(t, "it says what it may not read", func() bool {
		return strings.Contains(g.now.Output(), "give this user read access") && strings.Contains(g.now.Output(), closed)
	})
	if err := os.Chmod(closed, 0o644); err != nil {
		t.Fatal(err)
	}
	g.holds(append(want, "closed.log")...)
}

// With the one capability of the unit it reads all, through directories that are closed too.
func TestAgentWithOneCapability(t *testing.T) {
	g := newGuest(t)
	g.broker.up()
	g.log("closed.log", 0o600, 0)
	if err := os.Mkdir(filepath.Join(g.dir, "logs", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	g.log("deep/hidden.log", 0o600, 0)
	caps := []string{"--clear-groups", "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search", "--bounding-set=-all,+dac_read_search", "--no-new-privs"}
	probe := append(append([]string{"--reuid", fmt.Sprint(nobody), "--regid", fmt.Sprint(nobody)}, caps...), "cat", filepath.Join(g.dir, "logs", "closed.log"))
	if out, err := exec.CommandContext(t.Context(), "setpriv", probe...).CombinedOutput(); err != nil {
		t.Skipf("the capability cannot be given here: %v: %s", err, out)
	}
	g.run(caps...)
	g.holds("closed.log", "deep/hidden.log")
}
