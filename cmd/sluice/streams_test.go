package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

// The inputs that are not files, run by the binary against our broker, over kills of both.

// A host is an agent of one pipeline, with its broker.
type host struct {
	t             *testing.T
	dir, addr     string
	broker, agent *part
}

func newHost(t *testing.T, collect string, args ...string) *host {
	t.Helper()
	b := ownBroker(t)
	h := &host{t: t, dir: t.TempDir(), addr: b.addr, broker: b.part}
	file := writeFile(t, "pipeline.yaml", "pipeline: host\ncollect:\n  "+collect+"\ntopic: {name: lines, partitions: 3}\n")
	h.agent = &part{name: "agent", start: func() *testenv.Process {
		return testenv.Start(t, testenv.Command{Name: "agent", Path: testenv.Sluice(t), Dir: h.dir,
			Args: append([]string{"agent", file, "--brokers", h.addr, "--metrics", "", "--state", filepath.Join(h.dir, "state")}, args...)})
	}}
	return h
}

// lines reads what the topic holds now; nil when there is no topic.
func (h *host) lines() (out []string) {
	h.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(h.addr), kgo.ConsumeTopics("lines"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		h.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(h.t.Context(), settleFor)
	defer cancel()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, "lines")
	if err != nil {
		h.t.Fatal(err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += max(o.Offset, 0) })
	for left > 0 {
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			out = append(out, string(r.Value))
			left--
		})
		if ctx.Err() != nil {
			h.t.Fatalf("%d records cannot be read", left)
		}
	}
	return out
}

