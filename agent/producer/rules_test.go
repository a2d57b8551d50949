package producer_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/testenv"
)

// wire lets a test do to produce connections what networks do.
type wire struct {
	// cut says, for each answer to a produce that has arrived, whether the connection is cut before it is given to the client.
	cut func() bool
	// refuse says whether produces are not let through: the connection is cut instead.
	refuse func() bool
	// hold, when set, keeps answers to produces back until it is closed.
	hold chan struct{}

	mu       sync.Mutex
	asked    int // produces written and not answered
	askedMax int
}

func (w *wire) dial(ctx context.Context, network, host string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	return &wired{Conn: c, w: w}, nil
}

func (w *wire) note(n int) {
	w.mu.Lock()
	w.asked += n
	w.askedMax = max(w.askedMax, w.asked)
	w.mu.Unlock()
}

func (w *wire) most() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.askedMax
}

// wired is a connection of a wire. The client writes a request in one call, but for its batches, and has a connection of its own for
// produces.
type wired struct {
	net.Conn
	w        *wire
	left     int // of the request that is written
	produces atomic.Bool
	mine     atomic.Int32
	size     []byte // of the response that begins
	rest     int    // of the one that is read
}

func (c *wired) Write(p []byte) (int, error) {
	begins := c.left == 0
	if begins {
		c.left = 4 + int(binary.BigEndian.Uint32(p))
	}
	c.left -= len(p)
	if begins && binary.BigEndian.Uint16(p[4:]) == 0 {
		if c.w.refuse != nil && c.w.refuse() {
			c.Conn.Close()
			return 0, io.ErrClosedPipe
		}
		c.produces.Store(true)
		c.mine.Add(1)
		c.w.note(1)
	}
	return c.Conn.Write(p)
}

func (c *wired) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.produces.Load() || n == 0 {
		return n, err
	}
	if c.w.hold != nil {
		<-c.w.hold
	}
	if c.w.cut != nil && c.w.cut() {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	for range c.answers(p[:n]) {
		c.mine.Add(-1)
		c.w.note(-1)
	}
	return n, err
}

// answers is how many responses begin in what was read.
func (c *wired) answers(p []byte) (begun int) {
	for len(p) > 0 {
		if c.rest > 0 {
			n := min(c.rest, len(p))
			c.rest -= n
			p = p[n:]
			continue
		}
		c.size = append(c.size, p[0])
		p = p[1:]
		if len(c.size) == 4 {
			c.rest, c.size = int(binary.BigEndian.Uint32(c.size)), c.size[:0]
			begun++
		}
	}
	return begun
}

func (c *wired) Close() error {
	c.w.note(-int(c.mine.Swap(0)))
	return c.Conn.Close()
}

// through makes a sender whose connections are a wire's.
func through(t *testing.T, addr, topic string, log *memoryLog, w *wire) *sender {
	s := newSender(t, addr, topic, log)
	s.cfg.Dial = w.dial
	return s
}

// A broker that has stored a batch may die, or the network, before its answer comes. The same bytes are sent again.
func TestAnswersCutOff(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		var answers atomic.Int32
		w := &wire{cut: func() bool { return answers.Add(1)%2 == 0 }}
		s := through(t, addr, topicName(t), newMemoryLog(), w).open()
		s.prepare(producer.TopicSpec{})
		s.sendNumbers(0, 1000, 20)
		s.wait()
		if n := answers.Load(); n < 20 {
			t.Errorf("only %d answers", n)
		}
		s.wants(addr, numbers(0, 1000))
	})
}

// The process ends, again and again, with batches stored and not acknowledged.
func TestRestartsWithAnswersCutOff(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		topic, log := topicName(t), newMemoryLog()
		const each = 200
		for run := range 4 {
			last := run == 3
			var answers atomic.Int32
			w := &wire{cut: func() bool { return !last && answers.Add(1) > 3 }}
			s := through(t, addr, topic, log, w).open()
			s.prepare(producer.TopicSpec{})
			s.sendNumbers(run*each, (run+1)*each, 10)
			if last {
				s.wait()
				s.wants(addr, numbers(0, 4*each))
				return
			}
			s.until("all is in the journal", func() bool { return log.written() >= (run+1)*each/10 && answers.Load() > 3 })
			s.k.Close()
		}
	})
}

// written is how many bundles were written so far.
func (m *memoryLog) written() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// Of five first batches of a producer a broker could take a later one and refuse those before it for good.
func TestFirstBatchTravelsAlone(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		w := &wire{hold: make(chan struct{})}
		s := through(t, addr, topicName(t), newMemoryLog(), w).open()
		s.prepare(producer.TopicSpec{})
		s.sendNumbers(0, 100, 10)
		s.until("all is in the journal", func() bool { return s.log.written() >= 10 })
		s.until("one is sent", func() bool { return w.most() > 0 })
		s.k.Prepare(t.Context(), producer.TopicSpec{Name: s.topic}) // a round trip: were there others, they had been sent
		if n := w.most(); n != 1 {
			t.Errorf("%d requests under way before the first answer", n)
		}
		close(w.hold)
		s.wait()
		if n := w.most(); n > 5 {
			t.Errorf("%d requests under way", n)
		}
		s.wants(addr, numbers(0, 100))
	})
}

