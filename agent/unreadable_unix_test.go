//go:build unix

package agent

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// nobody is the user that tests run as which must not be root.
const nobody = 65534

func TestUnreadableFileHeals(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 { // who may read everything
		runAsNobody(t)
		return
	}
	r := newRig(t, plainPipeline)
	r.write("a.log", "one\n")
	r.write("b.log", "other\n")
	if err := os.Chmod(r.path("a.log"), 0); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wants("other") // it keeps no other file back
	r.eventually("it is said", func() bool { return strings.Contains(r.log.String(), "give this user read access") })
	if n := strings.Count(r.log.String(), "read access"); n != 1 {
		t.Errorf("said %d times", n)
	}
	if err := os.Chmod(r.path("a.log"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.wants("other", "one")
}

// runAsNobody runs the test that calls it in another process without rights.
func runAsNobody(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-nobody-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Skipf("cannot make a directory for another user: %v", err)
	}
	program := filepath.Join(dir, "agent.test")
	copyProgram(t, program)
	cmd := exec.Command(program, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("as user %d: %v\n%s", nobody, err, out)
	}
}

// copyProgram copies this test binary to where others may run it.
func copyProgram(t *testing.T, to string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, from); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
