package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// mixed is an agent as a process with an input of each kind, each with a topic of its own, and somebody who writes numbers into each.
type mixed struct {
	*liveAgent
	kinds   []string
	collect map[string]string
	write   map[string]func(i int) error
	connect []func()
}

func newMixed(t *testing.T) *mixed {
	t.Helper()
	m := &mixed{liveAgent: newLiveAgent(t, "--watch-config"), collect: map[string]string{}, write: map[string]func(int) error{}}
	for _, kind := range []string{"tcp", "udp", "unix", "unixgram"} {
		m.socket(kind)
	}
	for kind, collect := range map[string]string{"pipe": "pipe: {path: 'DIR/pipe'}", "stdin": "stdin: {}", "exec": `exec: {command: [sh, -c, 'echo $$ > DIR/exec.pid; exec cat DIR/exec']}`} {
		m.fifo(kind, collect)
	}
	collect, write := spokenTexts(t)
	m.add("journald", strings.TrimSuffix(collect, "}")+", format: event}", func(i int) error { return write(strconv.Itoa(i), i) })
	m.add("file", "file: {include: ['DIR/app.log']}", func(i int) error {
		f, err := os.OpenFile(filepath.Join(m.dir, "app.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(f, "%d\n", i)
		return errors.Join(err, f.Close())
	})
	return m
}

func (m *mixed) add(kind, collect string, write func(int) error) {
	m.kinds = append(m.kinds, kind)
	m.collect[kind], m.write[kind] = collect, write
}

func (m *mixed) socket(kind string) {
	addr := filepath.Join(m.dir, kind+".sock")
	switch kind {
	case "tcp":
		addr = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(m.t))
	case "udp":
		free, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			m.t.Fatal(err)
		}
		addr = free.LocalAddr().String()
		free.Close()
	}
	var c net.Conn
	m.connect = append(m.connect, func() {
		if c != nil {
			c.Close()
		}
		waitUntil(m.t, kind+" is listened at", func() bool {
			var err error
			c, err = net.Dial(kind, addr)
			return err == nil
		})
		m.t.Cleanup(func() { c.Close() })
	})
	m.add(kind, fmt.Sprintf("syslog: {listen: ['%s://%s'], format: raw}", kind, addr), func(i int) error {
		_, err := fmt.Fprintf(c, "%d\n", i)
		return err
	})
}

// fifo is a named pipe that is held open, so that what is in it outlives whoever reads it.
func (m *mixed) fifo(kind, collect string) {
	path := filepath.Join(m.dir, kind)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		m.t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { f.Close() })
	m.add(kind, collect, func(i int) error {
		_, err := fmt.Fprintf(f, "%d\n", i)
		return err
	})
}

// pipelines writes the pipeline file. more is added to the pipelines of some kinds.
func (m *mixed) pipelines(more string, kinds ...string) {
	m.t.Helper()
	var text strings.Builder
	for _, kind := range m.kinds {
		extra := ""
		for _, k := range kinds {
			if k == kind {
				extra = more
			}
		}
		fmt.Fprintf(&text, "pipeline: %s\ncollect:\n  %s\n%stopic: {name: %s, partitions: 2}\n---\n", kind, m.collect[kind], extra, kind)
	}
	m.configure(text.String())
}

// run starts the agent, with the pipe as its standard input, and connects.
func (m *mixed) run() {
	m.t.Helper()
	m.now = testenv.Start(m.t, testenv.Command{Name: "agent", Path: "/bin/sh", Dir: m.dir,
		Args: append([]string{"-c", `exec "$0" "$@" < ` + filepath.Join(m.dir, "stdin"), testenv.Sluice(m.t), "agent", m.file, "--state", m.state(),
			"--brokers", m.addr, "--metrics", m.metrics}, m.args...),
		Ready: func(ctx context.Context) error { return getOK(ctx, "http://"+m.metrics+"/healthz") }})
	m.dial()
}

// kill kills the agent, and the command that it leaves behind, which would take from the pipe what the next one's is.
func (m *mixed) kill() {
	m.now.Kill()
	text, err := os.ReadFile(filepath.Join(m.dir, "exec.pid"))
	if err != nil {
		m.t.Error(err)
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		m.t.Error(err)
	}
}

// dial connects when all is listened at: datagrams are lost before.
func (m *mixed) dial() {
	m.t.Helper()
	waitUntil(m.t, "the agent is ready", func() bool { return getOK(m.t.Context(), "http://"+m.metrics+"/readyz") == nil })
	for _, connect := range m.connect {
		connect()
	}
}

// writeAll writes numbers into all, at a pace that datagrams are not lost at, and reports from where on an input could not be written to.
func (m *mixed) writeAll(from, to int) *sync.Map {
	var all sync.WaitGroup
	failed := &sync.Map{}
	for _, kind := range m.kinds {
		all.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for i := from; i < to; i++ {
				if err := m.write[kind](i); err != nil {
					failed.Store(kind, err)
					return
				}
				if i%10 == 0 {
					<-tick.C
				}
			}
		})
	}
	all.Wait()
	return failed
}

