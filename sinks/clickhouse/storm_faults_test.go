package clickhouse

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// writeDeadlineOfWorkers is two thirds of their session timeout of 6 s.
const writeDeadlineOfWorkers = 4 * time.Second

// pastSession is longer than the workers' session timeout.
const pastSession = 7500 * time.Millisecond

func (s *storm) serverKilled() {
	s.one()
	s.produce(1500)
	pause(s.someTime(300))
	s.server.Kill()
	s.produce(200)
	pause(s.someTime(1000))
	s.server.Restart(s.T)
}

// serverFrozen stops the server for a moment, or past the deadline of a write.
func (s *storm) serverFrozen() {
	s.one()
	s.produce(1500)
	pause(s.someTime(200))
	pid := s.server.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		s.Fatal(err)
	}
	s.produce(200)
	pause(s.someTime(500) + writeDeadlineOfWorkers*time.Duration(s.rng.IntN(2)))
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		s.Fatal(err)
	}
}

// diskFull has the server refuse inserts for want of space, by the limit that it has for that.
func (s *storm) diskFull() {
	s.one()
	s.produce(300)
	s.server.Query(s, "ALTER TABLE storm MODIFY SETTING min_free_disk_bytes_to_perform_insert = 1000000000000000")
	s.produce(500)
	pause(s.someTime(1000))
	s.server.Query(s, "ALTER TABLE storm RESET SETTING min_free_disk_bytes_to_perform_insert")
}

// readOnly takes the right to write from the workers' user.
func (s *storm) readOnly() {
	s.one()
	s.produce(300)
	file := filepath.Join(s.server.Dir, "users.xml")
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	at := strings.Index(string(text), "<loader>")
	barred := string(text[:at]) + strings.Replace(string(text[at:]), "<profile>default</profile>", "<profile>readonly</profile>", 1)
	s.setUsers(file, barred)
	s.produce(500)
	pause(s.someTime(1000))
	s.setUsers(file, string(text))
}

func (s *storm) setUsers(file, text string) {
	s.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	s.server.Query(s, "SYSTEM RELOAD USERS")
}

func (s *storm) tooManyParts() {
	s.one()
	s.server.Query(s, "ALTER TABLE storm MODIFY SETTING parts_to_throw_insert = 1, parts_to_delay_insert = 1, max_delay_to_insert = 1")
	s.produce(1500)
	pause(s.someTime(1500))
	s.server.Query(s, "ALTER TABLE storm RESET SETTING parts_to_throw_insert, parts_to_delay_insert, max_delay_to_insert")
}

// answerLost lets inserts through and drops their answers with the connections.
func (s *storm) answerLost() {
	w := s.one()
	s.produce(1000)
	w.proxy.Mute()
	s.produce(500)
	pause(s.someTime(800))
	w.proxy.Cut()
	w.proxy.Flow()
}

func (s *storm) slow() {
	w := s.one()
	for range 3 {
		s.produce(500)
		w.proxy.Stall()
		pause(s.someTime(900))
		w.proxy.Flow()
		pause(s.someTime(50))
	}
}

func (s *storm) workerKilled() {
	for range 3 {
		w := s.one()
		s.produce(1500)
		pause(s.someTime(500))
		s.signal(w, syscall.SIGKILL)
	}
	s.one()
}

// workerReplaced leaves the claims of a killed worker to one of another identity.
func (s *storm) workerReplaced() {
	w := s.one()
	s.start("")
	s.produce(1500)
	pause(s.someTime(700))
	s.signal(w, syscall.SIGKILL)
	s.produce(500)
}

func (s *storm) workerSlept() {
	w := s.one()
	s.produce(1500)
	pause(s.someTime(300))
	s.signal(w, syscall.SIGSTOP)
	s.wakeBesideAnother(w)
}

// workerSleptBefore stops a worker whose insert has left it and has not reached the server; it arrives when another has written the claim.
func (s *storm) workerSleptBefore() {
	w := s.one()
	w.proxy.Stall()
	s.produce(1500)
	pause(200*time.Millisecond + s.someTime(200))
	s.signal(w, syscall.SIGSTOP)
	s.wakeBesideAnother(w)
}

// workerSleptIn stops a worker whose insert the server has, and which has had no answer.
func (s *storm) workerSleptIn() {
	w := s.one()
	w.proxy.Mute()
	s.produce(1500)
	pause(200*time.Millisecond + s.someTime(200))
	s.signal(w, syscall.SIGSTOP)
	s.wakeBesideAnother(w)
}

