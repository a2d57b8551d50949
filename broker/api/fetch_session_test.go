package api

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/record"
)

// sessionClient is a client's side of a fetch session.
type sessionClient struct {
	*wire
	version   int16
	id, epoch int32
}

// ask sends a request of the session and returns what was told, as
// "topic-partition records code". Topics go by their place in names.
func (c *sessionClient) askSession(topics []kmsg.FetchRequestTopic, forgotten ...kmsg.FetchRequestForgottenTopic) (told []string, code int16) {
	c.t.Helper()
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes = c.version, 1<<20
	req.SessionID, req.SessionEpoch = c.id, c.epoch
	req.Topics, req.ForgottenTopics = topics, forgotten
	resp := c.ask(req).(*kmsg.FetchResponse)
	if resp.ErrorCode != 0 {
		return nil, resp.ErrorCode
	}
	c.id = resp.SessionID
	c.epoch++
	for _, topic := range resp.Topics {
		name := topic.Topic
		if c.version >= 13 {
			name = string(topic.TopicID[:1])
		}
		for _, p := range topic.Partitions {
			told = append(told, fmt.Sprintf("%s-%d %d %d", name, p.Partition, len(valuesOf(c.t, p.RecordBatches)), p.ErrorCode))
		}
	}
	slices.Sort(told)
	return told, 0
}

// of names partitions at offset 0.
func of(topic string, partitions ...int32) kmsg.FetchRequestTopic {
	return at(topic, 0, partitions...)
}

func at(topic string, offset int64, partitions ...int32) kmsg.FetchRequestTopic {
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topic, topicID(topic)
	for _, p := range partitions {
		t.Partitions = append(t.Partitions, fetchPartition(p, offset))
	}
	return t
}

func forget(topic string, partitions ...int32) kmsg.FetchRequestForgottenTopic {
	t := kmsg.NewFetchRequestForgottenTopic()
	t.Topic, t.TopicID, t.Partitions = topic, topicID(topic), partitions
	return t
}

func (c *sessionClient) expectTold(topics []kmsg.FetchRequestTopic, forgotten []kmsg.FetchRequestForgottenTopic, want ...string) {
	c.t.Helper()
	got, code := c.askSession(topics, forgotten...)
	if code != 0 || !slices.Equal(got, want) {
		c.t.Errorf("told %q (error %d), want %q", got, code, want)
	}
}

func TestFetchSession(t *testing.T) {
	for _, version := range []int16{7, 12, 13, 18} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			n := newNode(t)
			n.topic("a", topicOptions{partitions: 3})
			n.topic("b", topicOptions{})
			producer := n.dial()
			send := func(topic string, partition int32) {
				producer.ask(produceTo(topic, partition, 9, n.batchOf(record.BuildOptions{}, "x")))
			}
			send("a", 1)
			c := &sessionClient{wire: n.dial(), version: version}
			c.expectTold([]kmsg.FetchRequestTopic{of("a", 0, 1), of("b", 0)}, nil, "a-0 0 0", "a-1 1 0", "b-0 0 0")
			if c.id == 0 {
				t.Fatal("no session")
			}
			first := c.id
			// Nothing is new, once the client has moved on.
			c.expectTold([]kmsg.FetchRequestTopic{at("a", 1, 1)}, nil)
			c.expectTold(nil, nil)
			send("b", 0)
			c.expectTold(nil, nil, "b-0 1 0")
			// As long as the client does not move on, it gets it again.
			c.expectTold(nil, nil, "b-0 1 0")
			c.expectTold([]kmsg.FetchRequestTopic{at("b", 1, 0), of("a", 2)}, nil, "a-2 0 0")
			send("a", 0)
			send("a", 2)
			c.expectTold(nil, []kmsg.FetchRequestForgottenTopic{forget("a", 0)}, "a-2 1 0")
			if c.id != first {
				t.Errorf("session %d became %d", first, c.id)
			}
			// An error is told until it is over, and its end too.
			c.expectTold([]kmsg.FetchRequestTopic{at("a", 77, 2)}, nil, "a-2 0 1")
			c.expectTold(nil, nil, "a-2 0 1")
			c.expectTold([]kmsg.FetchRequestTopic{at("a", 1, 2)}, nil, "a-2 0 0")
			c.expectTold(nil, nil)
			// Forgetting all ends the session.
			c.expectTold(nil, []kmsg.FetchRequestForgottenTopic{forget("a", 1, 2), forget("b", 0)})
			if c.id != 0 || len(n.api.sessions.byID) != 0 {
				t.Errorf("session %d is left of %d", c.id, len(n.api.sessions.byID))
			}
		})
	}
}