func (m *mixed) mustWrite(from, to int) {
	m.t.Helper()
	failed := m.writeAll(from, to)
	failed.Range(func(kind, err any) bool {
		m.t.Fatalf("%v: %v", kind, err)
		return false
	})
}

// sent is how many lines of a pipeline have been in its journal since the start.
func (m *mixed) sent(kind string) (n int) {
	body := getText(m.t, "http://"+m.metrics+"/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "sluice_agent_lines_sent_total{") && strings.Contains(line, `pipeline="`+kind+`"`) {
			f, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			if err != nil {
				m.t.Fatal(err)
			}
			n += int(f)
		}
	}
	return n
}

// numbers are those that a topic holds, with how often.
func (m *mixed) numbers(kind string, least int) map[int]int {
	m.t.Helper()
	times := map[int]int{}
	for _, v := range readTopics(m.t, m.addr, least, kind) {
		if strings.HasPrefix(v, "{") {
			var e struct{ MESSAGE string }
			if err := json.Unmarshal([]byte(v), &e); err != nil {
				m.t.Fatal(err)
			}
			v = e.MESSAGE
		}
		i, err := strconv.Atoi(v)
		if err != nil {
			m.t.Errorf("%s: a record that was not written: %q", kind, v)
		}
		times[i]++
	}
	return times
}

// holdOnce checks that each topic holds each of n numbers once.
func (m *mixed) holdOnce(when string, n int) {
	m.t.Helper()
	for _, kind := range m.kinds {
		m.holds(when, kind, m.numbers(kind, n), n, n)
	}
}

// holds checks that the first numbers are there, and that none of all is there twice.
func (m *mixed) holds(when, kind string, times map[int]int, first, all int) {
	m.t.Helper()
	missing, doubled := 0, 0
	for i := range first {
		if times[i] == 0 {
			missing++
		}
	}
	for i, k := range times {
		if k > 1 || i >= all {
			doubled++
		}
	}
	if missing+doubled > 0 {
		m.t.Errorf("%s: %s: of %d, %d are missing, %d there more than once or never written", when, kind, first, missing, doubled)
	}
}

// Reloads by SIGHUP and by a changed file, and a SIGKILL, with an input of each kind in one process: what is undisturbed goes on, what
// changes loses nothing that had come, and what the journal holds is delivered once.
func TestMixedInputs(t *testing.T) {
	m := newMixed(t)
	m.broker.up()
	m.pipelines("")
	m.run()
	m.mustWrite(0, 300)
	m.holdOnce("at first", 300)

	// SIGHUP that changes another pipeline, while all are written to.
	m.pipelines("process:\n  - drop: false\n", "file")
	m.hangUp()
	m.mustWrite(300, 600)
	m.holdOnce("beside a reload", 600)

	// The file is watched: all inputs are made anew.
	reloads := m.metric("sluice_config_reloads_total")
	m.pipelines("  labels: {new: 'yes'}\n", m.kinds...)
	waitUntil(t, "the changed file is taken", func() bool { return m.metric("sluice_config_reloads_total") > reloads })
	m.dial()
	m.mustWrite(600, 900)
	m.holdOnce("after all were reloaded", 900)

	// Brokers away, all in the journal, SIGKILL.
	already := map[string]int{}
	for _, kind := range m.kinds {
		already[kind] = m.sent(kind)
	}
	m.broker.now.Kill()
	m.mustWrite(900, 1200)
	for _, kind := range m.kinds {
		waitUntil(t, kind+" is in the journal", func() bool { return m.sent(kind) >= already[kind]+300 })
	}
	m.kill()
	m.broker.up()
	m.run()
	m.mustWrite(1200, 1500)
	m.holdOnce("after a kill", 1500)

	// SIGKILL within a load: what was in the journal by then is there, and nothing twice.
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	delay := time.Duration(rand.New(rand.NewPCG(seed, 3)).IntN(60)) * time.Millisecond
	killed := make(chan map[string]int, 1)
	go func() {
		<-time.After(delay)
		sent := map[string]int{}
		for _, kind := range m.kinds {
			sent[kind] = m.sent(kind) // since the start, from number 1200 on, but for what the journal had
		}
		m.kill()
		killed <- sent
	}()
	m.writeAll(1500, 3000) // some of it to nobody
	sent := <-killed
	m.run()
	for _, kind := range m.kinds {
		recovered := 300 // that the journal had at the start count as sent
		first := 1200 + max(sent[kind]-recovered, 0)
		m.holds("after a kill within a load", kind, m.numbers(kind, first), first, 3000)
	}
}