// leaveUnanswered stores batches whose answers never come, and closes the producer.
func leaveUnanswered(t *testing.T, addr, topic string, log *memoryLog, acked int, values []string, config map[string]string) {
	t.Helper()
	var answers atomic.Int32
	w := &wire{cut: func() bool { return answers.Add(1) > int32(acked) }}
	s := through(t, addr, topic, log, w).open()
	s.prepare(producer.TopicSpec{Config: config})
	for i := range acked {
		s.send("acked " + string(rune('a'+i)))
		s.wait()
	}
	s.send(values...)
	s.until("the answer was cut off", func() bool { return answers.Load() > int32(acked) })
	s.k.Close()
	if log.unsettled() == 0 {
		t.Fatal("all is settled")
	}
}

// A batch that is stored is refused when it is sent again: the limit was lowered meanwhile. It must be neither split nor dropped.
func TestStoredBatchIsRefusedLater(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		topic, log := topicName(t), newMemoryLog()
		leaveUnanswered(t, addr, topic, log, 1, numbers(0, 1000), map[string]string{"compression.type": "producer"})
		setConfig(t, addr, topic, "max.message.bytes", "600")
		s := newSender(t, addr, topic, log).open()
		s.wait()
		s.prepare(producer.TopicSpec{})
		s.sendNumbers(1000, 1050, 50)
		s.wait()
		if len(s.refused) > 0 || s.unknown > 0 {
			t.Errorf("%d refused, %d unknown", len(s.refused), s.unknown)
		}
		s.wants(addr, slices.Concat([]string{"acked a"}, numbers(0, 1050)))
	})
}

// A broker that has forgotten a producer would take any batch of it again.
func TestForgottenProducer(t *testing.T) {
	forgetful(t, func(t *testing.T, addr string) {
		for name, run := range map[string]func(*testing.T, string){
			"stored": storedAndForgotten, "log start moved": forgottenAndLogStartMoved, "not stored": unsentAndForgotten, "compacted": forgottenAndCompacted,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // they mostly wait
				run(t, addr)
			})
		}
	})
}

// forgetful starts brokers that forget producers soon.
func forgetful(t *testing.T, run func(t *testing.T, addr string)) {
	config := map[string]string{"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "500", "log.cleaner.backoff.ms": "100"}
	t.Run("kafka", func(t *testing.T) { run(t, testenv.StartKafka(t, testenv.KafkaConfig{Properties: config}).Addr) })
	t.Run("sluice", func(t *testing.T) { run(t, startSluice(t, config)) })
}

// waitForgotten waits until the partition remembers no producer.
func waitForgotten(t *testing.T, addr, topic string) {
	t.Helper()
	adm := admin(t, addr)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := adm.DescribeProducers(ctx, kadm.TopicsSet{topic: {0: {}}})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		got.EachProducer(func(kadm.DescribedProducer) { n++ })
		if n == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the broker does not forget")
		}
	}
}

// What is stored is found in the log.
func storedAndForgotten(t *testing.T, addr string) {
	topic, log := topicName(t), newMemoryLog()
	leaveUnanswered(t, addr, topic, log, 1, numbers(0, 100), nil)
	waitForgotten(t, addr, topic)
	s := newSender(t, addr, topic, log).open()
	s.wait()
	s.prepare(producer.TopicSpec{})
	s.sendNumbers(100, 200, 10)
	s.wait()
	if s.unknown > 0 {
		t.Errorf("%d unknown", s.unknown)
	}
	s.wants(addr, slices.Concat([]string{"acked a"}, numbers(0, 200)))
}

// The same, and the log no longer reaches back to where the batch would lie: what cannot be known is counted.
func forgottenAndLogStartMoved(t *testing.T, addr string) {
	topic, log := topicName(t), newMemoryLog()
	leaveUnanswered(t, addr, topic, log, 1, numbers(0, 10), nil)
	waitForgotten(t, addr, topic)
	adm := admin(t, addr)
	if _, err := adm.DeleteRecords(t.Context(), kadm.Offsets{topic: {0: {Topic: topic, At: 11}}}); err != nil {
		t.Fatal(err)
	}
	held := log.copy()
	h := newSender(t, addr, topic, held)
	h.cfg.Unknown = producer.Hold
	h.open()
	h.until("it is unknown", func() bool { return h.unknown == 1 })
	h.k.Close()
	if held.unsettled() != 1 {
		t.Error("a batch on hold must stay in the journal")
	}
	s := newSender(t, addr, topic, log).open()
	s.wait()
	if s.unknown != 1 {
		t.Errorf("%d unknown", s.unknown)
	}
	s.wants(addr, numbers(0, 10)) // sent again; the first ones were deleted
}

