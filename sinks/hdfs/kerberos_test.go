package hdfs_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks/hdfs"
)

// ticketLife is that of the tests' short tickets, clockSkew how long after its end one is still taken.
const (
	ticketLife = 6 * time.Second
	clockSkew  = 3 * time.Second
)

const etl = "etl"

// realm is a KDC, and a real HDFS that demands its tickets.
type realm struct {
	*testenv.KDC
	hdfs *testenv.HDFSServer
	sec  *testenv.Security
}

func startRealm(t *testing.T, requests, blocks string, more func(*testenv.Security)) *realm {
	t.Helper()
	r := &realm{KDC: testenv.StartKDC(t)}
	r.sec = testenv.Secure(t, r.KDC, requests, blocks)
	if more != nil {
		more(r.sec)
	}
	r.AddPrincipal(t, etl)
	r.hdfs = testenv.StartHDFS(t, testenv.HDFSConfig{Security: r.sec})
	return r
}

// settings are those of a sink that shows a principal's keytab.
func (r *realm) settings(principal, keytab, more string) string {
	return plain + fmt.Sprintf("    block_size: 1MiB\n    directory_mode: \"0777\"\n    kerberos: {principal: %s, keytab: %s, config: %s, service: nn/_HOST%s}\n", principal, keytab, r.Config(), more)
}

func (r *realm) principal(name string) string { return name + "@" + r.Realm }

// worker is a sink in path, which the superuser has made for all.
func (r *realm) worker(t *testing.T, path, settings string) *worker {
	t.Helper()
	protection := ", protection: " + r.sec.Blocks
	newWorker(t, r.hdfs.Addr, "", path, r.settings(r.sec.Superuser(), r.sec.Keytab, protection)).sink.Close()
	return newWorker(t, r.hdfs.Addr, "", path, settings)
}

// restart has all nodes come back, which knows no connection and no key of before.
func (r *realm) restart(t *testing.T) {
	t.Helper()
	r.hdfs.NameNode.Kill()
	for _, n := range r.hdfs.DataNodes {
		n.Kill()
	}
	r.hdfs.NameNode.Restart(t)
	for _, n := range r.hdfs.DataNodes {
		n.Restart(t)
	}
}

// check is what a sink says at its start.
func (r *realm) check(t *testing.T, path, settings string) error {
	t.Helper()
	pipe, err := pipeline(r.hdfs.Addr, "", path, settings)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := hdfs.New(slog.New(slog.DiscardHandler), pipe.Sinks[0])
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	_, err = sink.Check(context.Background())
	return err
}

// TestKerberos: a sink with a keytab of a real KDC writes to an HDFS that demands Kerberos and encrypts requests and blocks, and says what is wrong with a keytab, a principal
// or a service.
func TestKerberos(t *testing.T) {
	r := startRealm(t, "privacy", "privacy", nil)
	keytab := r.Keytab(t, etl)
	w := r.worker(t, "/secure", r.settings(r.principal(etl), keytab, ", protection: privacy"))
	if err := w.once(0, 299); err != nil {
		t.Fatal(err)
	}
	w.wantStored(300)

	r.AddPrincipal(t, "former")
	former := r.Keytab(t, "former")
	r.ChangeKey(t, "former")
	r.AddPrincipal(t, "gone")
	gone := r.Keytab(t, "gone")
	r.RemovePrincipal(t, "gone")
	for _, c := range []struct{ what, path, settings, want string }{
		{"another key", "/secure", r.settings(r.principal("former"), former, ""), "the key in " + former + " is not the principal's any more"},
		{"no key", "/secure", r.settings(r.principal(etl), former, ""), former + " has no key of " + r.principal(etl)},
		{"no principal", "/secure", r.settings(r.principal("gone"), gone, ""), "does not know " + r.principal("gone")},
		{"no permission", "/other", r.settings(r.principal(etl), keytab, ""), "permission denied"},
		{"no service", "/secure", strings.Replace(r.settings(r.principal(etl), keytab, ""), "nn/_HOST", "xx/_HOST", 1), "xx/127.0.0.1"},
		{"no Kerberos", "/secure", plain, "kerberos"},
	} {
		if err := r.check(t, c.path, c.settings); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		} else {
			t.Logf("%s: %v", c.what, err)
		}
	}
	r.Kill()
	if err := r.check(t, "/secure", r.settings(r.principal(etl), keytab, "")); err == nil || !strings.Contains(err.Error(), "no KDC of "+r.Config()+" answers") {
		t.Errorf("no KDC: %v", err)
	}
}

