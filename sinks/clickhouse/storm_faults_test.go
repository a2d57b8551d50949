package clickhouse

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks/storm"
)

// faults are those that the table must outlive. What leaves a write in the air until another has read back what is stored is only for a table that
// remembers inserts: without a window nothing can tell the late write from a new one, which the sink says at its start.
func (p *stormTable) faults() []storm.Fault {
	faults := append(storm.Faults(!p.forgets),
		storm.Fault{Name: "server killed", Run: p.serverKilled},
		storm.Fault{Name: "server frozen", Run: p.serverFrozen},
		storm.Fault{Name: "disk full", Run: p.diskFull},
		storm.Fault{Name: "no room left", Run: p.noRoom, Only: func(*storm.Storm) bool { return testenv.CanMount() }},
		storm.Fault{Name: "read only", Run: p.readOnly},
		storm.Fault{Name: "too many parts", Run: p.tooManyParts},
		storm.Fault{Name: "connection dropped after the insert", Run: p.answerLost},
		storm.Fault{Name: "slow", Run: p.slow},
		storm.Fault{Name: "worker stopped in an insert", Run: p.workerSleptIn, Long: true},
		storm.Fault{Name: "worker stopped after an insert", Run: p.workerSleptAfter, Long: true},
		storm.Fault{Name: "log truncated", Run: p.logTruncated, Long: true, Only: func(s *storm.Storm) bool { return len(s.Nodes) > 2 }},
	)
	if !p.forgets {
		faults = append(faults, storm.Fault{Name: "worker stopped before an insert", Run: p.workerSleptBefore, Long: true})
	}
	return faults
}

func (p *stormTable) serverKilled(s *storm.Storm) {
	s.One()
	s.Produce(1500)
	storm.Pause(s.SomeTime(300))
	p.server.Kill()
	s.Produce(200)
	storm.Pause(s.SomeTime(1000))
	p.server.Restart(s.T)
}

// serverFrozen stops the server for a moment, or past the deadline of a write. Where the table remembers no inserts it is not past the deadline: the server may read
// the write after what was asked later.
func (p *stormTable) serverFrozen(s *storm.Storm) {
	s.One()
	s.Produce(1500)
	storm.Pause(s.SomeTime(200))
	pid := p.server.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		s.Fatal(err)
	}
	s.Produce(200)
	frozen := s.SomeTime(500)
	if !p.forgets {
		frozen += storm.WriteDeadline * time.Duration(s.Rng.IntN(2))
	}
	storm.Pause(frozen)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		s.Fatal(err)
	}
}

// diskFull has the server refuse inserts for want of space, by the limit that it has for that.
func (p *stormTable) diskFull(s *storm.Storm) {
	s.One()
	s.Produce(300)
	p.server.Query(s, "ALTER TABLE "+p.name+" MODIFY SETTING min_free_disk_bytes_to_perform_insert = 1000000000000000")
	s.Produce(500)
	storm.Pause(s.SomeTime(1000))
	p.server.Query(s, "ALTER TABLE "+p.name+" RESET SETTING min_free_disk_bytes_to_perform_insert")
}

// noRoom fills the server's disk to the last byte, in the middle of an insert or before it. Nothing is merged meanwhile: a merge that ran out of room left this server a part
// with an empty file in the place of those that had the rows (CORRUPTED_DATA, twice in some 40 rounds), and no sink can bring these back.
func (p *stormTable) noRoom(s *storm.Storm) {
	s.One()
	s.Produce(1500)
	storm.Pause(s.SomeTime(200))
	p.server.Query(s, "SYSTEM STOP MERGES "+p.name)
	empty := p.server.FillDisk(s)
	s.Produce(1500)
	storm.Pause(s.SomeTime(2000))
	empty()
	p.server.Query(s, "SYSTEM START MERGES "+p.name)
}

// readOnly takes the right to write from the workers' user.
func (p *stormTable) readOnly(s *storm.Storm) {
	s.One()
	s.Produce(300)
	file := filepath.Join(p.server.Dir, "users.xml")
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	at := strings.Index(string(text), "<loader>")
	barred := string(text[:at]) + strings.Replace(string(text[at:]), "<profile>default</profile>", "<profile>readonly</profile>", 1)
	p.setUsers(s, file, barred)
	s.Produce(500)
	storm.Pause(s.SomeTime(1000))
	p.setUsers(s, file, string(text))
}

func (p *stormTable) setUsers(s *storm.Storm, file, text string) {
	s.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	p.server.Query(s, "SYSTEM RELOAD USERS")
}

func (p *stormTable) tooManyParts(s *storm.Storm) {
	s.One()
	p.server.Query(s, "ALTER TABLE "+p.name+" MODIFY SETTING parts_to_throw_insert = 1, parts_to_delay_insert = 1, max_delay_to_insert = 1")
	s.Produce(1500)
	storm.Pause(s.SomeTime(1500))
	p.server.Query(s, "ALTER TABLE "+p.name+" RESET SETTING parts_to_throw_insert, parts_to_delay_insert, max_delay_to_insert")
}

