package hdfs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
	"github.com/sluice-io/sluice/sinks/directory"
	"github.com/sluice-io/sluice/sinks/hdfs"
)

// worker writes claims as the sinks' worker does: it asks what is stored before each try, and tries until the claim is stored.
type worker struct {
	testing.TB
	pipe *pipelines.Pipeline
	sink *directory.Sink
	errs []error
}

func newWorker(t testing.TB, addr, user, path, more string) *worker {
	t.Helper()
	pipe, err := pipeline(addr, user, path, more)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := hdfs.New(slog.New(slog.DiscardHandler), pipe.Sinks[0])
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{TB: t, pipe: pipe, sink: sink}
	t.Cleanup(func() { sink.Close() })
	w.until(30*time.Second, func() error {
		_, err := sink.Check(context.Background())
		return err
	})
	return w
}

// until repeats what fails until it does not, and keeps the errors.
func (w *worker) until(limit time.Duration, try func() error) {
	w.Helper()
	for deadline := time.Now().Add(limit); ; {
		err := try()
		if err == nil {
			return
		}
		if w.errs = append(w.errs, err); time.Now().After(deadline) {
			w.Fatalf("for %s: %v", limit, err)
		}
		retry := time.NewTimer(200 * time.Millisecond) // the worker's backoff
		select {
		case <-retry.C:
		case <-w.Context().Done():
			w.Fatal(w.Context().Err())
		}
	}
}

var faultTopic = sinks.TopicID{1}

// rowBytes make a claim of a few hundred rows several packets long.
const rowBytes = 4000

// once tries to store a claim.
func (w *worker) once(lo, hi int64) error {
	c := sinks.Claim{Pipeline: "p", Topic: "p", TopicID: faultTopic, Lo: lo, Hi: hi}
	stored, err := w.sink.Stored(context.Background(), c)
	if err != nil {
		return err
	}
	b, err := w.sink.NewBlock()
	if err != nil {
		return err
	}
	for i := lo; i <= hi; i++ {
		if len(stored.Present) > 0 && stored.Present[0].Lo <= i && i <= stored.Present[0].Hi {
			continue
		}
		var e pipelines.Event
		value := fmt.Appendf(nil, `{"n":%d,"pad":%q}`, i, strings.Repeat(string(rune('a'+i%26)), rowBytes))
		if err := w.pipe.ReadRecord(&e, pipelines.Meta{Topic: "p", Offset: i, Time: time.Unix(1_800_000_000, 0)}, value); err != nil {
			return err
		}
		if err := b.Append(&e); err != nil {
			return err
		}
	}
	if b.Rows() == 0 {
		return nil
	}
	return w.sink.Write(context.Background(), &sinks.Batch{Claim: c, Block: b, Identity: fmt.Sprint(c.Identity(), stored.Present)})
}

