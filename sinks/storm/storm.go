// Package storm breaks everything between a topic and a destination while records are written, one fault a round, and compares after each round what the
// destination holds with what was produced, record by record. The destinations' tests give it what is theirs: how rows are read, and faults of their own.
package storm

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks"
)

// Partitions are those of a storm's topic.
const Partitions = 4

// settleMax is how long after a fault everything must be stored and committed.
const settleMax = 2 * time.Minute

// Flags are those of a run.
type Flags struct {
	Rounds int           // faults in a row; 0: a few that take no session timeout
	Seed   uint64        // draws the faults; 0: any
	On     string        // brokers, comma-separated
	Kinds  string        // only faults whose name contains one of these, comma-separated
	For    time.Duration // no round begins later than this; 0: all do
}

// DefineFlags defines the flags of a test binary, under -storm.
func DefineFlags() *Flags {
	f := &Flags{}
	flag.IntVar(&f.Rounds, "storm.rounds", 0, "faults in a row, on each kind of broker; 0: a few that take no session timeout")
	flag.Uint64Var(&f.Seed, "storm.seed", 0, "draws the faults; 0: any")
	flag.StringVar(&f.On, "storm.on", "kafka", "brokers, comma-separated: kafka, sluice (three nodes)")
	flag.DurationVar(&f.For, "storm.for", 0, "no round begins later than this; 0: all do")
	flag.StringVar(&f.Kinds, "storm.kinds", "", "only faults whose name contains one of these, comma-separated")
	return f
}

// Row is what a destination holds of a record.
type Row struct {
	Topic     sinks.TopicID
	Partition int32
	Offset, N int64
}

// Place is a destination as a storm sees it.
type Place interface {
	// Sink is the YAML of a worker's sink, indented by two; its column m, or what stands for it, depends on mapping. w.Proxy may be set.
	Sink(s *Storm, w *Worker, mapping int) string
	// Rows hands over all that is stored.
	Rows(s *Storm, each func(Row))
	// Heal is called while the storm waits.
	Heal(s *Storm)
}

// Storm is a topic that is written to while everything between it and a destination breaks. Not safe for concurrent use.
type Storm struct {
	*testing.T
	Rng    *rand.Rand
	Place  Place
	Nodes  []*testenv.Node // of our own cluster
	Broker string
	Topic  string
	Dir    string
	Client *kgo.Client
	Admin  *kadm.Client

	ID      sinks.TopicID
	Want    map[int32]map[int64]int64 // value by offset
	Removed map[int32]int64           // the log begins here: what lies below may be stored or not, and never twice
	Workers []*Worker
	n       int64
	rows    int
	mapping int
	former  map[sinks.TopicID]records // of topics that had the name before
}

// records are those of a topic that is gone.
type records struct {
	want    map[int32]map[int64]int64
	removed map[int32]int64
}

// Fault breaks something, and mends it.
type Fault struct {
	Name string
	Run  func(*Storm)
	Only func(*Storm) bool // nil: always
	Long bool              // waits for a session to end
}

// shortRounds is how many faults the short form has.
const shortRounds = 5

// New makes the topic on brokers of a kind: "kafka", or "sluice" for three of ours.
func New(t *testing.T, f *Flags, on, name string) *Storm {
	t.Helper()
	seed := f.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	s := &Storm{T: t, Rng: rand.New(rand.NewPCG(seed, 0)), Dir: t.TempDir(), Topic: fmt.Sprintf("storm-%s-%s-%d", name, on, os.Getpid()), rows: 500,
		former: map[sinks.TopicID]records{}}
	if on == "sluice" {
		c := testenv.StartCluster(t, testenv.StartZooKeeper(t).Addr, testenv.ClusterConfig{})
		s.Nodes, s.Broker = c.Nodes, strings.Join(c.Addrs(), ",")
	} else {
		s.Broker = testenv.Kafka(t).Addr
	}
	s.Reconnect()
	s.createTopic()
	return s
}

// Truncate tells that the topic's partitions were cut to these ends, and returns the records that are gone with their offsets.
func (s *Storm) Truncate(ends map[int32]int64) (lost map[int32]map[int64]int64) {
	lost = map[int32]map[int64]int64{}
	for p, end := range ends {
		lost[p] = map[int64]int64{}
		for o, n := range s.Want[p] {
			if o >= end {
				lost[p][o] = n
				delete(s.Want[p], o)
			}
		}
	}
	return lost
}

// Reconnect makes, which know nothing of what the brokers were.
func (s *Storm) Reconnect() {
	s.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(s.Broker, ",")...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(client.Close)
	s.Client, s.Admin = client, kadm.NewClient(client)
}

func (s *Storm) createTopic() {
	s.Helper()
	replicas := int16(1)
	if len(s.Nodes) > 0 {
		replicas = int16(len(s.Nodes))
	}
	s.Until("the topic is made", time.Minute, func() bool {
		_, err := s.Admin.CreateTopic(s.Context(), Partitions, replicas, nil, s.Topic)
		return err == nil
	})
	s.Until("the topic is there", time.Minute, func() bool {
		topics, err := s.Admin.ListTopics(s.Context(), s.Topic)
		s.ID = sinks.TopicID(topics[s.Topic].ID)
		_, gone := s.former[s.ID]
		return err == nil && s.ID != sinks.TopicID{} && !gone && len(topics[s.Topic].Partitions) == Partitions
	})
	s.Want, s.Removed = map[int32]map[int64]int64{}, map[int32]int64{}
	for p := range int32(Partitions) {
		s.Want[p] = map[int64]int64{}
	}
}

