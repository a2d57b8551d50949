package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-io/sluice/internal/testenv"
)

// A rival is one running broker.
type rival struct {
	name  string
	addr  string
	pid   int
	data  string        // directory of its partitions
	ready time.Duration // from start to the first answer
}

// startOurs starts a binary of this broker. Without fsync the flush is left to the kernel, as Kafka leaves it.
func startOurs(t *testing.T, name, binary string, fsync bool) rival {
	dir := t.TempDir()
	config := filepath.Join(dir, "broker.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "log.group.fsync.enable: %v\n", fsync), 0o644); err != nil {
		t.Fatal(err)
	}
	addr, data := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), filepath.Join(dir, "data")
	start := time.Now()
	p := testenv.Start(t, testenv.Command{Name: name, Path: binary,
		Args:  []string{"broker", "--config", config, "--data", data, "--listen", addr, "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, addr) }})
	return rival{name, addr, p.PID(), data, time.Since(start)}
}

// startKafka starts an Apache Kafka that removes the files of a deleted topic at once, as this broker does: otherwise each load would pay
// for the removal of the one before.
func startKafka(t *testing.T) rival {
	start := time.Now()
	k := testenv.StartKafka(t, testenv.KafkaConfig{Measured: true, Properties: map[string]string{"log.segment.delete.delay.ms": "0", "file.delete.delay.ms": "0"}})
	return rival{"Kafka", k.Addr, k.PID(), k.LogDir(), time.Since(start)}
}

// removed waits until nothing of a deleted topic is left on disk.
func (r rival) removed(t *testing.T, topic string) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		left, err := filepath.Glob(filepath.Join(r.data, topic+"*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s still has %s of a deleted topic", r.name, left[0])
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// cpu is the processor time of a process: its own and the kernel's for it.
type cpu struct{ user, system time.Duration }

func (c cpu) total() time.Duration  { return c.user + c.system }
func (c cpu) since(before cpu) cpu  { return cpu{c.user - before.user, c.system - before.system} }
func (c cpu) systemShare() float64  { return float64(c.system) / float64(max(c.total(), 1)) }
func (c cpu) perGB(b int64) float64 { return c.total().Seconds() / (float64(b) / 1e9) }

// clockTick is the unit of the CPU times in /proc (USER_HZ), the same on all Linux systems Go runs on.
const clockTick = 10 * time.Millisecond

func (r rival) cpu(t *testing.T) cpu {
	t.Helper()
	return processCPU(t, r.pid)
}

func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	return processCPU(t, pid).total()
}

func processCPU(t *testing.T, pid int) cpu {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("CPU times are read from /proc: ", err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return cpu{time.Duration(user) * clockTick, time.Duration(system) * clockTick}
}

func residentMB(t *testing.T, r rival) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid))
	if err != nil {
		t.Skip("memory is read from /proc: ", err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kb, _ := strconv.Atoi(strings.Fields(rest)[0])
	return float64(kb) / 1e3
}

// What warmMemory writes: somewhat more than a load does, in writes as large as a broker's. A round that costs less than warmPerGB has found
// all of its pages there; when rounds do not get cheaper, so be it.
const (
	warmMemoryBytes = loadBytes + 100_000_000
	warmWriteBytes  = 1 << 20
	warmPerGB       = 350 * time.Millisecond
	warmRoundsMax   = 5
)

// warmMemory fills the page cache with a file and removes it, so that the load that follows gets pages that this machine really has. A virtual
// machine gives free memory back to its host, and gets it again page by page at ten times the cost of a write: measured without this, a
// broker's CPU per GB is that of the host.
func warmMemory(t *testing.T, r rival) {
	t.Helper()
	for range warmRoundsMax {
		before := systemTime()
		if err := writeAndRemove(filepath.Join(filepath.Dir(r.data), "warm")); err != nil {
			t.Fatal("warm memory: ", err)
		}
		if (systemTime()-before)*1e9/warmMemoryBytes < warmPerGB {
			return
		}
	}
}

func writeAndRemove(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	defer f.Close()
	chunk := make([]byte, warmWriteBytes)
	for n := 0; n < warmMemoryBytes; n += len(chunk) {
		if _, err := f.Write(chunk); err != nil {
			return err
		}
	}
	return nil
}

// systemTime is what the kernel has spent on this process.
func systemTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0 // cannot fail for oneself
	}
	return time.Duration(u.Stime.Nano())
}