// wantStored reads the files back and wants each offset once.
func (w *worker) wantStored(n int64) {
	w.Helper()
	f, err := hdfs.NewFS(w.pipe.Sinks[0].HDFS)
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	seen, files := map[int64]bool{}, map[string]bool{}
	err = directory.ReadFrom(f, func(row directory.Row) error {
		if seen[row.Offset] || row.Fields["n"] != row.Offset || len(row.Fields["pad"].(string)) != rowBytes {
			return fmt.Errorf("offset %d in %s is doubled or damaged", row.Offset, row.File)
		}
		seen[row.Offset], files[row.File] = true, true
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	wantNoEmptyFiles(w, f, files, "")
	if int64(len(seen)) != n {
		w.Errorf("%d offsets are stored, want %d", len(seen), n)
	}
}

const plain = "    format: json\n    compression: none\n    timeout: 3s\n"

// TestQuota: a directory that is full holds its worker up until there is room, and has no torn file; the message says what is full.
func TestQuota(t *testing.T) {
	s := testenv.HDFS(t)
	w := newWorker(t, s.Addr, s.User, "/quota", plain+"    block_size: 1MiB\n")
	if err := w.once(0, 99); err != nil {
		t.Fatal(err)
	}
	quota := func(bytes string) {
		s.WebHDFS(t, http.MethodPut, "/quota", url.Values{"op": {"SETQUOTA"}, "namespacequota": {"9223372036854775807"}, "storagespacequota": {bytes}})
	}
	quota("1500000")
	for range 2 {
		if err := w.once(100, 399); err == nil || !strings.Contains(err.Error(), "QuotaExceeded") || !strings.Contains(err.Error(), "quota") {
			t.Fatalf("%v", err)
		}
	}
	w.wantStored(100)
	quota("-1")
	if err := w.once(100, 399); err != nil {
		t.Fatal(err)
	}
	w.wantStored(400)
}

// TestFilesAreMadeAsTold: permission bits, replication and block size.
func TestFilesAreMadeAsTold(t *testing.T) {
	s := testenv.HDFS(t)
	w := newWorker(t, s.Addr, s.User, "/told", plain+"    block_size: 1MiB\n    replication: 1\n    file_mode: \"0640\"\n    directory_mode: \"0750\"\n    partition: {path: \"n={n % 2}\"}\n")
	if err := w.once(0, 399); err != nil {
		t.Fatal(err)
	}
	w.wantStored(400)
	list := string(s.WebHDFS(t, http.MethodGet, "/told/n=1", url.Values{"op": {"LISTSTATUS"}}))
	for _, want := range []string{`"permission":"640"`, `"blockSize":1048576`, `"replication":1`} {
		if !strings.Contains(list, want) {
			t.Errorf("no %s in %s", want, list)
		}
	}
	if list := string(s.WebHDFS(t, http.MethodGet, "/told", url.Values{"op": {"LISTSTATUS"}})); !strings.Contains(list, `"permission":"750"`) {
		t.Error(list)
	}
}

// TestNoPermission says so, and never takes it for the records' fault.
func TestNoPermission(t *testing.T) {
	s := testenv.HDFS(t)
	newWorker(t, s.Addr, s.User, "/owned", plain)
	pipe, err := pipeline(s.Addr, "mallory", "/owned", plain)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := hdfs.New(slog.New(slog.DiscardHandler), pipe.Sinks[0])
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	_, err = sink.Check(t.Context())
	if err == nil || !strings.Contains(err.Error(), "permission denied") || !strings.Contains(err.Error(), "/owned") {
		t.Errorf("%v", err)
	}
}

// TestPermissionTakenAway while the sink runs: it waits, says so, and goes on when it may write again.
func TestPermissionTakenAway(t *testing.T) {
	s := testenv.HDFS(t)
	newWorker(t, s.Addr, s.User, "/taken", plain)
	owner := func(name string) {
		t.Helper()
		s.WebHDFS(t, http.MethodPut, "/taken", url.Values{"op": {"SETOWNER"}, "owner": {name}})
	}
	owner("mallory")
	w := newWorker(t, s.Addr, "mallory", "/taken", plain)
	if err := w.once(0, 9); err != nil {
		t.Fatal(err)
	}
	owner(s.User)
	for range 2 {
		err := w.once(10, 19)
		var reject *sinks.RejectError
		if err == nil || errors.As(err, &reject) || !strings.Contains(err.Error(), "permission denied") {
			t.Fatalf("%v", err)
		}
		w.wantStored(10)
	}
	owner("mallory")
	if err := w.once(10, 19); err != nil {
		t.Fatal(err)
	}
	w.wantStored(20)
}

// TestCloseIsWaitedFor: DataNodes that report late have the NameNode say that a file is not complete yet; it gets its final name when it is, and not before.
func TestCloseIsWaitedFor(t *testing.T) {
	if !*everyStep {
		t.Skip("starts an HDFS of its own: make test-files")
	}
	s := testenv.StartHDFS(t, testenv.HDFSConfig{LateReports: true})
	w := newWorker(t, s.Addr, s.User, "/late", plain) // files of one block
	for lo := int64(0); lo < 900; lo += 300 {
		if err := w.once(lo, lo+299); err != nil {
			t.Fatal(err)
		}
	}
	w.wantStored(900)
	log := s.NameNode.Output()
	renames := regexp.MustCompile(`cmd=rename \S+\s+src=(\S+)\s+dst=/late/p-0-`).FindAllStringSubmatchIndex(log, -1)
	if len(renames) != 3 {
		t.Fatalf("%d files got a final name, want 3", len(renames))
	}
	waited := 0
	for _, at := range renames {
		before, temporary := log[:at[0]], log[at[2]:at[3]]
		if !strings.Contains(before, "completeFile: "+temporary+" is closed") {
			t.Errorf("%s got its final name before it was complete", temporary)
		}
		if strings.Contains(before, "is COMMITTED but not COMPLETE") && strings.Contains(before, "in file "+temporary) {
			waited++
		}
	}
	if waited == 0 {
		t.Error("the NameNode has never said that a file is not complete yet: the test tests nothing")
	}
}

// TestFirstNameNodeIsGone: the next of the list is taken.
func TestFirstNameNodeIsGone(t *testing.T) {
	s := testenv.HDFS(t)
	gone := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	w := newWorker(t, gone+", "+`"`+s.Addr+`"`, s.User, "/second", plain)
	if err := w.once(0, 9); err != nil {
		t.Fatal(err)
	}
	w.wantStored(10)
}

// TestKerberosSettings are checked before anything is connected to.
func TestKerberosSettings(t *testing.T) {
	dir := t.TempDir()
	pipe, err := pipelines.Parse("k.yaml", fmt.Appendf(nil, `pipeline: p
sink:
  hdfs:
    namenodes: [127.0.0.1:1]
    path: /x
    kerberos: {principal: etl@EXAMPLE.COM, keytab: %s/none.keytab, config: %s/krb5.conf, service: nn/_HOST}
`, dir, dir))
	if err != nil {
		t.Fatal(err)
	}
	sink, err := hdfs.New(slog.New(slog.DiscardHandler), pipe[0].Sinks[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "kerberos.config") || !strings.Contains(err.Error(), "krb5.conf") {
		t.Errorf("%v", err)
	}
}

// TestNodesDie kills a DataNode in the middle of writes, then the NameNode, then has both come back: claims are stored once each, and what a dead process
// had open is in nobody's way.
func TestNodesDie(t *testing.T) {
	if !*everyStep {
		t.Skip("takes a minute: make test-files")
	}
	s := testenv.StartHDFS(t, testenv.HDFSConfig{DataNodes: 2, Replication: 2})
	w := newWorker(t, s.Addr, s.User, "/table", plain+"    block_size: 1MiB\n")
	if err := w.once(0, 999); err != nil {
		t.Fatal(err)
	}

	// A DataNode dies under the writes: until the NameNode has noticed, some files land on it.
	died := make(chan struct{})
	go func() {
		defer close(died)
		s.DataNodes[0].Kill()
	}()
	for lo := int64(1000); lo < 8000; lo += 1000 {
		w.until(time.Minute, func() error { return w.once(lo, lo+999) })
	}
	<-died
	t.Logf("a DataNode died: %d tries failed, the last: %v", len(w.errs), last(w.errs))
	s.DataNodes[0].Restart(t)
	s.AwaitLive(t, 2)
	w.wantStored(8000)

	// The NameNode dies and comes back, with its DataNodes a little later: in between it is in safe mode.
	w.errs = nil
	s.NameNode.Kill()
	for _, n := range s.DataNodes {
		n.Kill()
	}
	if err := w.once(8000, 8999); err == nil {
		t.Fatal("a claim was stored without an HDFS")
	}
	s.NameNode.Restart(t)
	w.until(30*time.Second, func() error {
		err := w.once(8000, 8999)
		if err == nil {
			return errors.New("a claim was stored in safe mode")
		}
		if !strings.Contains(err.Error(), "SafeMode") {
			return err
		}
		return nil
	})
	for _, n := range s.DataNodes {
		n.Restart(t)
	}
	w.until(time.Minute, func() error { return w.once(8000, 8999) })
	w.wantStored(9000)
}

func last(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[len(errs)-1]
}
