package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// peakMemory is the most that a process ever had resident, in bytes.
func peakMemory(t *testing.T, pid int) (peak int64) {
	t.Helper()
	for line := range strings.Lines(readText(t, fmt.Sprintf("/proc/%d/status", pid))) {
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &peak)
	}
	return peak << 10
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// randomLines writes a file of lines that do not compress.
func randomLines(t *testing.T, path string, bytes, line int) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewWriterSize(f, 1<<20)
	rng := rand.New(rand.NewPCG(1, uint64(line)))
	block := make([]byte, 1<<16)
	for i := range block {
		block[i] = byte('!' + rng.IntN(94))
	}
	for n := 0; n < bytes; n += line {
		for left := line - 1; left > 0; {
			at := rng.IntN(len(block) / 2)
			k := min(left, len(block)-at)
			_, _ = out.Write(block[at : at+k]) // Flush tells
			left -= k
		}
		_ = out.WriteByte('\n')
	}
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Several pipelines have a backlog, one of them of huge lines, while the broker does not answer and then answers slowly: the process stays
// below its limit, and afterwards everything is delivered.
func TestMemoryLimit(t *testing.T) {
	const limit = 128 << 20
	dir := t.TempDir()
	broker := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	proxy := testenv.StartProxy(t, broker)
	config := writeFile(t, "broker.yaml", fmt.Sprintf("advertised.listeners: PLAINTEXT://%s\nmessage.max.bytes: 8388608\n", proxy.Addr()))
	testenv.Start(t, testenv.Command{Name: "broker", Path: testenv.Sluice(t),
		Args:  []string{"broker", "--config", config, "--data", filepath.Join(dir, "broker"), "--listen", broker, "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, broker) }})
	var yaml strings.Builder
	for i := range 4 {
		line, most := 200, "1MiB"
		if i == 3 {
			line, most = 4<<20, "5MiB"
		}
		randomLines(t, filepath.Join(dir, fmt.Sprintf("%d.log", i)), 48<<20, line)
		fmt.Fprintf(&yaml, "---\npipeline: p%d\ncollect: {file: {include: ['%s/%d.log'], headers: false, line_bytes_max: %s}}\ntopic: {name: p%d, partitions: 4, compression: none, spread: round_robin}\n", i, dir, i, most, i)
	}
	a := &liveAgent{t: t, dir: dir, addr: proxy.Addr(), file: filepath.Join(dir, "p.yaml"), metrics: fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)),
		args: []string{"--memory-max", "128MiB", "--journal-bytes-max", "67108864"}}
	a.configure(yaml.String())
	a.start()
	waitUntil(t, "lines are delivered", func() bool { return a.metric("sluice_agent_bytes_acked_total") > 8<<20 })
	proxy.Stall()
	<-time.After(3 * time.Second)
	dead := peakMemory(t, a.now.PID())
	for range 20 { // slow: it answers a fifth of the time
		proxy.Flow()
		<-time.After(20 * time.Millisecond)
		proxy.Stall()
		<-time.After(80 * time.Millisecond)
	}
	slow := peakMemory(t, a.now.PID())
	proxy.Flow()
	waitUntil(t, "everything is delivered", func() bool { return a.metric("sluice_agent_bytes_acked_total") >= 4*48<<20 })
	all := peakMemory(t, a.now.PID())
	t.Logf("%s", regexp.MustCompile(`(?m)^(VmHWM|RssAnon|RssFile|VmRSS).*$`).FindAllString(readText(t, fmt.Sprintf("/proc/%d/status", a.now.PID())), -1))
	t.Logf("resident at most: broker silent %d MiB, slow %d MiB, to the end %d MiB, of %d", dead>>20, slow>>20, all>>20, limit>>20)
	if all > limit {
		t.Errorf("the process took %d MiB of %d", all>>20, limit>>20)
	}
	a.configure(strings.Replace(yaml.String(), "5MiB", "16MiB", 1))
	a.hangUp()
	waitUntil(t, "lines that there is no memory for are refused", func() bool { return strings.Contains(a.now.Output(), "raise --memory-max, or lower line_bytes_max") })
}
