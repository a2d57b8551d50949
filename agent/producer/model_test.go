package producer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/agent/producer/brokermodel"
	"github.com/sluice-io/sluice/internal/record"
	"github.com/sluice-io/sluice/internal/testenv"
)

// What is tested against the model of brokers is worth what the model is: the same random script of the sender's own requests must get the
// same answers from a real Kafka, from ours and from it. It has repeats within and beyond five batches, gaps, raised and old epochs,
// first sequences that are not 0, sequences that go on from 2147483647 with 0, batches that are too large, records without the key that the
// topic asks for, an unknown topic and an unknown topic ID, a log start that moves, and reads below, within and above the log.
func TestModelAgainstBrokers(t *testing.T) {
	t.Run("kafka", func(t *testing.T) { modelAgainst(t, testenv.Kafka(t).Addr) })
	t.Run("sluice", func(t *testing.T) {
		modelAgainst(t, ownBroker(t, t.TempDir()))
	})
}

// ownBroker starts a broker of ours.
func ownBroker(t *testing.T, data string) (addr string) {
	addr = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	file := filepath.Join(t.TempDir(), "broker.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Start(t, testenv.Command{Name: "broker", Path: testenv.Sluice(t),
		Args:  []string{"broker", "--config", file, "--data", data, "--listen", addr, "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, addr) }})
	return addr
}

// The model's full disk is that of a broker of ours: what would be written is refused, all else goes on, and so does writing when there is
// room. Kafka takes a log directory offline that it cannot write to, and ends when it has no other: to a sender it is a broker that is down.
func TestModelAgainstAFullDisk(t *testing.T) {
	if !testenv.CanMount() {
		t.Skip("a small disk is mounted by root alone")
	}
	dir := t.TempDir()
	testenv.SmallDisk(t, dir, 96<<20)
	s := newScript(t, ownBroker(t, dir))
	topic := s.makeTopic("plain", nil)
	s.values = 16 << 10 // no write fits into a page that is there
	for s.step = range 100 {
		s.act()
	}
	empty := testenv.FillDisk(t, dir)
	topic.Partitions[0].Full = true
	for end := s.step + 100; s.step < end; s.step++ {
		s.act()
	}
	empty()
	topic.Partitions[0].Full = false
	for end := s.step + 100; s.step < end; s.step++ {
		s.act()
	}
}

const scriptSteps = 1500

// script is one random run on a real cluster and on the model of one.
type script struct {
	t      *testing.T
	rnd    *rand.Rand
	client *kgo.Client
	adm    *kadm.Client
	model  *brokermodel.Cluster
	leader int32
	topics []*brokermodel.Topic // of the model; the real ones have the same names
	real   map[string]TopicID
	sent   map[string][][]byte // batches by topic and producer
	step   int
	values int // least bytes of a value
}

func newScript(t *testing.T, addr string) *script {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &script{t: t, rnd: rand.New(rand.NewPCG(seed, 3)), client: client, adm: kadm.NewClient(client), model: brokermodel.New("model"), real: map[string]TopicID{}, sent: map[string][][]byte{}}
	s.model.Replicated = true
	return s
}

func modelAgainst(t *testing.T, addr string) {
	s := newScript(t, addr)
	s.makeTopic("plain", nil)
	s.makeTopic("keyed", map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}).Compacted = true
	s.makeTopic("small", map[string]*string{"max.message.bytes": kadm.StringPtr("160")}).BatchBytesMax = 160
	for s.step = range scriptSteps {
		s.act()
	}
}

func (s *script) makeTopic(name string, config map[string]*string) *brokermodel.Topic {
	s.t.Helper()
	name = fmt.Sprintf("%s-%d", name, time.Now().UnixNano())
	if made, err := s.adm.CreateTopic(s.t.Context(), 1, 1, config, name); err != nil || made.Err != nil {
		s.t.Fatal(err, made.Err)
	}
	s.awaitLeader(name)
	meta, err := s.adm.Metadata(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	topic := s.model.Make(name, 1)
	s.leader = meta.Topics[name].Partitions[0].Leader
	topic.Partitions[0].Leader = s.leader
	s.real[name] = TopicID(meta.Topics[name].ID)
	s.topics = append(s.topics, topic)
	return topic
}

// awaitLeader waits until a new topic is served: a broker may answer its creation before that.
func (s *script) awaitLeader(topic string) {
	s.t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-again.C {
		ends, err := s.adm.ListEndOffsets(s.t.Context(), topic)
		if err = errors.Join(err, ends.Error()); err == nil && len(ends[topic]) == 1 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s has no leader: %v", topic, err)
		}
	}
}

func (s *script) act() {
	topic := s.topics[s.rnd.IntN(len(s.topics))]
	switch n := s.rnd.IntN(20); {
	case n < 15:
		s.produce(topic)
	case n < 16:
		s.compare("the producers", topic, s.producers(topic))
	case n < 17:
		s.compare("the log's ends", topic, s.offsets(topic))
	case n < 19:
		s.compare("what is read", topic, s.read(topic, topic.Partitions[0].End+3-int64(s.rnd.IntN(int(topic.Partitions[0].End)+5))))
	case s.rnd.IntN(4) == 0 && !topic.Compacted && !topic.Partitions[0].Full:
		s.deleteRecords(topic)
	default:
		s.compare("metadata", topic, func(ask asker, _ TopicID) string {
			resp, err := ask(AnyBroker, metadataRequest([]string{topic.Name, "absent"}))
			if err != nil {
				return err.Error()
			}
			var out strings.Builder
			for _, t := range resp.(*kmsg.MetadataResponse).Topics {
				fmt.Fprint(&out, *t.Topic, " ", t.ErrorCode, " ", len(t.Partitions), "; ")
			}
			return out.String()
		})
	}
}

// asker asks the one or the other.
type asker func(broker int32, req kmsg.Request) (kmsg.Response, error)

// compare asks both the same. What is asked for is worked out in terms of the topic's ID there.
func (s *script) compare(what string, topic *brokermodel.Topic, ask func(asker, TopicID) string) {
	s.t.Helper()
	got := ask(func(broker int32, req kmsg.Request) (kmsg.Response, error) {
		if broker == AnyBroker {
			return s.client.Request(s.t.Context(), req)
		}
		return s.client.Broker(int(broker)).Request(s.t.Context(), req)
	}, s.real[topic.Name])
	want := ask(func(broker int32, req kmsg.Request) (kmsg.Response, error) { return s.model.Handle(broker, req), nil }, topic.ID)
	if got != want {
		s.t.Fatalf("step %d, %s of %s: the broker says %s, the model %s", s.step, what, topic.Name, got, want)
	}
}

func (s *script) produce(topic *brokermodel.Topic) {
	data := s.batch(topic)
	unknownID := s.rnd.IntN(30) == 0
	s.compare("produce", topic, func(ask asker, id TopicID) string {
		if unknownID {
			id = TopicID{1, 2, 3}
		}
		r := newOutgoing(s.leader)
		r.add(nil, &Batch{Topic: topic.Name, TopicID: id, Data: slices.Clone(data), Size: len(data)})
		resp, err := ask(s.leader, r.ProduceRequest)
		a := r.answers(resp, err)[0]
		out := fmt.Sprintf("verdict %d at %d", a.verdict, a.base)
		if a.verdict != stored {
			out = fmt.Sprintf("verdict %d", a.verdict)
		}
		if a.refusal != nil {
			out += fmt.Sprint(" records ", a.refusal.records, a.refusal.tooLarge)
		}
		return out
	})
}

// batch is one that is due, a repeat, or one with a fault.
func (s *script) batch(topic *brokermodel.Topic) []byte {
	id := 1_000_000 + int64(s.rnd.IntN(3))
	to := fmt.Sprint(topic.Name, id)
	if before := s.sent[to]; s.rnd.IntN(4) == 0 && len(before) > 0 {
		return before[max(len(before)-1-s.rnd.IntN(8), 0)]
	}
	epoch, base := int16(0), []int32{0, 17, 1<<31 - 4}[id%3]
	for _, p := range s.described(topic) {
		if p.ProducerID == id {
			epoch, base = int16(p.ProducerEpoch), record.AddSequence(p.LastSequence, 1)
		}
	}
	switch s.rnd.IntN(20) {
	case 0:
		base = record.AddSequence(base, 1+s.rnd.Int32N(5))
	case 1:
		epoch, base = epoch+1, 0
	case 2:
		epoch++ // with a sequence that is not 0
	case 3:
		epoch = max(epoch-1, 0)
	}
	var build record.Builder
	for i := range 1 + s.rnd.IntN(3) {
		var key []byte
		if topic.Compacted && s.rnd.IntN(10) > 0 {
			key = []byte("k")
		}
		build.Append(time.Now().UnixMilli(), key, fmt.Appendf(nil, "%d %d %d %s", id, base, i, strings.Repeat("x", s.values+s.rnd.IntN(30))), nil)
	}
	data, err := build.Build(record.BuildOptions{}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	data.SetProducer(id, epoch, base)
	s.sent[to] = append(s.sent[to], data)
	return data
}

func (s *script) described(topic *brokermodel.Topic) []kmsg.DescribeProducersResponseTopicPartitionActiveProducer {
	req := kmsg.NewPtrDescribeProducersRequest()
	req.Topics = append(req.Topics, kmsg.DescribeProducersRequestTopic{Topic: topic.Name, Partitions: []int32{0}})
	return s.model.Handle(s.leader, req).(*kmsg.DescribeProducersResponse).Topics[0].Partitions[0].ActiveProducers
}

func (s *script) producers(topic *brokermodel.Topic) func(asker, TopicID) string {
	return func(ask asker, _ TopicID) string {
		req := kmsg.NewPtrDescribeProducersRequest()
		req.Topics = append(req.Topics, kmsg.DescribeProducersRequestTopic{Topic: topic.Name, Partitions: []int32{0, 7}})
		resp, err := ask(s.leader, req)
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, p := range resp.(*kmsg.DescribeProducersResponse).Topics[0].Partitions {
			out = append(out, fmt.Sprint("partition ", p.Partition, " error ", p.ErrorCode))
			for _, x := range p.ActiveProducers {
				out = append(out, fmt.Sprint(p.Partition, " producer ", x.ProducerID, " ", x.ProducerEpoch, " ", x.LastSequence))
			}
		}
		slices.Sort(out)
		return strings.Join(out, "; ")
	}
}

func (s *script) offsets(topic *brokermodel.Topic) func(asker, TopicID) string {
	return func(ask asker, id TopicID) string {
		sender := &Sender{transport: askTransport(ask)}
		l := newLane(laneKey{id, topic.Name, 0})
		end, err := sender.askFloor(l, s.leader)
		start, err2 := sender.logStart(l, s.leader)
		return fmt.Sprint(start, " to ", end, " ", err, " ", err2)
	}
}

// read reads the log back as a sender does.
func (s *script) read(topic *brokermodel.Topic, from int64) func(asker, TopicID) string {
	of := identity{id: 1_000_000 + int64(s.rnd.IntN(3)), known: true}
	return func(ask asker, id TopicID) string {
		sender := &Sender{transport: askTransport(ask)}
		got, err := sender.readLog(newLane(laneKey{id, topic.Name, 0}), s.leader, from, of)
		var there []int
		for base := range got.there {
			there = append(there, int(base))
		}
		slices.Sort(there)
		return fmt.Sprint("from ", from, ": ", there, got.complete, err)
	}
}

// askTransport is a transport that only asks.
type askTransport func(broker int32, req kmsg.Request) (kmsg.Response, error)

func (f askTransport) Ask(broker int32, req kmsg.Request) (kmsg.Response, error) {
	return f(broker, req)
}
func (f askTransport) Produce(int32, *kmsg.ProduceRequest, func(kmsg.Response, error)) {
	panic("it only asks")
}
func (f askTransport) Go(run func()) { run() }

func (s *script) deleteRecords(topic *brokermodel.Topic) {
	p := topic.Partitions[0]
	at := p.Start + s.rnd.Int64N(p.End-p.Start+1)
	resp, err := s.adm.DeleteRecords(s.t.Context(), kadm.Offsets{topic.Name: {0: {Topic: topic.Name, At: at}}})
	if err != nil {
		s.t.Fatal(err)
	}
	if got, _ := resp.Lookup(topic.Name, 0); got.Err != nil || got.LowWatermark != at {
		s.t.Fatal(got.Err, got.LowWatermark, at)
	}
	p.DeleteTo(at)
}

// An answer that no broker of ours or Kafka's gives on demand: a producer ID of -1 is not taken for one.
func TestNoProducerIDIsNone(t *testing.T) {
	for _, id := range []int64{-1, -5} {
		s := &Sender{transport: askTransport(func(_ int32, req kmsg.Request) (kmsg.Response, error) {
			resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
			resp.ProducerID = id
			return resp, nil
		})}
		if got, err := s.askID(); err == nil {
			t.Errorf("producer ID %d gives %+v", id, got)
		}
	}
	s := &Sender{transport: askTransport(func(_ int32, req kmsg.Request) (kmsg.Response, error) {
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil
	})}
	if _, err := s.askID(); err == nil {
		t.Error("no error")
	}
}
