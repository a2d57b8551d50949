package compat

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

func kcat(t *testing.T, b *broker, args ...string) *exec.Cmd {
	return exec.CommandContext(t.Context(), testenv.Kcat(t), append([]string{"-b", b.addr}, args...)...)
}

func TestKcatEachCodec(t *testing.T) {
	covers(t, "kcat")
	b := startBroker(t)
	for _, codec := range codecs {
		want := numbered(codec, 2000)
		output(t, kcat(t, b, "-P", "-t", "by-"+codec, "-z", codec, "-X", "acks=all"), text(want))
		got := linesOf(output(t, kcat(t, b, "-C", "-t", "by-"+codec, "-e", "-q", "-o", "beginning"), ""))
		if strings.Join(got, " ") != strings.Join(want, " ") {
			checkSame(t, codec, got, want)
			t.Errorf("%s: not the lines produced, in their order", codec)
		}
	}
}

func TestKcatAcks(t *testing.T) {
	covers(t, "kcat")
	b := startBroker(t)
	for _, acks := range []string{"0", "1", "all"} {
		want := numbered("acks", 100)
		output(t, kcat(t, b, "-P", "-t", "acks-"+acks, "-X", "acks="+acks), text(want))
		eventually(t, "records with acks="+acks, func() bool {
			return len(linesOf(output(t, kcat(t, b, "-C", "-t", "acks-"+acks, "-e", "-q"), ""))) == len(want)
		})
	}
}

func TestKcatKeysHeadersTimestamps(t *testing.T) {
	covers(t, "kcat")
	b := startBroker(t)
	output(t, kcat(t, b, "-P", "-t", "full", "-K", ":", "-Z", "-H", "host=web-1", "-H", "path=/var/log/a"), "k1:v1\n:null-key\nk3:\n")
	got := output(t, kcat(t, b, "-C", "-t", "full", "-e", "-q", "-Z", "-f", `%o %k=%s [%h] %p\n`), "")
	want := "0 k1=v1 [host=web-1,path=/var/log/a] 0\n" +
		"1 NULL=null-key [host=web-1,path=/var/log/a] 0\n" +
		"2 k3=NULL [host=web-1,path=/var/log/a] 0\n"
	if got != want {
		t.Errorf("consumed:\n%swant:\n%s", got, want)
	}
}

func TestKcatListsAndQueries(t *testing.T) {
	covers(t, "kcat")
	b := startBroker(t)
	output(t, kcat(t, b, "-P", "-t", "listed"), text(numbered("x", 10)))
	list := output(t, kcat(t, b, "-L"), "")
	for _, want := range []string{" 1 brokers:", " at " + b.addr, `topic "listed" with 1 partitions:`, "partition 0, leader "} {
		if !strings.Contains(list, want) {
			t.Errorf("kcat -L lacks %q:\n%s", want, list)
		}
	}
	for query, want := range map[string]string{"listed:0:-1": "listed [0] offset 10", "listed:0:-2": "listed [0] offset 0", "listed:0:0": "listed [0] offset 0"} {
		if got := strings.TrimSpace(output(t, kcat(t, b, "-Q", "-t", query), "")); got != want {
			t.Errorf("kcat -Q -t %s: %q, want %q", query, got, want)
		}
	}
}

// TestKcatBalancedGroup has two members share a topic of four partitions, then
// one leaves and the other takes all, then a new member goes on where the
// group committed.
func TestKcatBalancedGroup(t *testing.T) {
	covers(t, "kcat")
	b := startBroker(t)
	createTopic(t, b, "shared", 4)
	first, second := startMember(t, b, "balanced", "shared"), startMember(t, b, "balanced", "shared")
	eventually(t, "two partitions each", func() bool { return first.assigned() == 2 && second.assigned() == 2 })

	want := numbered("both", 400)
	produceSpread(t, b, "shared", want)
	eventually(t, "all records at the two members", func() bool { return len(first.records())+len(second.records()) >= len(want) })
	checkSame(t, "two members", append(first.records(), second.records()...), want)
	if len(first.records()) == 0 || len(second.records()) == 0 {
		t.Errorf("the members got %d and %d records", len(first.records()), len(second.records()))
	}

	second.leave(t)
	eventually(t, "all partitions at the first member", func() bool { return first.assigned() == 4 })
	had := len(first.records())
	more := numbered("one", 100)
	produceSpread(t, b, "shared", more)
	eventually(t, "all records at the first member", func() bool { return len(first.records())-had >= len(more) })
	checkSame(t, "one member", first.records()[had:], more)
	first.leave(t)

	third := startMember(t, b, "balanced", "shared")
	eventually(t, "all partitions at the third member", func() bool { return third.assigned() == 4 })
	last := numbered("new", 50)
	produceSpread(t, b, "shared", last)
	eventually(t, "records at the third member", func() bool { return len(third.records()) >= len(last) })
	checkSame(t, "a member that came after a commit", third.records(), last)
}

// produceSpread gives each line a key of its own, which spreads them over the
// partitions.
func produceSpread(t *testing.T, b *broker, topic string, lines []string) {
	t.Helper()
	keyed := make([]string, len(lines))
	for i, l := range lines {
		keyed[i] = l + "=" + l
	}
	output(t, kcat(t, b, "-P", "-t", topic, "-K", "=", "-X", "partitioner=murmur2_random"), text(keyed))
}

// member is a kcat that consumes as a member of a group.
type member struct {
	cmd            *exec.Cmd
	stdout, stderr testenv.Buffer
}

func startMember(t *testing.T, b *broker, group, topic string) *member {
	t.Helper()
	m := &member{cmd: kcat(t, b, "-G", group, "-u", "-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000", topic)}
	m.cmd.Stdout, m.cmd.Stderr = &m.stdout, &m.stderr
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		if t.Failed() {
			t.Logf("kcat -G printed:\n%s", m.stderr.String())
		}
	})
	return m
}

// assigned counts the partitions of the member's last assignment, from
//
//	% Group g rebalanced (memberid ...): assigned: t [0], t [1]
func (m *member) assigned() int {
	n := 0
	for _, line := range linesOf(m.stderr.String()) {
		if _, partitions, ok := strings.Cut(line, "): assigned:"); ok {
			n = strings.Count(partitions, "[")
		} else if strings.Contains(line, "): revoked:") {
			n = 0
		}
	}
	return n
}

func (m *member) records() []string { return linesOf(m.stdout.String()) }

// leave ends the member as Ctrl-C does: it commits and leaves the group.
func (m *member) leave(t *testing.T) {
	t.Helper()
	if err := m.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = m.cmd.Wait()
}
