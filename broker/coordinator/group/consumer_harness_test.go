package group

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator"
)

// consumerFixture is a fixture with topics, for groups of the consumer protocol.
type consumerFixture struct {
	*fixture
	image *cluster.Image
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// newConsumerFixture has topic t with six partitions. Targets follow without an interval unless cfg
// says otherwise.
func newConsumerFixture(t testing.TB, cfg Config) *consumerFixture {
	if cfg.ConsumerAssignmentInterval == nil {
		cfg.ConsumerAssignmentInterval = always(-1)
	}
	f := &consumerFixture{fixture: newFixture(t, cfg), image: cluster.NewImage("c", nil)}
	f.topic("t", 6)
	return f
}

// topic makes a topic, or gives it more partitions.
func (f *consumerFixture) topic(name string, partitions int) cluster.TopicID {
	id := cluster.TopicID{byte(len(name))}
	copy(id[1:], name)
	f.image = f.image.With(&cluster.Topic{Name: name, ID: id, Partitions: make([]cluster.Partition, partitions)})
	f.c.SetImage(f.image)
	return id
}

func (f *consumerFixture) topicID(name string) cluster.TopicID { return f.image.Topic(name).ID }

func (f *consumerFixture) heartbeat(req ConsumerHeartbeat) *waiting[ConsumerHeartbeatResponse] {
	w := &waiting[ConsumerHeartbeatResponse]{fixture: f.fixture}
	f.c.ConsumerHeartbeat(req, w.answer)
	return w
}

func (f *consumerFixture) describeConsumer(group string) ConsumerDescription {
	f.Helper()
	var d ConsumerDescription
	answered := false
	f.c.DescribeConsumer(group, func(got ConsumerDescription, err error) {
		if err != nil {
			f.Fatalf("describe: %v", err)
		}
		d, answered = got, true
	})
	if !answered {
		f.Fatalf("describe: no answer")
	}
	return d
}

func (f *consumerFixture) wantGroup(group, state string, epoch, targetEpoch int32, members int) {
	f.Helper()
	d := f.describeConsumer(group)
	epoch, targetEpoch = epoch+emptyEpoch, targetEpoch+emptyEpoch // they count from the first one of a group
	if d.State != state || d.Epoch != epoch || d.TargetEpoch != targetEpoch || len(d.Members) != members {
		f.Fatalf("group is %s, epoch %d, target %d, %d members; want %s, %d, %d, %d",
			d.State, d.Epoch, d.TargetEpoch, len(d.Members), state, epoch, targetEpoch, members)
	}
}

// consumer is a client of the consumer protocol: it does what it is told, at once or when it is
// asked to.
type consumer struct {
	f                  *consumerFixture
	group, id          string
	instance, assignor *string
	topics             []string
	regex              *string
	epoch              int32
	rebalanceTimeout   time.Duration
	owned              partitionSet // what it has, as it says
	given              partitionSet // what it was last told to have
	slow               bool         // gives nothing up by itself
	news               bool         // it has to say what it owns
	unsure             bool         // an answer was lost: it says everything, and is told everything
}

func (f *consumerFixture) consumer(id string, topics ...string) *consumer {
	return &consumer{f: f, group: "g", id: id, topics: topics, rebalanceTimeout: time.Minute}
}

func (f *consumerFixture) static(id, instance string, topics ...string) *consumer {
	c := f.consumer(id, topics...)
	c.instance = &instance
	return c
}

// request is the next heartbeat: everything when it joins, otherwise only what is new.
func (c *consumer) request() ConsumerHeartbeat {
	req := ConsumerHeartbeat{
		Group: c.group, MemberID: c.id, Epoch: c.epoch, InstanceID: c.instance, RebalanceTimeout: -1,
		ClientID: "client", ClientHost: "/127.0.0.1", MemberIDRequired: true,
	}
	if c.epoch == joinEpoch {
		c.owned, c.given = partitionSet{}, partitionSet{}
	}
	if c.epoch == joinEpoch || c.unsure {
		req.RebalanceTimeout, req.Assignor, req.Regex = c.rebalanceTimeout, c.assignor, c.regex
		req.Topics = append([]string{}, c.topics...)
		if c.regex != nil && c.topics == nil {
			req.Topics = nil
		}
	}
	if c.epoch == joinEpoch || c.news || c.unsure {
		req.Owned = c.owned.topicPartitions()
	}
	return req
}

// beat sends a heartbeat, which must be answered at once.
func (c *consumer) beat() ConsumerHeartbeatResponse {
	c.f.Helper()
	resp := c.f.heartbeat(c.request()).get()
	c.take(resp)
	return resp
}

// take does what a client does with an answer.
func (c *consumer) take(resp ConsumerHeartbeatResponse) {
	if resp.Err != nil {
		return
	}
	c.epoch, c.news, c.unsure = resp.Epoch, false, false
	if !resp.Assigned {
		return
	}
	c.given = partitionSetOf(resp.Assignment)
	if c.slow {
		return
	}
	c.revoke()
}

// revoke gives up what it was told to, takes what it was given, and will say so.
func (c *consumer) revoke() {
	c.owned, c.news = c.given, true
}

// mustBeat is beat without an error.
func (c *consumer) mustBeat() ConsumerHeartbeatResponse {
	c.f.Helper()
	resp := c.beat()
	if resp.Err != nil {
		c.f.Fatalf("heartbeat of %s: %v", c.id, resp.Err)
	}
	return resp
}

func (c *consumer) wantErr(want error) {
	c.f.Helper()
	c.f.wantErr("heartbeat of "+c.id, c.beat().Err, want)
}

// leave says that it goes: -1 for good, -2 to come back.
func (c *consumer) leave(epoch int32) *waiting[ConsumerHeartbeatResponse] {
	req := c.request()
	req.Epoch, req.Owned = epoch, nil
	return c.f.heartbeat(req)
}

// has says in short what it was told to have: the partitions of each topic.
func (c *consumer) has() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.names())) {
		all = append(all, fmt.Sprint(name, c.names()[name]))
	}
	return strings.Join(all, " ")
}