func TestFetchSessionErrors(t *testing.T) {
	n := newNode(t)
	n.topic("a", topicOptions{})
	c := &sessionClient{wire: n.dial(), version: 12}
	expect := func(id, epoch int32, version int16, want *kerr.Error) {
		t.Helper()
		try := &sessionClient{wire: c.wire, version: version, id: id, epoch: epoch}
		_, code := try.askSession(nil)
		expectCode(t, code, want)
	}
	c.expectTold([]kmsg.FetchRequestTopic{of("a", 0)}, nil, "a-0 0 0")
	expect(c.id, 2, 12, kerr.InvalidFetchSessionEpoch)
	expect(c.id, 1, 13, kerr.FetchSessionTopicIDError)
	expect(c.id+1, 1, 12, kerr.FetchSessionIDNotFound)
	expect(c.id, 1, 12, nil)
	expect(c.id, 1, 12, kerr.InvalidFetchSessionEpoch)
	// A new session takes the place of the old one.
	old := c.id
	c.epoch = sessionInitial
	c.expectTold([]kmsg.FetchRequestTopic{of("a", 0)}, nil, "a-0 0 0")
	expect(old, 2, 12, kerr.FetchSessionIDNotFound)
	// The client closes it.
	closing := c.id
	c.epoch = sessionFinal
	c.expectTold(nil, nil)
	expect(closing, 1, 12, kerr.FetchSessionIDNotFound)
}

func TestFetchSessionEviction(t *testing.T) {
	n := newNode(t)
	n.topic("a", topicOptions{})
	n.api.sessions.max = 2
	open := func() *sessionClient {
		c := &sessionClient{wire: n.dial(), version: 12}
		c.expectTold([]kmsg.FetchRequestTopic{of("a", 0)}, nil, "a-0 0 0")
		return c
	}
	first := open()
	n.clock.advance(time.Minute)
	second := open()
	if third := open(); third.id != 0 {
		t.Error("a session beyond the limit")
	}
	n.clock.advance(time.Minute + time.Second)
	if fourth := open(); fourth.id == 0 {
		t.Error("an idle session kept its place")
	}
	_, code := first.askSession(nil)
	expectCode(t, code, kerr.FetchSessionIDNotFound)
	second.expectTold(nil, nil)
}

// A topic made again under its name is not the session's.
func TestFetchSessionOfADeletedTopic(t *testing.T) {
	n := newNode(t)
	p := n.topic("a", topicOptions{})[0]
	c := &sessionClient{wire: n.dial(), version: 13}
	c.expectTold([]kmsg.FetchRequestTopic{of("a", 0)}, nil, "a-0 0 0")
	n.partitions.Remove(p)
	n.mu.Lock()
	n.image = n.image.Without("a")
	n.mu.Unlock()
	c.expectTold(nil, nil, fmt.Sprintf("a-0 0 %d", kerr.UnknownTopicID.Code))
}

func TestFetchSessionWaits(t *testing.T) {
	n := newNode(t)
	n.topic("a", topicOptions{partitions: 2})
	w := n.dial()
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MinBytes = 13, 1<<20, 1
	req.Topics = []kmsg.FetchRequestTopic{of("a", 0, 1)}
	req.SessionEpoch = sessionInitial
	req.SessionID = w.ask(req).(*kmsg.FetchResponse).SessionID
	req.SessionEpoch, req.Topics, req.MaxWaitMillis = 1, nil, 500
	id := n.waitingFetch(w, req)
	n.dial().ask(produceTo("a", 1, 9, n.batchOf(record.BuildOptions{}, "x")))
	p := onlyPartition(t, w.receive(req, id))
	if p.Partition != 1 || len(valuesOf(t, p.RecordBatches)) != 1 {
		t.Errorf("%+v", p)
	}
}

func onlyPartition(t testing.TB, resp kmsg.Response) kmsg.FetchResponseTopicPartition {
	t.Helper()
	r := resp.(*kmsg.FetchResponse)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		t.Fatalf("answer for other than one partition: %+v", r)
	}
	return r.Topics[0].Partitions[0]
}

func TestSessionEpochWraps(t *testing.T) {
	if got := nextSessionEpoch(math.MaxInt32); got != 1 {
		t.Errorf("epoch %d", got)
	}
}

func TestFetchSessionsLimitTheirPartitions(t *testing.T) {
	n := newNode(t)
	n.topic("a", topicOptions{partitions: 2})
	ss := &n.api.sessions
	c := &sessionClient{wire: n.dial(), version: 12}
	c.expectTold([]kmsg.FetchRequestTopic{of("a", 0)}, nil, "a-0 0 0")
	ss.mu.Lock()
	ss.partitions += sessionPartitionsMax - 1
	ss.mu.Unlock()
	other := &sessionClient{wire: n.dial(), version: 12}
	other.expectTold([]kmsg.FetchRequestTopic{of("a", 0)}, nil, "a-0 0 0")
	if other.id != 0 {
		t.Error("a session beyond the limit")
	}
	// One that grows beyond it ends, and its last answer tells everything.
	c.expectTold([]kmsg.FetchRequestTopic{of("a", 1)}, nil, "a-0 0 0", "a-1 0 0")
	if c.id != 0 || len(ss.byID) != 0 || ss.partitions != sessionPartitionsMax-1 {
		t.Errorf("session %d, %d sessions, %d partitions", c.id, len(ss.byID), ss.partitions)
	}
}