// TestTicketsEnd: sinks work over the end of their tickets, whether these are renewable or not. HDFS comes back in between and has forgotten its keys and connections; then the KDC
// is away until the tickets have ended, and the key of one is changed and its keytab written anew.
func TestTicketsEnd(t *testing.T) {
	if !*everyStep {
		t.Skip("takes a minute: make test-files")
	}
	r := startRealm(t, "authentication", "authentication", func(s *testenv.Security) { s.Encrypted = true })
	keytabs, workers := map[string]string{}, map[string]*worker{}
	for name, renewable := range map[string]string{"plain": "0 seconds", "renewable": "1 day", "changed": "0 seconds"} {
		r.AddPrincipal(t, name, "-maxlife", strconv.Quote(fmt.Sprint(int(ticketLife.Seconds()), " seconds")), "-maxrenewlife", strconv.Quote(renewable))
		keytabs[name] = r.Keytab(t, name)
		workers[name] = r.worker(t, "/"+name, r.settings(r.principal(name), keytabs[name], ""))
	}
	next := int64(0)
	write := func(when string) {
		t.Helper()
		for name, w := range workers {
			w.errs = nil
			w.until(time.Minute, func() error { return w.once(next, next+299) })
			w.wantStored(next + 300)
			t.Logf("%s, %s: %d tries failed, the last: %v", when, name, len(w.errs), last(w.errs))
		}
		next += 300
	}
	write("at first")
	pause(t, ticketLife+clockSkew)
	r.restart(t)
	write("HDFS restarted past the end of the tickets")

	r.Kill()
	pause(t, ticketLife+clockSkew)
	r.Restart(t)
	r.ChangeKey(t, "changed")
	if err := os.Rename(r.Keytab(t, "changed"), keytabs["changed"]); err != nil {
		t.Fatal(err)
	}
	r.restart(t)
	write("the KDC was away until the tickets had ended")
}

// TestProtections: which protections of requests and of blocks the client can do with, and that a start says so where it cannot.
func TestProtections(t *testing.T) {
	if !*everyStep {
		t.Skip("takes a minute: make test-files")
	}
	const unreadable = "cannot be read back"
	for _, c := range []struct {
		requests, blocks string
		withoutAES       bool
		refused          string
	}{
		{"authentication", "authentication", false, ""},
		{"integrity", "authentication", false, ""},
		{"authentication", "privacy", false, ""},
		{"authentication", "integrity", false, unreadable},
		{"authentication", "privacy", true, unreadable},
	} {
		t.Run(fmt.Sprint(c.requests, " ", c.blocks, " without AES ", c.withoutAES), func(t *testing.T) {
			r := startRealm(t, c.requests, c.blocks, func(s *testenv.Security) { s.WithoutAES = c.withoutAES })
			settings := r.settings(r.sec.Superuser(), r.sec.Keytab, ", protection: "+c.blocks)
			if c.refused != "" {
				if err := r.check(t, "/x", settings); err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%v, want %q", err, c.refused)
				}
				return
			}
			w := newWorker(t, r.hdfs.Addr, "", "/x", settings)
			if err := w.once(0, 999); err != nil {
				t.Fatal(err)
			}
			w.wantStored(1000)
		})
	}
}