// count is how many records the topic holds.
func (h *host) count() (n int64) {
	client, err := kgo.NewClient(kgo.SeedBrokers(h.addr))
	if err != nil {
		h.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(h.t.Context(), settleFor)
	defer cancel()
	if ends, err := kadm.NewClient(client).ListEndOffsets(ctx, "lines"); err == nil {
		ends.Each(func(o kadm.ListedOffset) { n += max(o.Offset, 0) })
	}
	return n
}

// settled waits until the topic holds at least so many records.
func (h *host) settled(want int64) {
	h.t.Helper()
	deadline, tick := time.NewTimer(settleFor), time.NewTicker(50*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for h.count() < want {
		select {
		case <-deadline.C:
			h.t.Fatalf("the topic holds %d of %d records", h.count(), want)
		case <-tick.C:
		}
	}
}

// ignored is the number of a record that does not count.
const ignored = -1

// mustHoldOnce checks that the topic holds each of n numbers once, which number finds in a record.
func (h *host) mustHoldOnce(n int, number func(string) (int, error)) {
	h.t.Helper()
	times := make([]int, n)
	for _, line := range h.lines() {
		i, err := number(line)
		if i == ignored && err == nil {
			continue
		}
		if err != nil || i < 0 || i >= n {
			h.t.Fatalf("a record that was not written: %q (%v)", line, err)
		}
		times[i]++
	}
	missing, doubled := 0, 0
	for _, k := range times {
		switch {
		case k == 0:
			missing++
		case k > 1:
			doubled++
		}
	}
	if missing+doubled > 0 {
		h.t.Errorf("of %d: %d missing, %d more than once", n, missing, doubled)
	}
}

const journalEntries = 6000

// Every entry of the journal once, however often the agent is killed.
func TestKilledOverAJournal(t *testing.T) {
	for name, source := range map[string]func(*testing.T) (collect string, write func(i int) error){"spoken": numbered(spokenTexts), "systemd": numbered(systemdTexts)} {
		t.Run(name, func(t *testing.T) {
			collect, write := source(t)
			h := newHost(t, collect)
			h.broker.up()
			h.agent.up()
			kills := make(map[int]bool)
			for range 4 {
				kills[1+rand.IntN(journalEntries-1)] = true
			}
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for i := range journalEntries {
				if err := write(i); err != nil {
					t.Fatal(err)
				}
				if i%20 == 0 {
					<-tick.C
				}
				if kills[i] {
					h.agent.killAndRestart()
				}
			}
			h.settled(journalEntries)
			h.mustHoldOnce(journalEntries, func(line string) (i int, err error) {
				var entry struct{ MESSAGE string }
				if err := json.Unmarshal([]byte(line), &entry); err != nil {
					return 0, err
				}
				_, err = fmt.Sscanf(entry.MESSAGE, "entry %d", &i)
				return i, err
			})
		})
	}
}

// Records of two entries are whole, and come once, though the agent is killed between the two: the first is asked for again.
func TestKilledWithinRecordsOfAJournal(t *testing.T) {
	const records = 1500
	for name, source := range map[string]func(*testing.T) (collect string, write func(text string, i int) error){"spoken": spokenTexts, "systemd": systemdTexts} {
		t.Run(name, func(t *testing.T) {
			collect, write := source(t)
			h := newHost(t, strings.TrimSuffix(collect, "}")+`, multiline: {start: '^\S', idle: 1h}}`)
			h.broker.up()
			h.agent.up()
			kills := make(map[int]bool)
			for range 5 {
				kills[1+rand.IntN(records-1)] = true
			}
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for i := range records + 1 { // the last one ends the one before it
				if err := write(fmt.Sprintf("record %d", i), 2*i); err != nil {
					t.Fatal(err)
				}
				if kills[i] {
					h.agent.killAndRestart()
				}
				if err := write(fmt.Sprintf(" more %d", i), 2*i+1); err != nil {
					t.Fatal(err)
				}
				if i%10 == 0 {
					<-tick.C
				}
			}
			h.settled(records)
			h.mustHoldOnce(records, func(line string) (i int, err error) {
				var entry struct{ MESSAGE string }
				if err := json.Unmarshal([]byte(line), &entry); err != nil {
					return 0, err
				}
				if _, err := fmt.Sscanf(entry.MESSAGE, "record %d", &i); err != nil || entry.MESSAGE != fmt.Sprintf("record %d\n more %d", i, i) {
					return 0, fmt.Errorf("not a whole record: %w", err)
				}
				return i, nil
			})
		})
	}
}

// spokenTexts is a program that speaks as journalctl does: where there is no systemd.
func spokenTexts(t *testing.T) (string, func(string, int) error) {
	dir := t.TempDir()
	script := filepath.Join(dir, "journalctl")
	if err := os.WriteFile(script, []byte(`#!/bin/sh
# Prints the entries of a file behind the cursor, a line each, as journalctl -o json does.
from=1
follow=
for a in "$@"; do
  case $a in
    --after-cursor=s=1\;i=*) from=$((${a#--after-cursor=s=1;i=} + 2)) ;;
    --cursor=s=1\;i=*) from=$((${a#--cursor=s=1;i=} + 1)) ;;
    --follow) follow=-f ;;
  esac
done
exec tail -n "+$from" $follow "`+dir+`/entries"
`), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "entries"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return fmt.Sprintf("journald: {command: [%q]}", script), func(text string, i int) error {
		_, err := fmt.Fprintf(f, `{"MESSAGE":%q,"__REALTIME_TIMESTAMP":"%d","__CURSOR":"s=1;i=%d"}`+"\n", text, 1764496800000000+i, i)
		return err
	}
}

// systemdTexts is a journald of its own, a namespace, and the real journalctl.
func systemdTexts(t *testing.T) (string, func(string, int) error) {
	name, socket := testenv.Journald(t)
	c, err := net.Dial("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	collect := fmt.Sprintf("journald: {command: [journalctl, --namespace=%s], matches: [SYSLOG_IDENTIFIER=sluice-test]}", name)
	return collect, func(text string, _ int) error {
		_, err := fmt.Fprintf(c, "MESSAGE=%s\nSYSLOG_IDENTIFIER=sluice-test\nPRIORITY=6\n", text)
		return err
	}
}

// numbered makes texts of numbers.
func numbered(source func(*testing.T) (string, func(string, int) error)) func(*testing.T) (string, func(int) error) {
	return func(t *testing.T) (string, func(int) error) {
		collect, write := source(t)
		return collect, func(i int) error { return write(fmt.Sprintf("entry %d", i), i) }
	}
}

// What was taken while the brokers were away is in the journal, and outlives a kill of the agent; what is sent then waits for the next one.
func TestSyslogIsSpooled(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	h := newHost(t, fmt.Sprintf(`syslog: {listen: ["tcp://%s"], format: raw}`, addr))
	h.broker.up()
	h.agent.up()
	n := int64(0)
	send := func(c net.Conn, lines int) {
		out := bufio.NewWriter(c)
		for range lines {
			fmt.Fprintf(out, "<13>number %d%s\n", n, strings.Repeat(" ", 200))
			n++
		}
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	c := dialSoon(t, addr)
	send(c, 1000)
	h.settled(n)

	h.broker.now.Kill()
	send(c, 50_000) // 10 MB
	spooled(t, filepath.Join(h.dir, "state", "journal", "host"), c)
	h.agent.killAndRestart()
	h.broker.up()
	h.settled(n)
	c = dialSoon(t, addr)
	send(c, 1000)
	h.settled(n)
	h.mustHoldOnce(int(n), func(line string) (i int, err error) {
		_, err = fmt.Sscanf(line, "<13>number %d", &i)
		return i, err
	})
}

// With a full journal connections are held; what a sender could write arrives, once, when the brokers are back.
func TestSyslogWithAFullJournal(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	h := newHost(t, fmt.Sprintf(`syslog: {listen: ["tcp://%s"], format: raw}`, addr), "--journal-bytes-max", "4000000")
	h.broker.up()
	h.agent.up()
	c := dialSoon(t, addr)
	n, pad := 0, make([]byte, 150)
	write := func() error {
		for i := range pad {
			pad[i] = 'a' + byte(rand.IntN(26)) // hard to compress
		}
		_, err := fmt.Fprintf(c, "<13>number %d %s\n", n, pad)
		return err
	}
	for ; n < 100; n++ {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	h.settled(100)
	h.broker.now.Kill()
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for write() == nil { // until the sender is held
		n++
	}
	if n < 10_000 || n > 500_000 {
		t.Errorf("%d messages were written until the sender was held", n)
	}
	c.Close() // within a message
	h.broker.up()
	h.settled(int64(n))
	h.agent.now.Stop()
	h.mustHoldOnce(n, func(line string) (i int, err error) {
		if head, text, _ := strings.Cut(strings.TrimPrefix(line, "<13>number "), " "); len(text) == len(pad) {
			return strconv.Atoi(head)
		}
		return ignored, nil // the part of one
	})
}

// dialSoon connects as soon as somebody listens.
func dialSoon(t *testing.T, addr string) net.Conn {
	t.Helper()
	deadline, tick := time.NewTimer(settleFor), time.NewTicker(20*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return c
		}
		select {
		case <-deadline.C:
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

// spooled waits until nothing of a connection is under way and the journal no longer grows: what was sent is in it.
func spooled(t *testing.T, dir string, c net.Conn) {
	t.Helper()
	deadline, tick := time.NewTimer(settleFor), time.NewTicker(300*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	before := int64(-1)
	for {
		size := int64(0)
		segments, _ := filepath.Glob(filepath.Join(dir, "*.journal"))
		for _, s := range segments {
			if info, err := os.Stat(s); err == nil {
				size += info.Size()
			}
		}
		if size == before && unsent(c) == 0 {
			return
		}
		before = size
		select {
		case <-deadline.C:
			t.Fatalf("the journal still grows: %d bytes", size)
		case <-tick.C:
		}
	}
}
