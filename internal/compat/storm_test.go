package compat

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	stormCalm       = 2 * time.Second // before the storm, to compare with
	stormTime       = 6 * time.Second
	stormSenders    = 8                     // of each kind that connects again and again
	stormDrippers   = 40                    // connections that stay
	stormPause      = 5 * time.Millisecond  // of each sender between two connections
	stormDrip       = 50 * time.Millisecond // of each dripper between two bytes
	stormFrameBytes = 50 << 20              // announced by a dripper, allowed by the broker
	stormInterval   = 5 * time.Millisecond  // between two records of the client beside it

	stormMemoryMax = 64 << 20 // bytes that the broker may grow by
)

// TestGarbageStorm lets dozens of connections send what is no request, while a
// client beside them goes on as before and the broker's memory does not grow.
func TestGarbageStorm(t *testing.T) {
	if *against != "sluice" || runtime.GOOS != "linux" {
		t.Skip("reads the memory of sluice from /proc")
	}
	b := startBroker(t)
	makeTopic(t, b, "beside", 1)
	client := newClient(t, b, kgo.ProducerLinger(0))
	calm := latencies(t, client, stormCalm)
	before := resident(t, b.PID())

	ctx, cancel := context.WithTimeout(t.Context(), stormTime)
	defer cancel()
	var storm sync.WaitGroup
	for _, send := range []func(net.Conn){sendRandom, sendHalfFrame, sendBadSize} {
		for range stormSenders {
			storm.Go(func() { again(ctx, b.addr, send) })
		}
	}
	for range stormDrippers {
		storm.Go(func() { drip(ctx, b.addr) })
	}
	var memory []int
	storm.Go(func() {
		for tick := time.Tick(100 * time.Millisecond); ctx.Err() == nil; <-tick {
			memory = append(memory, resident(t, b.PID()))
		}
	})
	beside := latencies(t, client, stormTime-500*time.Millisecond)
	storm.Wait()

	most := slices.Max(memory)
	t.Logf("p50 and p99 of a record: %s and %s in the calm, %s and %s in the storm; resident memory %d KiB before, %d KiB at most",
		at(calm, 50), at(calm, 99), at(beside, 50), at(beside, 99), before>>10, most>>10)
	// How long a record takes is the machine's business as much as the broker's: it
	// is told above, not judged. That each was acknowledged, latencies has checked.
	if most-before > stormMemoryMax {
		t.Errorf("the broker grew by %d KiB", (most-before)>>10)
	}
}

// latencies writes records one by one and returns how long each took, sorted.
func latencies(t *testing.T, client *kgo.Client, span time.Duration) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), span+waitTimeout)
	defer cancel()
	var all []time.Duration
	tick := time.NewTicker(stormInterval)
	defer tick.Stop()
	for end := time.Now().Add(span); time.Now().Before(end); <-tick.C {
		start := time.Now()
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: "beside", Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all
}

func at(sorted []time.Duration, percent int) time.Duration {
	return sorted[len(sorted)*percent/100].Round(10 * time.Microsecond)
}

// resident is a process's resident memory in bytes.
func resident(t *testing.T, pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Errorf("no resident memory in %s", status)
		return 0
	}
	kib, _ := strconv.Atoi(string(m[1]))
	return kib << 10
}

// again connects until ctx ends, each time sending something for a moment.
func again(ctx context.Context, addr string, send func(net.Conn)) {
	tick := time.NewTicker(stormPause)
	defer tick.Stop()
	for ctx.Err() == nil {
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			send(conn)
			conn.Close()
		}
		<-tick.C
	}
}

func sendRandom(conn net.Conn) {
	b := make([]byte, rand.IntN(4096))
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	_, _ = conn.Write(b)
}

// sendHalfFrame is gone in the middle of a request.
func sendHalfFrame(conn net.Conn) {
	b := binary.BigEndian.AppendUint32(nil, uint32(1<<20))
	b = append(b, 0, 0, 0, 9) // Produce, version 9
	_, _ = conn.Write(append(b, make([]byte, rand.IntN(1<<16))...))
}

// sendBadSize announces frames that no broker takes, and waits to be cut off.
func sendBadSize(conn net.Conn) {
	sizes := []uint32{0, 1, 0xffffffff, 0x80000000, 0x7fffffff}
	b := binary.BigEndian.AppendUint32(nil, sizes[rand.IntN(len(sizes))])
	_, _ = conn.Write(append(b, make([]byte, 64)...))
	_, _ = conn.Read(make([]byte, 1))
}

// drip keeps a connection on which a large frame comes byte by byte.
func drip(ctx context.Context, addr string) {
	tick := time.NewTicker(stormDrip)
	defer tick.Stop()
	for ctx.Err() == nil {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_, err = conn.Write(binary.BigEndian.AppendUint32(nil, stormFrameBytes))
		}
		for err == nil && ctx.Err() == nil {
			_, err = conn.Write([]byte{0})
			<-tick.C
		}
		if conn != nil {
			conn.Close()
		}
		<-tick.C
	}
}
