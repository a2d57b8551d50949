package agent

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

const (
	idleFiles = 10_000
	// idleBytesMax is what following them may take.
	idleBytesMax = 50 << 20
	// idleShareMax is the part of a core that they may take, in per cent.
	idleShareMax = 3
)

func (r *rig) writeMany(n int) {
	r.t.Helper()
	for i := range n {
		r.write(fmt.Sprintf("%05d.log", i), fmt.Sprintf("first line of %05d\nsecond line\n", i))
	}
}

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Not beside other tests: it measures the heap of the process.
func TestIdleFilesMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 10,000 files: not with -short")
	}
	r := newRig(t, plainPipeline)
	r.store.discard = true
	r.writeMany(idleFiles)
	before := heapBytes()
	r.start()
	r.eventually("all are read", func() bool { return r.account().Acked.Lines == 2*idleFiles })
	r.settled()
	used := heapBytes() - before
	t.Logf("%d idle files: %.1f MiB of heap, %d bytes a file", idleFiles, float64(used)/(1<<20), used/idleFiles)
	if used > idleBytesMax/2 { // half, since the collector lets the heap double
		t.Errorf("%d bytes of heap", used)
	}
}

// The agent as a process, against our broker: resident memory and CPU time.
func TestIdleFilesProcess(t *testing.T) {
	t.Parallel()
	program := testenv.Sluice(t)
	r := newRig(t, plainPipeline)
	r.writeMany(idleFiles)
	pipeline := filepath.Join(t.TempDir(), "pipeline.yaml")
	if err := os.WriteFile(pipeline, []byte(strings.ReplaceAll(plainPipeline, "DIR", r.dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	broker := startBroker(t, program)
	p := testenv.Start(t, testenv.Command{
		Name: "agent", Path: program,
		Args: []string{"agent", pipeline, "--state", r.state, "--brokers", broker, "--metrics", ""},
	})
	checkpoint := func() bool {
		data, err := os.ReadFile(filepath.Join(r.state, checkpointName))
		return err == nil && bytes.Count(data, []byte(`"offset":`)) == idleFiles && !bytes.Contains(data, []byte(`"offset":0,`))
	}
	r.eventuallyOf("all are delivered", 3*patience, checkpoint)
	const span = 12 * time.Second // longer than the pause between two scans
	begun := processTime(t, p.PID())
	r.eventuallyOf("time passes", span+patience, passed(span))
	share := 100 * (processTime(t, p.PID()) - begun).Seconds() / span.Seconds()
	all, own := memoryOf(t, p.PID())
	t.Logf("%d idle files: %.2f %% of a core, %.1f MiB resident, %.1f MiB of them its own", idleFiles, share, float64(all)/(1<<20), float64(own)/(1<<20))
	if share > idleShareMax {
		t.Errorf("%.2f %% of a core when idle", share)
	}
	r.eventuallyOf("the memory of the first reading is given back", 3*patience, func() bool {
		_, own := memoryOf(t, p.PID())
		return own < idleBytesMax
	})
}

// startBroker starts our broker and returns its address.
func startBroker(t testing.TB, program string) string {
	t.Helper()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(t)))
	testenv.Start(t, testenv.Command{
		Name: "broker", Path: program,
		Args:  []string{"broker", "--listen", addr, "--data", t.TempDir(), "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, addr) },
	})
	return addr
}

// memoryOf returns a process's resident bytes, and those of them that are not
// the program's file, which the system shares and takes back as it likes.
func memoryOf(t testing.TB, pid int) (all, own int64) {
	t.Helper()
	for line := range strings.Lines(procFile(t, pid, "status")) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &all)
		_, _ = fmt.Sscanf(line, "RssAnon: %d kB", &own)
	}
	if all == 0 || own == 0 {
		t.Fatal("no memory figures in /proc")
	}
	return all << 10, own << 10
}

// processTime is what a process has used of all cores.
func processTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	stat := procFile(t, pid, "stat")
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	const ticksPerSecond = 100 // USER_HZ, the same on all architectures Go runs on
	return time.Duration(user+system) * time.Second / ticksPerSecond
}

func procFile(t testing.TB, pid int, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