// Run has the faults one after the other, drawn so that each comes once before one comes again.
func (s *Storm) Run(f *Flags, faults []Fault) {
	s.Helper()
	s.Start("a")
	s.Produce(500)
	s.Settle("the beginning")
	rounds, short := f.Rounds, f.Rounds == 0
	if short {
		rounds = shortRounds
	}
	var drawn []int
	started := time.Now()
	for round := 0; round < rounds && (f.For == 0 || time.Since(started) < f.For); {
		if len(drawn) == 0 {
			drawn = s.Rng.Perm(len(faults))
		}
		fault := faults[drawn[0]]
		drawn = drawn[1:]
		if fault.Only != nil && !fault.Only(s) || !named(fault.Name, f.Kinds) || short && fault.Long {
			continue
		}
		round++
		began := time.Now()
		fault.Run(s)
		s.Settle(fault.Name)
		s.Logf("round %d: %s: %s, %d records", round, fault.Name, time.Since(began).Round(100*time.Millisecond), s.n)
	}
	for len(s.Workers) > 0 {
		s.Signal(s.Workers[0], syscall.SIGTERM)
	}
}

func named(name, kinds string) bool {
	for _, kind := range strings.Split(kinds, ",") {
		if strings.Contains(name, kind) {
			return true
		}
	}
	return false
}

// Produce writes n records round the partitions and keeps what they were given.
func (s *Storm) Produce(n int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: s.Topic, Partition: int32(s.n % Partitions), Value: fmt.Appendf(nil, `{"n":%d}`, s.n)}
		s.n++
	}
	first := s.n - int64(n)
	if err := s.Client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		s.Fatal(err)
	}
	for i, r := range records {
		s.Want[r.Partition][r.Offset] = first + int64(i)
	}
}

// Settle waits until everything is committed, and compares the destination with what was produced.
func (s *Storm) Settle(what string) {
	s.Helper()
	s.Produce(20)
	s.Until(what+": everything is committed", settleMax, s.Committed)
	s.Compare(what)
}

// Until polls until ok says so.
func (s *Storm) Until(what string, limit time.Duration, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(limit); !ok(); Pause(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.sayWorkers()
			s.Fatalf("waited %s for: %s; of the group is open: %s", limit, what, cmp.Or(s.open(), "nothing"))
		}
		if s.Place != nil {
			s.Place.Heal(s)
		}
	}
}

// Committed says that the group has closed every partition at its end, in the topic that is there now.
func (s *Storm) Committed() bool { return s.open() == "" }

// open says what the group has not closed; empty: nothing.
func (s *Storm) open() string {
	offsets, err := s.Admin.FetchOffsets(s.Context(), s.Topic)
	if err != nil { // this client asks a coordinator that is gone again and again
		s.Client.Close()
		s.Reconnect()
		return err.Error()
	}
	for p := range s.Want {
		o, ok := offsets.Lookup(s.Topic, p)
		if note, ours := sinks.ParseCommitNote(o.Metadata); !ok || !ours || note.TopicID != s.ID || o.At < s.end(p) {
			return fmt.Sprintf("partition %d: commit %d with %q, error %v; the records end at %d of topic %s", p, o.At, o.Metadata, o.Err, s.end(p), s.ID)
		}
	}
	return ""
}

// end is the offset after the last record of a partition.
func (s *Storm) end(p int32) (end int64) {
	for o := range s.Want[p] {
		end = max(end, o+1)
	}
	return end
}

// Compare wants every record that was produced, under its offset, once, and nothing else.
func (s *Storm) Compare(what string) {
	s.Helper()
	type place struct {
		topic     sinks.TopicID
		partition int32
	}
	found := map[place]map[int64]bool{}
	s.Place.Rows(s, func(r Row) {
		at := place{r.Topic, r.Partition}
		if found[at] == nil {
			found[at] = map[int64]bool{}
		}
		want, ok := s.wanted(r.Topic)[r.Partition][r.Offset]
		switch {
		case found[at][r.Offset]:
			s.sayWorkers()
			s.Fatalf("%s: partition %d offset %d is stored twice (topic %s)", what, r.Partition, r.Offset, r.Topic)
		case !ok || want != r.N:
			s.sayWorkers()
			s.Fatalf("%s: partition %d offset %d holds %d, want %d (topic %s)", what, r.Partition, r.Offset, r.N, want, r.Topic)
		}
		found[at][r.Offset] = true
	})
	for topic, of := range s.former {
		s.wantAll(what, topic, of.want, of.removed, func(p int32, o int64) bool { return found[place{topic, p}][o] })
	}
	s.wantAll(what, s.ID, s.Want, s.Removed, func(p int32, o int64) bool { return found[place{s.ID, p}][o] })
}

func (s *Storm) wanted(topic sinks.TopicID) map[int32]map[int64]int64 {
	if topic == s.ID {
		return s.Want
	}
	return s.former[topic].want
}

func (s *Storm) wantAll(what string, topic sinks.TopicID, all map[int32]map[int64]int64, removed map[int32]int64, found func(int32, int64) bool) {
	s.Helper()
	for p, want := range all {
		for o := range want {
			if !found(p, o) && o >= removed[p] {
				s.sayWorkers()
				s.Fatalf("%s: partition %d offset %d is missing (topic %s)", what, p, o, topic)
			}
		}
	}
}

// SomeTime is up to so many milliseconds.
func (s *Storm) SomeTime(ms int) time.Duration {
	return time.Duration(s.Rng.IntN(ms)) * time.Millisecond
}

// Pause lets real processes run for a while.
func Pause(d time.Duration) { <-time.After(d) }