// wakeBesideAnother has another worker take a stopped one's partitions, and then wakes it.
func (s *storm) wakeBesideAnother(w *stormWorker) {
	s.Helper()
	other := s.start("b")
	s.produce(300)
	pause(pastSession)
	w.proxy.Flow()
	s.signal(w, syscall.SIGCONT)
	s.produce(500)
	pause(s.someTime(500))
	s.signal(other, syscall.SIGTERM)
}

func (s *storm) rebalanced() {
	s.one()
	b := s.start("b")
	s.produce(800)
	pause(s.someTime(1500))
	c := s.start("")
	s.produce(800)
	pause(s.someTime(1500))
	s.signal(b, syscall.SIGTERM)
	s.produce(300)
	pause(s.someTime(500))
	s.signal(c, syscall.SIGTERM)
}

func (s *storm) limitsChanged() {
	w := s.one()
	s.produce(1500)
	pause(s.someTime(300))
	s.signal(w, syscall.SIGKILL)
	s.rows = 1 + s.rng.IntN(900)
	s.one()
	s.produce(500)
}

func (s *storm) mappingChanged() {
	w := s.one()
	s.produce(1500)
	pause(s.someTime(300))
	s.signal(w, syscall.SIGKILL)
	s.mapping++
	s.one()
	s.produce(500)
}

// stopAll ends all workers, so that the group is empty.
func (s *storm) stopAll() {
	s.Helper()
	for len(s.workers) > 0 {
		s.signal(s.workers[0], []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[s.rng.IntN(2)])
	}
	deadline := time.Now().Add(40 * time.Second)
	for {
		groups, err := s.admin.DescribeGroups(s.Context(), s.topic)
		if err == nil && len(groups[s.topic].Members) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.Fatal("the group keeps members")
		}
		pause(100 * time.Millisecond)
	}
}

// groupReset puts the group somewhere back, without the notes of its commits.
func (s *storm) groupReset() {
	s.one()
	s.produce(1000)
	pause(s.someTime(300))
	s.stopAll()
	offsets := kadm.Offsets{}
	for p, want := range s.want {
		at := s.removed[p] + s.rng.Int64N(int64(len(want))-s.removed[p])
		offsets.Add(kadm.Offset{Topic: s.topic, Partition: p, At: at, LeaderEpoch: -1})
	}
	committed, err := s.admin.FetchOffsets(s.Context(), s.topic)
	if err != nil {
		s.Fatal(err)
	}
	for p := range s.want { // never ahead over what is not stored
		if o, ok := committed.Lookup(s.topic, p); ok {
			if at := offsets[s.topic][p]; at.At > o.At {
				at.At = o.At
				offsets.Add(at)
			}
		}
	}
	if err := s.admin.CommitAllOffsets(s.Context(), s.topic, offsets); err != nil {
		s.Fatal(err)
	}
	s.one()
}

func (s *storm) commitsExpired() {
	s.one()
	s.produce(1000)
	pause(s.someTime(300))
	s.stopAll()
	if _, err := s.admin.DeleteGroups(s.Context(), s.topic); err != nil {
		s.Fatal(err)
	}
	s.one()
}

// retention removes records under a claim that a killed worker left open, or before it.
func (s *storm) retention() {
	w := s.one()
	w.proxy.Stall()
	s.produce(1500)
	pause(300 * time.Millisecond)
	s.signal(w, syscall.SIGKILL)
	committed, err := s.admin.FetchOffsets(s.Context(), s.topic)
	if err != nil {
		s.Fatal(err)
	}
	offsets := kadm.Offsets{}
	for p := range s.want {
		if o, ok := committed.Lookup(s.topic, p); ok {
			start := min(o.At+s.rng.Int64N(300), int64(len(s.want[p])))
			s.removed[p] = max(s.removed[p], start)
			offsets.Add(kadm.Offset{Topic: s.topic, Partition: p, At: start})
		}
	}
	if _, err := s.admin.DeleteRecords(s.Context(), offsets); err != nil {
		s.Fatal(err)
	}
	w.proxy.Cut()
	s.one()
}

func (s *storm) brokerKilled() {
	s.one()
	s.produce(1000)
	node := s.nodes[s.rng.IntN(len(s.nodes))]
	pause(s.someTime(300))
	node.Kill()
	s.produce(500)
	pause(s.someTime(2000))
	if err := node.Restart(s.Context()); err != nil {
		s.Fatal(err)
	}
}
