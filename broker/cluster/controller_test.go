package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// testController is a controller with its broker's membership.
type testController struct {
	*Controller
	*Member
}

func (c testController) image() *Image { return c.meta.Image() }

// kill ends it with its store, as if killed.
func (c testController) kill(s *Embedded) {
	_ = s.Close()
	_ = c.Leave(context.Background())
}

func startController(t *testing.T, s Store, self Registration) testController {
	t.Helper()
	if self.ClusterID == "" {
		self.ClusterID = "28ve_qmZRd2uT76selHi6A"
	}
	if self.Broker.ID == 0 {
		self.Broker = Broker{ID: 1, Host: "127.0.0.1", Port: 9092}
	}
	log, now := slog.New(slog.DiscardHandler), func() time.Time { return time.UnixMilli(1796026952190) }
	meta := NewMetadata()
	c := NewController(log, s, meta, nil, ControllerConfig{BrokerID: self.Broker.ID, DefaultPartitions: 3, Now: now, RetryBackoff: time.Millisecond})
	m := NewMember(log, s, c, MemberConfig{Now: now})
	meta.Subscribe(m.Seen)
	if err := m.Join(t.Context(), self); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Leave(context.Background()) })
	return testController{c, m}
}

// inOffice returns a controller of broker 1 in epoch 1, without a membership.
func inOffice(t *testing.T, s Store) *Controller {
	t.Helper()
	if err := prepareTree(t.Context(), s, "28ve_qmZRd2uT76selHi6A"); err != nil {
		t.Fatal(err)
	}
	self := Registration{Broker: Broker{ID: 1, Host: "127.0.0.1", Port: 9092}, Clean: true}
	txn(t, s, CreateEphemeral(brokerPath(1), newBrokerNode(self, time.Now())), Set(controllerEpochPath, []byte("1"), 0))
	c := NewController(slog.New(slog.DiscardHandler), s, NewMetadata(), nil, ControllerConfig{BrokerID: 1})
	session, err := s.Session(t.Context())
	if err == nil {
		err = c.TakeOffice(t.Context(), Office{Epoch: 1, EpochVersion: 1, Session: session})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.LeaveOffice)
	return c
}

func create(t *testing.T, c testController, topics ...NewTopic) {
	t.Helper()
	for _, done := range c.CreateTopics(t.Context(), topics, false) {
		if done.Err != nil {
			t.Fatal(done.Err)
		}
	}
}

func topicOf(name string, partitions int32) NewTopic {
	return NewTopic{Name: name, Partitions: partitions, ReplicationFactor: 1}
}

