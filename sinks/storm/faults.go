package storm

import (
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// Faults are those of workers, groups, topics and brokers, whatever the destination is. A write of a worker that was stopped in the middle arrives late: asleep leaves
// these out, for a destination that cannot tell it from a new one.
func Faults(asleep bool) []Fault {
	faults := []Fault{
		{Name: "worker killed", Run: (*Storm).workerKilled},
		{Name: "worker killed, another goes on", Run: (*Storm).workerReplaced, Long: true},
		{Name: "workers come and go", Run: (*Storm).rebalanced, Long: true},
		{Name: "limits changed", Run: (*Storm).limitsChanged},
		{Name: "mapping changed", Run: (*Storm).mappingChanged},
		{Name: "group reset", Run: (*Storm).groupReset, Long: true},
		{Name: "commits expired", Run: (*Storm).commitsExpired, Long: true},
		{Name: "retention past an open claim", Run: (*Storm).retention},
		{Name: "topic deleted and made again", Run: (*Storm).topicMadeAgain, Long: true},
		{Name: "broker killed", Run: (*Storm).brokerKilled, Only: func(s *Storm) bool { return len(s.Nodes) > 0 }},
	}
	if asleep {
		faults = append(faults, Fault{Name: "worker stopped past its session", Run: (*Storm).workerSlept, Long: true})
	}
	return faults
}

func (s *Storm) workerKilled() {
	for range 3 {
		w := s.One()
		s.Produce(1500)
		Pause(s.SomeTime(500))
		s.Signal(w, syscall.SIGKILL)
	}
	s.One()
}

// workerReplaced leaves the claims of a killed worker to one of another identity.
func (s *Storm) workerReplaced() {
	w := s.One()
	s.Start("")
	s.Produce(1500)
	Pause(s.SomeTime(700))
	s.Signal(w, syscall.SIGKILL)
	s.Produce(500)
}

func (s *Storm) workerSlept() {
	w := s.One()
	s.Produce(1500)
	Pause(s.SomeTime(300))
	s.Signal(w, syscall.SIGSTOP)
	s.WakeBesideAnother(w)
}

// WakeBesideAnother has another worker take a stopped one's partitions, and then wakes it.
func (s *Storm) WakeBesideAnother(w *Worker) {
	s.Helper()
	other := s.Start("b")
	s.Produce(300)
	Pause(PastSession)
	if w.Proxy != nil {
		w.Proxy.Flow()
	}
	s.Signal(w, syscall.SIGCONT)
	s.Produce(500)
	Pause(s.SomeTime(500))
	s.Signal(other, syscall.SIGTERM)
}

func (s *Storm) rebalanced() {
	s.One()
	b := s.Start("b")
	s.Produce(800)
	Pause(s.SomeTime(1500))
	c := s.Start("")
	s.Produce(800)
	Pause(s.SomeTime(1500))
	s.Signal(b, syscall.SIGTERM)
	s.Produce(300)
	Pause(s.SomeTime(500))
	s.Signal(c, syscall.SIGTERM)
}

func (s *Storm) limitsChanged() {
	w := s.One()
	s.Produce(1500)
	Pause(s.SomeTime(300))
	s.Signal(w, syscall.SIGKILL)
	s.rows = 1 + s.Rng.IntN(900)
	s.One()
	s.Produce(500)
}

func (s *Storm) mappingChanged() {
	w := s.One()
	s.Produce(1500)
	Pause(s.SomeTime(300))
	s.Signal(w, syscall.SIGKILL)
	s.mapping++
	s.One()
	s.Produce(500)
}

// groupReset puts the group somewhere back, without the notes of its commits.
func (s *Storm) groupReset() {
	s.One()
	s.Produce(1000)
	Pause(s.SomeTime(300))
	s.StopAll()
	committed, err := s.Admin.FetchOffsets(s.Context(), s.Topic)
	if err != nil {
		s.Fatal(err)
	}
	offsets := kadm.Offsets{}
	for p := range int32(Partitions) {
		at := s.Removed[p] + s.Rng.Int64N(max(s.end(p)-s.Removed[p], 1))
		if o, ok := committed.Lookup(s.Topic, p); ok {
			at = min(at, o.At) // never ahead over what is not stored
		}
		offsets.Add(kadm.Offset{Topic: s.Topic, Partition: p, At: at, LeaderEpoch: -1})
	}
	if err := s.Admin.CommitAllOffsets(s.Context(), s.Topic, offsets); err != nil {
		s.Fatal(err)
	}
	s.One()
}

func (s *Storm) commitsExpired() {
	s.One()
	s.Produce(1000)
	Pause(s.SomeTime(300))
	s.StopAll()
	if _, err := s.Admin.DeleteGroups(s.Context(), s.Topic); err != nil {
		s.Fatal(err)
	}
	s.One()
}

// retention removes records under a claim that a killed worker left open, or before it.
func (s *Storm) retention() {
	w := s.One()
	if w.Proxy != nil {
		w.Proxy.Stall()
	}
	s.Produce(1500)
	Pause(300 * time.Millisecond)
	s.Signal(w, syscall.SIGKILL)
	committed, err := s.Admin.FetchOffsets(s.Context(), s.Topic)
	if err != nil {
		s.Fatal(err)
	}
	offsets := kadm.Offsets{}
	for p := range int32(Partitions) {
		if o, ok := committed.Lookup(s.Topic, p); ok {
			start := min(o.At+s.Rng.Int64N(300), s.end(p))
			s.Removed[p] = max(s.Removed[p], start)
			offsets.Add(kadm.Offset{Topic: s.Topic, Partition: p, At: start})
		}
	}
	if _, err := s.Admin.DeleteRecords(s.Context(), offsets); err != nil {
		s.Fatal(err)
	}
	if w.Proxy != nil {
		w.Proxy.Cut()
	}
	s.One()
}

// topicMadeAgain deletes the topic when it is stored, under a running worker or a dead one, and makes it again: its offsets begin anew, and the rows of the former are
// none of its own.
func (s *Storm) topicMadeAgain() {
	s.One()
	s.Produce(300)
	s.Settle("before the topic goes")
	killed := s.Rng.IntN(2) == 0
	if killed {
		s.Signal(s.Workers[0], syscall.SIGKILL)
	}
	if _, err := s.Admin.DeleteTopic(s.Context(), s.Topic); err != nil {
		s.Fatal(err)
	}
	Pause(s.SomeTime(1500))
	s.former[s.ID] = records{s.Want, s.Removed}
	s.Reconnect()
	s.createTopic()
	s.Produce(200 + s.Rng.IntN(2000))
	s.One()
}

func (s *Storm) brokerKilled() {
	s.One()
	s.Produce(1000)
	node := s.Nodes[s.Rng.IntN(len(s.Nodes))]
	Pause(s.SomeTime(300))
	node.Kill()
	s.Produce(500)
	Pause(s.SomeTime(2000))
	if err := node.Restart(s.Context()); err != nil {
		s.Fatal(err)
	}
}