func (c *consumer) names() map[string][]int32 {
	names := make(map[string][]int32)
	for id, partitions := range c.given {
		name := "gone"
		if t := c.f.image.TopicByID(id); t != nil {
			name = t.Name
		}
		names[name] = partitions
	}
	return names
}

func (c *consumer) wantHas(want string) {
	c.f.Helper()
	if got := c.has(); got != want {
		c.f.Fatalf("%s has %q, want %q", c.id, got, want)
	}
}

// settle lets consumers send heartbeats until they are where their group is.
func (f *consumerFixture) settle(all ...*consumer) {
	f.Helper()
	for range 20 {
		for _, c := range all {
			c.mustBeat()
		}
		if f.describeConsumer(all[0].group).State == "Stable" {
			return
		}
		f.clock.advance(time.Second)
	}
	f.Fatalf("group does not settle: %+v", f.describeConsumer(all[0].group))
}

// consumerRecords is the consumer protocol's part of a coordinator's state, as the records that
// would make it.
func (f *fixture) consumerRecords(c *Coordinator) string {
	f.Helper()
	var all strings.Builder
	err := c.do("", func(m *machine, _ time.Time, _ *coordinator.Actions) {
		for _, id := range m.groupIDs() {
			if g := m.groups[id].consumer; g != nil {
				for _, e := range g.everything(id) {
					r := e.record()
					fmt.Fprintf(&all, "%q %x\n", r.Key, r.Value)
				}
				fmt.Fprintf(&all, "%s %v %v\n", id, len(g.owners), g.instances)
			}
		}
	})
	if err != nil {
		f.Fatalf("consumer records: %v", err)
	}
	return all.String()
}

// everything is a group as records.
func (c *consumerGroup) everything(group string) (all []consumerEntry) {
	all = append(all, epochEntry{entryOf[epochValue]{group, "", &epochValue{c.epoch, c.hash}}},
		targetEpochEntry{entryOf[targetEpochValue]{group, "", &targetEpochValue{c.targetEpoch, c.targetTimestamp}}})
	for _, id := range c.memberIDs() {
		all = append(all, memberEntry{entryOf[consumerMember]{group, id, c.members[id]}}, currentEntry{entryOf[consumerMember]{group, id, c.members[id]}})
	}
	for _, id := range sortedKeys(c.target) {
		set := c.target[id]
		all = append(all, targetEntry{entryOf[partitionSet]{group, id, &set}})
	}
	for _, pattern := range sortedKeys(c.regexes) {
		all = append(all, regexEntry{entryOf[resolvedRegex]{group, pattern, c.regexes[pattern]}})
	}
	return all
}

// wantConsumerReplay replays the whole log and compares what it makes with what there is.
func (f *fixture) wantConsumerReplay() {
	f.Helper()
	live := f.consumerRecords(f.c)
	c := f.newCoordinator(f.c.cfg)
	c.Elect(0, 1, f.log.prefix(f.log.end))
	c.loading.Wait()
	defer c.Close()
	if got := f.consumerRecords(c); got != live {
		f.Fatalf("replayed:\n%s\nlive:\n%s", got, live)
	}
}