func nodeText(t *testing.T, s Store, path string) string {
	t.Helper()
	data, _, err := s.Get(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The nodes have the names and the JSON of Apache Kafka 3.9 in ZooKeeper mode.
func TestNodesAreKafkas(t *testing.T) {
	s := openStore(t, t.TempDir())
	c := startController(t, s, Registration{Clean: true})
	retention := "3600000"
	create(t, c, NewTopic{Name: "zt", Partitions: 2, ReplicationFactor: 1, Config: map[string]*string{"retention.ms": &retention}})
	if _, _, err := c.AllocateProducerIDs(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := FormatTopicID(c.image().Topic("zt").ID)
	for path, want := range map[string]string{
		"/cluster/id":                           `{"version":"1","id":"28ve_qmZRd2uT76selHi6A"}`,
		"/controller":                           `{"version":2,"brokerid":1,"timestamp":"1796026952190","kraftControllerEpoch":-1}`,
		"/controller_epoch":                     `1`,
		"/brokers/topics/zt":                    `{"partitions":{"0":[1],"1":[1]},"topic_id":"` + id + `","adding_replicas":{},"removing_replicas":{},"version":3}`,
		"/brokers/topics/zt/partitions/0/state": `{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}`,
		"/config/topics/zt":                     `{"version":1,"config":{"retention.ms":"3600000"}}`,
		"/latest_producer_id_block":             `{"version":1,"broker":1,"block_start":"0","block_end":"999"}`,
	} {
		if got := nodeText(t, s, path); got != want {
			t.Errorf("%s is\n%s, want\n%s", path, got, want)
		}
	}
	var broker map[string]any
	if err := json.Unmarshal([]byte(nodeText(t, s, "/brokers/ids/1")), &broker); err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{
		"version": "5", "host": "127.0.0.1", "port": "9092", "jmx_port": "-1", "features": "map[]",
		"endpoints": "[PLAINTEXT://127.0.0.1:9092]", "listener_security_protocol_map": "map[PLAINTEXT:PLAINTEXT]",
	} {
		if fmt.Sprint(broker[field]) != want {
			t.Errorf("%s is %v", field, broker[field])
		}
	}
}

// What a controller made, the next one loads; leader epochs move only after an
// unclean stop, and no producer id is given twice.
func TestControllerReloads(t *testing.T) {
	dir := t.TempDir()
	var image *Image
	nextID := int64(0)
	for round, clean := range []bool{true, true, false} {
		s := openStore(t, dir)
		c := startController(t, s, Registration{Clean: clean})
		if round == 0 {
			create(t, c, topicOf("a", 3), topicOf("b", 1))
			image = c.image()
		}
		got := c.image()
		if got.TopicCount() != 2 || got.Topic("a").ID != image.Topic("a").ID || got.TopicByID(image.Topic("b").ID).Name != "b" {
			t.Fatalf("round %d: %+v", round, got.Topics())
		}
		wantEpoch := int32(0)
		if !clean {
			wantEpoch = 1
		}
		if p := got.Topic("a").Partitions[2]; p.LeaderEpoch != wantEpoch || p.PartitionEpoch != wantEpoch || p.Leader != 1 {
			t.Errorf("round %d: %+v", round, p)
		}
		if got.ControllerEpoch != int32(round+1) || got.ControllerID != 1 {
			t.Errorf("round %d: controller %d in epoch %d", round, got.ControllerID, got.ControllerEpoch)
		}
		first, count, err := c.AllocateProducerIDs(t.Context())
		if err != nil || first != nextID {
			t.Errorf("round %d: producer ids from %d, %v", round, first, err)
		}
		nextID = first + count
		c.kill(s)
	}
}

// A controller that was replaced without noticing can change nothing.
func TestFencedController(t *testing.T) {
	s := openStore(t, t.TempDir())
	c := inOffice(t, s)
	create(t, testController{Controller: c}, topicOf("a", 1))
	txn(t, s, Set(controllerEpochPath, []byte("2"), AnyVersion)) // another was elected
	before := dump(s)
	if done := c.CreateTopics(t.Context(), []NewTopic{topicOf("b", 1)}, false); !errors.Is(done[0].Err, ErrNotController) {
		t.Errorf("%v", done[0].Err)
	}
	if err := c.DeleteTopics(t.Context(), []string{"a"})[0]; !errors.Is(err, ErrNotController) {
		t.Errorf("%v", err)
	}
	if err := c.CreatePartitions(t.Context(), []NewPartitions{{Topic: "a", Total: 2}}, false)[0]; !errors.Is(err, ErrNotController) {
		t.Errorf("%v", err)
	}
	if dump(s) != before {
		t.Error("the tree changed")
	}
}

// cutStore ends, as if killed, after some transactions.
type cutStore struct {
	*Embedded
	left int
}

var errKilled = errors.New("killed")

func (s *cutStore) Txn(ctx context.Context, ops ...Op) error {
	if s.left == 0 {
		return errKilled
	}
	s.left--
	return s.Embedded.Txn(ctx, ops...)
}

// Killed after any transaction of a creation or deletion, the next controller
// finishes what had begun or has nothing of it: never a topic in halves.
func TestChangesAreCompletedAfterAKill(t *testing.T) {
	const partitions = 400 // several transactions
	change := func(c testController, what string) error {
		switch what {
		case "create":
			return c.CreateTopics(context.Background(), []NewTopic{topicOf("big", partitions), topicOf("small", 1)}, false)[0].Err
		case "delete":
			return c.DeleteTopics(context.Background(), []string{"old"})[0]
		}
		return c.CreatePartitions(context.Background(), []NewPartitions{{Topic: "old", Total: 2 * partitions}}, false)[0]
	}
	for _, what := range []string{"create", "delete", "grow"} {
		for kill := 0; ; kill++ {
			dir := t.TempDir()
			s := openStore(t, dir)
			cut := &cutStore{s, 1 << 30}
			c := startController(t, cut, Registration{Clean: true})
			create(t, c, topicOf("old", partitions))
			cut.left = kill
			err := change(c, what)
			c.kill(s)

			s = openStore(t, dir)
			c = startController(t, s, Registration{Clean: true})
			for _, topic := range c.image().Topics() {
				for i, p := range topic.Partitions {
					if p.Leader != 1 || len(p.ISR) != 1 {
						t.Fatalf("%s killed after %d: %s-%d is %+v", what, kill, topic.Name, i, p)
					}
				}
			}
			if what == "delete" && kill > 0 { // unknown, or it waits until it is done
				_ = c.DeleteTopics(t.Context(), []string{"old"})
			}
			if left, _ := s.Children(t.Context(), deleteTopicsPath); len(left) > 0 {
				t.Errorf("%s killed after %d: still to be deleted: %v", what, kill, left)
			}
			if old := c.image().Topic("old"); what == "delete" && kill > 0 && old != nil {
				t.Errorf("killed after %d: the topic is back", kill)
			}
			if what == "delete" && kill > 0 && strings.Contains(dump(s), "/old") {
				t.Errorf("killed after %d: nodes are left", kill)
			}
			c.kill(s)
			if err == nil {
				break
			}
			if kill > 20 {
				t.Fatal("it never ends")
			}
		}
	}
}

func TestSubscribersSeeEachChangeInOrder(t *testing.T) {
	s := openStore(t, t.TempDir())
	c := startController(t, s, Registration{Clean: true})
	create(t, c, topicOf("before", 1))
	var seen []string
	c.meta.Subscribe(func(old, new *Image) {
		DiffTopics(old, new, func(was, is *Topic) {
			switch {
			case was == nil:
				seen = append(seen, fmt.Sprintf("+%s:%d", is.Name, len(is.Partitions)))
			case is == nil:
				seen = append(seen, "-"+was.Name)
			default:
				seen = append(seen, fmt.Sprintf("%s:%d->%d", is.Name, len(was.Partitions), len(is.Partitions)))
			}
		})
	})
	create(t, c, topicOf("a", 1))
	if err := c.CreatePartitions(t.Context(), []NewPartitions{{Topic: "a", Total: 4}}, false)[0]; err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteTopics(t.Context(), []string{"a"})[0]; err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(seen, " "), "+before:1 +a:1 a:1->4 -a"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var none *Image
	if none.Topic("x") != nil || none.TopicByID(TopicID{}) != nil || none.Topics() != nil || none.TopicCount() != 0 {
		t.Error("a nil image has something")
	}
}

// Leaders and followers are spread evenly, and replicas of a partition differ.
func TestReplicasAreSpread(t *testing.T) {
	for brokers := 1; brokers <= 7; brokers++ {
		im := NewImage("c", nil)
		for id := range brokers {
			im.Brokers = append(im.Brokers, Broker{ID: int32(10 + id)})
		}
		for factor := 1; factor <= brokers; factor++ {
			partitions := brokers * max(brokers-1, 1) * 2
			replicas, err := assignReplicas(im, "some-topic", 0, partitions, factor)
			if err != nil {
				t.Fatal(err)
			}
			leads, holds := map[int32]int{}, map[int32]int{}
			for p, r := range replicas {
				leads[r[0]]++
				if err := checkReplicas(im, int32(p), r, factor); err != nil {
					t.Errorf("%d brokers, factor %d: %v: %v", brokers, factor, r, err)
				}
				for _, id := range r {
					holds[id]++
				}
			}
			for _, b := range im.Brokers {
				if leads[b.ID] != partitions/brokers || holds[b.ID] != partitions*factor/brokers {
					t.Errorf("%d brokers, factor %d: %d leads %d and holds %d of %d", brokers, factor, b.ID, leads[b.ID], holds[b.ID], partitions)
				}
			}
		}
		if _, err := assignReplicas(im, "t", 0, 1, brokers+1); !errors.Is(err, ErrInvalidReplicationFactor) {
			t.Errorf("%v", err)
		}
	}
}

func TestTopicConfigs(t *testing.T) {
	last := ""
	for _, d := range TopicConfigs() {
		if d.Name <= last || d.Doc == "" {
			t.Errorf("%s after %s", d.Name, last)
		}
		last = d.Name
		if err := d.Check(d.Default); err != nil && d.Default != "" {
			t.Errorf("the default is refused: %v", err)
		}
	}
	for _, c := range []struct {
		name, value string
		ok          bool
	}{
		{"retention.ms", "-1", true}, {"retention.ms", "-2", false}, {"retention.ms", "9223372036854775807", true},
		{"retention.ms", "9223372036854775808", false}, {"segment.bytes", "1048576", true}, {"segment.bytes", "1048575", false},
		{"segment.bytes", "2147483648", false}, {"cleanup.policy", "compact,delete", true}, {"cleanup.policy", " compact , delete ", true},
		{"cleanup.policy", "", true}, {"remote.storage.enable", "true", false},
		{"retention.bytes", "-7", true}, {"leader.replication.throttled.replicas", "0:1,1:2", true}, {"leader.replication.throttled.replicas", "*", true},
		{"leader.replication.throttled.replicas", "0", false}, {"cleanup.policy", "Delete", false}, {"preallocate", "TRUE", true}, {"preallocate", "yes", false},
		{"min.cleanable.dirty.ratio", "0.5", true}, {"min.cleanable.dirty.ratio", "NaN", false}, {"compression.type", "zstd", true},
		{"compression.type", "brotli", false}, {"max.message.bytes", " 5 ", true}, {"unheard.of", "1", false},
	} {
		if err := CheckTopicConfig(c.name, c.value); (err == nil) != c.ok {
			t.Errorf("%s=%q: %v", c.name, c.value, err)
		}
	}
	d, _ := LookupTopicConfig("retention.ms")
	broker := BrokerSettings{Static: map[string]string{"log.retention.hours": "2", "log.retention.minutes": "30"}}
	if v, all := d.Resolve(nil, broker); v != "1800000" || len(all) != 3 {
		t.Errorf("%s %+v", v, all)
	}
	if v, _ := d.Resolve(map[string]string{"retention.ms": "7"}, broker); v != "7" {
		t.Error(v)
	}
	if v, _ := d.Resolve(nil, BrokerSettings{Static: map[string]string{"log.retention.hours": "-1"}}); v != "-1" {
		t.Error(v)
	}
	if len(WithoutEffect()) == 0 {
		t.Error("every setting has an effect")
	}
}