// answerLost lets inserts through and drops their answers with the connections.
func (p *stormTable) answerLost(s *storm.Storm) {
	w := s.One()
	s.Produce(1000)
	w.Proxy.MuteAfter("INSERT INTO")
	s.Produce(500)
	storm.Pause(s.SomeTime(800))
	w.Proxy.Cut()
	w.Proxy.Flow()
}

func (p *stormTable) slow(s *storm.Storm) {
	w := s.One()
	for range 3 {
		s.Produce(500)
		w.Proxy.Stall()
		storm.Pause(s.SomeTime(900))
		w.Proxy.Flow()
		storm.Pause(s.SomeTime(50))
	}
}

// workerSleptBefore stops a worker whose insert has left it and has not reached the server; it arrives when another has written the claim.
func (p *stormTable) workerSleptBefore(s *storm.Storm) {
	w := s.One()
	w.Proxy.Stall()
	s.Produce(1500)
	storm.Pause(200*time.Millisecond + s.SomeTime(200))
	s.Signal(w, syscall.SIGSTOP)
	s.WakeBesideAnother(w)
}

// workerSleptIn stops a worker whose insert the server has, and which has had no answer.
func (p *stormTable) workerSleptIn(s *storm.Storm) {
	w := s.One()
	w.Proxy.MuteAfter("INSERT INTO")
	s.Produce(1500)
	storm.Pause(200*time.Millisecond + s.SomeTime(200))
	s.Signal(w, syscall.SIGSTOP)
	s.WakeBesideAnother(w)
}

// workerSleptAfter stops a worker as soon as the table has rows of an insert, which it may or may not have heard of; its claims are open.
func (p *stormTable) workerSleptAfter(s *storm.Storm) {
	w := s.One()
	count := func() string { return p.server.Query(s, "SELECT count() FROM "+p.name) }
	before := count()
	s.Produce(1500)
	s.Until("a row", time.Minute, func() bool { return count() != before })
	s.Signal(w, syscall.SIGSTOP)
	s.WakeBesideAnother(w)
}

// logTruncated has a replica that missed the last records become leader when no other is left (an unclean election): their offsets come back under another epoch, with
// other records. The sink must stop these partitions and mix nothing; then it is done as the documentation says.
func (p *stormTable) logTruncated(s *storm.Storm) {
	s.One()
	s.Settle("before the truncation")
	settings := func(unclean, insync string) {
		s.Until("the topic's settings", time.Minute, func() bool {
			_, err := s.Admin.AlterTopicConfigs(s.Context(), []kadm.AlterConfig{
				{Name: "unclean.leader.election.enable", Value: &unclean}, {Name: "min.insync.replicas", Value: &insync}}, s.Topic)
			return err == nil
		})
	}
	settings("true", "1")
	behind := s.Rng.IntN(len(s.Nodes))
	s.Nodes[behind].Kill()
	s.Produce(800)
	s.Until("what will be lost is committed", time.Minute, s.Committed)
	killed := s.Rng.IntN(2) == 0
	if killed {
		s.Signal(s.Workers[0], syscall.SIGKILL)
	}
	for i, n := range s.Nodes {
		if i != behind {
			n.Kill()
		}
	}
	if err := s.Nodes[behind].Restart(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.Reconnect()
	starts := map[int32]int64{}
	s.Until("the replica leads that was behind", time.Minute, func() bool {
		ends, err := s.Admin.ListEndOffsets(s.Context(), s.Topic)
		if err != nil || ends.Error() != nil {
			return false
		}
		for part := range int32(storm.Partitions) {
			o, ok := ends.Lookup(s.Topic, part)
			if !ok || o.Err != nil {
				return false
			}
			starts[part] = o.Offset
		}
		return true
	})
	lost := s.Truncate(starts)
	s.Produce(1500) // takes the same offsets
	for i, n := range s.Nodes {
		if i != behind {
			if err := n.Restart(s.Context()); err != nil {
				s.Fatal(err)
			}
		}
	}
	w := s.One()
	s.Until("every partition is stopped", time.Minute, func() bool { return s.Logged(w, "partition stopped") >= storm.Partitions })
	p.Rows(s, func(r storm.Row) {
		if start := starts[r.Partition]; r.Topic == s.ID && r.Offset >= start && lost[r.Partition][r.Offset] != r.N {
			s.Fatalf("partition %d offset %d holds %d, which came after the truncation", r.Partition, r.Offset, r.N)
		}
	})
	s.StopAll()
	for part, start := range starts {
		p.server.Query(s, fmt.Sprintf("ALTER TABLE %s DELETE WHERE _topic_id = '%s' AND _partition = %d AND _offset >= %d SETTINGS mutations_sync = 1", p.name, s.ID, part, start))
	}
	settings("false", "2")
	offsets := kadm.Offsets{}
	for part, start := range starts {
		offsets.Add(kadm.Offset{Topic: s.Topic, Partition: part, At: start, LeaderEpoch: -1})
	}
	s.Until("the group is put back", time.Minute, func() bool {
		return s.Admin.CommitAllOffsets(s.Context(), s.Topic, offsets) == nil
	})
	s.One()
}
