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
	// collectedWithin is longer than the two minutes after which the runtime
	// collects garbage in a process that allocates nothing.
	collectedWithin = 150 * time.Second
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

// The agent as a process, against our broker: resident memory.
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
	r.eventuallyOf("the memory of the first reading is given back", collectedWithin, func() bool {
		_, own := memoryOf(t, p.PID())
		return own < idleBytesMax
	})
	all, own := memoryOf(t, p.PID())
	t.Logf("%d idle files: %.1f MiB resident, %.1f MiB of them its own", idleFiles, float64(all)/(1<<20), float64(own)/(1<<20))
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

func procFile(t testing.TB, pid int, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