// A backup of the state directory is put back: its batches are stored, and the producer has gone on since.
func TestRestoredBackup(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		topic, log := topicName(t), newMemoryLog()
		leaveUnanswered(t, addr, topic, log, 2, numbers(0, 10), nil)
		backup := log.copy()
		s := newSender(t, addr, topic, log).open()
		s.prepare(producer.TopicSpec{})
		s.sendNumbers(10, 200, 10)
		s.wait()
		s.k.Close()
		r := newSender(t, addr, topic, backup).open()
		r.wait()
		if r.unknown > 0 {
			t.Errorf("%d unknown", r.unknown)
		}
		r.wants(addr, slices.Concat([]string{"acked a", "acked b"}, numbers(0, 200)))
	})
}

// The producer of a backup has gone on by more batches than the broker remembers, under the same identity.
func TestRestoredBackupOfALongRun(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		log := newMemoryLog()
		var backup *memoryLog
		w := &wire{hold: make(chan struct{})}
		s := through(t, addr, topicName(t), log, w).open()
		s.prepare(producer.TopicSpec{})
		s.sendNumbers(0, 10, 10)
		s.until("it is sent", func() bool { return w.most() > 0 })
		backup = log.copy()
		close(w.hold)
		s.sendNumbers(10, 200, 10)
		s.wait()
		s.k.Close()
		r := newSender(t, addr, s.topic, backup).open()
		r.wait()
		if r.unknown > 0 {
			t.Errorf("%d unknown", r.unknown)
		}
		r.wants(addr, numbers(0, 200))
	})
}

// A power cut has taken from a journal that is not synced where the batches of a partition begin, and how they went on, but not the first of them.
func TestFloorLostInAPowerCut(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		log := newMemoryLog()
		w := &wire{hold: make(chan struct{})}
		s := through(t, addr, topicName(t), log, w).open()
		s.prepare(producer.TopicSpec{})
		s.sendNumbers(0, 10, 10)
		s.until("it is sent", func() bool { return w.most() > 0 })
		left := log.copy()
		clear(left.floors)
		close(w.hold)
		s.sendNumbers(10, 200, 10)
		s.wait()
		s.k.Close()
		r := newSender(t, addr, s.topic, left).open()
		r.wait()
		if r.unknown > 0 {
			t.Errorf("%d unknown", r.unknown)
		}
		r.wants(addr, numbers(0, 200))
	})
}

// The topic is deleted and made again between a crash and the restart: what was sent to the old one may have been stored there.
func TestTopicMadeAgainAfterACrash(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		topic, log := topicName(t), newMemoryLog()
		leaveUnanswered(t, addr, topic, log, 1, numbers(0, 10), nil)
		makeAgain(t, addr, topic)
		held := log.copy()
		h := newSender(t, addr, topic, held)
		h.cfg.Unknown = producer.Hold
		h.open()
		h.until("it is unknown", func() bool { return h.unknown == 1 })
		h.k.Close()
		s := newSender(t, addr, topic, log).open()
		s.wait()
		s.prepare(producer.TopicSpec{})
		s.sendNumbers(10, 20, 10)
		s.wait()
		if s.unknown != 1 {
			t.Errorf("%d unknown", s.unknown)
		}
		s.wants(addr, numbers(0, 20))
	})
}

// makeAgain deletes a topic and makes it.
func makeAgain(t *testing.T, addr, topic string) {
	t.Helper()
	adm := admin(t, addr)
	if _, err := adm.DeleteTopics(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		made, err := adm.CreateTopic(ctx, 1, 1, nil, topic)
		if err == nil && made.Err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// The journal takes nothing for a while, as on a full disk: nothing is sent that is not in it, and all is sent in the end.
func TestJournalFullForAWhile(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		s := newSender(t, addr, topicName(t), newMemoryLog()).open()
		s.prepare(producer.TopicSpec{})
		s.sendNumbers(0, 100, 10)
		s.wait()
		s.log.refuse(io.ErrShortWrite)
		s.sendNumbers(100, 200, 10)
		s.k.Prepare(t.Context(), producer.TopicSpec{Name: s.topic})
		if got := read(t, addr, s.topic); len(got) != 100 {
			t.Errorf("%d records are stored, and the journal took 100", len(got))
		}
		s.log.refuse(nil)
		s.wait()
		s.wants(addr, numbers(0, 200))
	})
}

func (m *memoryLog) refuse(err error) {
	m.mu.Lock()
	m.fail = err
	m.mu.Unlock()
}
