package testenv

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	passes  = 5 * time.Second
	dropped = 300 * time.Millisecond
)

func TestNetworkCuts(t *testing.T) {
	n := NewNetwork(t)
	if !n.CanCut() {
		t.Skip("no network namespaces here")
	}
	a, b := n.Host(t, "a"), n.Host(t, "b")
	addr := serveLines(t, b)
	check := func(when string, from *Host, want bool) {
		t.Helper()
		limit := passes
		if !want {
			limit = dropped
		}
		if got := reaches(t, from, addr, limit); got != want {
			t.Errorf("%s: %s reaches b: %t", when, from.Name, got)
		}
	}
	check("before any cut", n.Test, true)
	check("before any cut", a, true)
	n.Cut(t, a, b)
	check("a is cut from b", a, false)
	check("a is cut from b", n.Test, true)
	n.Heal(t)
	check("after a cut", a, true)
	n.Cut(t, b, a)
	check("b's answers are cut", a, false)
	n.Heal(t)
	check("after both cuts", a, true)
}

// TestNetworkCutsOneWay shows on a connection that is open already that one
// way is cut and the other is not.
func TestNetworkCutsOneWay(t *testing.T) {
	n := NewNetwork(t)
	if !n.CanCut() {
		t.Skip("no network namespaces here")
	}
	a := n.Host(t, "a")
	addr := serveLines(t, a)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, "first")
	answers := bufio.NewReader(conn)
	if line, err := answers.ReadString('\n'); err != nil || line != "first\n" {
		t.Fatalf("%q, %v", line, err)
	}
	n.Cut(t, a, n.Test)
	fmt.Fprintln(conn, "second")
	_ = conn.SetReadDeadline(time.Now().Add(dropped))
	if line, err := answers.ReadString('\n'); err == nil {
		t.Errorf("the answer %q passed the cut", line)
	}
	n.Heal(t)
	_ = conn.SetReadDeadline(time.Now().Add(passes))
	if line, err := answers.ReadString('\n'); err != nil || line != "second\n" {
		t.Errorf("after the cut: %q, %v", line, err)
	}
}

func TestSmallDisk(t *testing.T) {
	n := NewNetwork(t)
	if !n.CanCut() {
		t.Skip("no mount namespaces here")
	}
	dir := filepath.Join(t.TempDir(), "disk")
	a := n.Host(t, "a")
	a.SmallDisk(t, dir, 1<<20)
	err := os.WriteFile(a.Path(filepath.Join(dir, "large")), bytes.Repeat([]byte("x"), 2<<20), 0o644)
	if err == nil {
		t.Error("2 MiB are on a disk of 1 MiB")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("the host's disk is seen outside of it: %v, %v", entries, err)
	}
}

func TestAheadBy(t *testing.T) {
	n := NewNetwork(t)
	if !n.CanCut() {
		t.Skip("no time namespaces here")
	}
	a := n.Host(t, "a")
	uptime := func() (seconds float64) {
		c := a.In(Command{Path: "cat", Args: []string{"/proc/uptime"}})
		out, err := exec.CommandContext(t.Context(), c.Path, c.Args...).CombinedOutput()
		if _, scan := fmt.Sscan(string(out), &seconds); err != nil || scan != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return seconds
	}
	before := uptime()
	a.AheadBy(time.Hour)
	if d := uptime() - before; d < 3599.5 || d > 3660 { // the file tells hundredths, rounded down
		t.Errorf("the clock is %.0f s ahead, not an hour", d)
	}
}

// The test binary itself is the server and the client on the hosts.
const (
	serveEnv = "SLUICE_TESTENV_SERVE"
	dialEnv  = "SLUICE_TESTENV_DIAL"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(serveEnv) != "":
		os.Exit(exitCode(serve(os.Getenv(serveEnv))))
	case os.Getenv(dialEnv) != "":
		os.Exit(exitCode(dialEcho(os.Getenv(dialEnv))))
	}
	os.Exit(m.Run())
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func serve(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(conn, conn) }()
	}
}

func dialEcho(addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Fprintln(conn, "x")
	_, err = bufio.NewReader(conn).ReadString('\n')
	return err
}

// serveLines starts a server on the host that sends back what it gets.
func serveLines(t *testing.T, h *Host) string {
	t.Helper()
	addr := fmt.Sprintf("%s:%d", h.IP, FreePort(t))
	Start(t, h.In(Command{Name: "server-" + h.Name, Path: os.Args[0], Env: []string{serveEnv + "=" + addr},
		Ready: func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err == nil {
				conn.Close()
			}
			return err
		}}))
	return addr
}

// reaches reports whether a program on a host gets an answer within the limit.
func reaches(t *testing.T, from *Host, addr string, limit time.Duration) bool {
	t.Helper()
	c := from.In(Command{Path: os.Args[0]})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Env = append(os.Environ(), dialEnv+"="+addr)
	return cmd.Run() == nil
}
