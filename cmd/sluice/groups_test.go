package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/admin"
	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks"
)

// The commands for groups, against our broker and against Apache Kafka.
func TestGroups(t *testing.T) {
	t.Run("sluice", func(t *testing.T) { testGroups(t, startTestBroker(t)) })
	t.Run("kafka", func(t *testing.T) { testGroups(t, testenv.Kafka(t).Addr) })
}

// groupRig is a topic of two partitions; the first has ten records, of which record n is n+1 minutes after rigEpoch.
type groupRig struct {
	*testing.T
	addr, topic string
	admin       *kadm.Client
	id          sinks.TopicID
}

const rigRecords = 10

var rigEpoch = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

func newGroupRig(t *testing.T, addr string) *groupRig {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r := &groupRig{T: t, addr: addr, topic: fmt.Sprintf("groups-%d", time.Now().UnixNano()), admin: kadm.NewClient(client)}
	sluice(t, "topics", "create", r.topic, "--partitions", "2", "--replicas", "1", "--config", "retention.ms=-1", "--brokers", addr)
	for n := range rigRecords {
		record := &kgo.Record{Topic: r.topic, Key: []byte("k"), Value: fmt.Appendf(nil, "line %d", n), Timestamp: rigEpoch.Add(time.Duration(n+1) * time.Minute),
			Headers: []kgo.RecordHeader{{Key: "host", Value: []byte("web-1")}}}
		if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	topics, err := r.admin.ListTopics(t.Context(), r.topic)
	if err != nil {
		t.Fatal(err)
	}
	r.id = sinks.TopicID(topics[r.topic].ID)
	r.commit(r.topic+"-first", 0, "") // a new Kafka has no coordinators before the first commit
	return r
}

func (r *groupRig) commit(group string, at int64, metadata string) {
	r.Helper()
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: r.topic, Partition: 0, At: at, LeaderEpoch: -1, Metadata: metadata})
	if err := r.admin.CommitAllOffsets(r.Context(), group, offsets); err != nil {
		r.Fatal(err)
	}
}

func (r *groupRig) committed(group string) kadm.Offset {
	r.Helper()
	offsets, err := r.admin.FetchOffsets(r.Context(), group)
	if err != nil {
		r.Fatal(err)
	}
	o, _ := offsets.Lookup(r.topic, 0)
	return o.Offset
}

// run runs a groups command; --json goes into v.
func (r *groupRig) run(v any, args ...string) {
	r.Helper()
	if err := json.Unmarshal([]byte(sluice(r.T, append([]string{"groups", "--json", "--brokers", r.addr}, args...)...)), v); err != nil {
		r.Fatal(err)
	}
}

func (r *groupRig) fails(args []string, words ...string) {
	r.Helper()
	_, err := trySluice(r.T, append([]string{"groups", "--brokers", r.addr}, args...)...)
	mustFail(r.T, err, words...)
}

// openNote is what a sink commits with the first offset of what it writes.
func (r *groupRig) openNote(hi int64) string {
	return fmt.Sprintf("sluice1 hi=%d epoch=0 topic=%s schema=00ff server=ch-1:9000", hi, r.id)
}

func testGroups(t *testing.T, addr string) {
	r := newGroupRig(t, addr)
	for name, test := range map[string]func(*groupRig){
		"describe": describesGroups, "reset": resetsGroups, "claims": resetsClaims, "skip": skipsRecords, "members": refusesMembers,
	} {
		t.Run(name, func(t *testing.T) {
			sub := *r
			sub.T = t
			test(&sub)
		})
	}
}

func describesGroups(r *groupRig) {
	group := r.topic + "-describe"
	r.commit(group, 4, r.openNote(7))
	var details []groupDetail
	r.run(&details, "describe", group)
	if len(details) != 1 || details[0].State != "Empty" || len(details[0].Partitions) != 2 {
		r.Fatalf("described as %+v", details)
	}
	p := details[0].Partitions[0]
	if p.Committed != 4 || p.End != rigRecords || *p.Records != 6 || p.Seconds == nil {
		r.Errorf("partition 0 is described as %+v", p)
	} else if age := time.Since(rigEpoch.Add(5 * time.Minute)).Seconds(); *p.Seconds < age-60 || *p.Seconds > age+60 {
		r.Errorf("the oldest uncommitted record is %.0f s old, said %.0f", age, *p.Seconds)
	}
	if want := (admin.OpenClaim{Lo: 4, Hi: 7, TopicID: r.id.String(), Schema: "00ff", Server: "ch-1:9000"}); p.Claim == nil || *p.Claim != want {
		r.Errorf("the claim is read as %+v, want %+v", p.Claim, want)
	}
	if never := details[0].Partitions[1]; never.Records != nil || never.Committed != -1 {
		r.Errorf("a partition that was never committed is described as %+v", never)
	}
	mustSay(r.T, sluice(r.T, "groups", "describe", group, "--brokers", r.addr), "[4,7] open at ch-1:9000", "never")
	mustSay(r.T, sluice(r.T, "groups", "list", "--brokers", r.addr), group, "classic")
	r.fails([]string{"describe", "nosuch"}, "nosuch", "GROUP_ID_NOT_FOUND")
	mustSay(r.T, sluice(r.T, "groups", "delete", group, "--brokers", r.addr), "deleted "+group)
	r.fails([]string{"describe", group}, "GROUP_ID_NOT_FOUND")
	r.fails([]string{"delete", group}, "GROUP_ID_NOT_FOUND")
}

func resetsGroups(r *groupRig) {
	group := r.topic + "-reset"
	r.fails([]string{"reset", group, "--to-earliest"}, "GROUP_ID_NOT_FOUND", "topic")
	r.commit(group, 5, "")
	for _, c := range []struct {
		flags []string
		to    int64
	}{
		{[]string{"--to-earliest"}, 0},
		{[]string{"--to-latest"}, rigRecords},
		{[]string{"--shift-by", "-4"}, 6},
		{[]string{"--shift-by=-100"}, 0},
		{[]string{"--to-offset", "3"}, 3},
		{[]string{"--to-offset", "300"}, rigRecords},
		{[]string{"--to-time", "2026-11-30T10:03:30Z"}, 3},
		{[]string{"--to-time", "2099-01-01T00:00:00Z"}, rigRecords},
		{[]string{"--by-duration", "876000h"}, 0},
		{[]string{"--to-offset", "2", "--topic", r.topic + ":0"}, 2},
	} {
		before := r.committed(group).At
		r.run(new(resetResult), append([]string{"reset", group, "--dry-run"}, c.flags...)...)
		if at := r.committed(group).At; at != before {
			r.Fatalf("%v --dry-run moved the group from %d to %d", c.flags, before, at)
		}
		var result resetResult
		r.run(&result, append([]string{"reset", group}, c.flags...)...)
		if at := r.committed(group).At; at != c.to || len(result.Moves) != 1 || result.Moves[0].To != c.to || result.Moves[0].From != before {
			r.Errorf("%v: at %d, want %d; said %+v", c.flags, at, c.to, result)
		}
	}
	r.fails([]string{"reset", group}, "--to-earliest")
	r.fails([]string{"reset", group, "--to-earliest", "--to-latest"}, "to-earliest")
	r.fails([]string{"reset", group, "--to-earliest", "--topic", r.topic + ":9"}, "no partition 9")
	var result resetResult
	r.run(&result, "reset", group+"-new", "--to-latest", "--topic", r.topic)
	if at := r.committed(group + "-new").At; at != rigRecords || len(result.Moves) != 2 {
		r.Errorf("a new group got position %d: %+v", at, result)
	}
}

// A sink trusts a commit that vouches for its topic, so only a move ahead may go on vouching.
func resetsClaims(r *groupRig) {
	group := r.topic + "-claims"
	for _, c := range []struct {
		note, to string
		vouches  bool
	}{
		{r.openNote(7), "0", false},
		{r.openNote(7), "4", true},
		{r.openNote(7), "6", true},
		{sinks.ClosedMetadata(r.id), "9", true},
		{sinks.ClosedMetadata(sinks.TopicID{1}), "9", false}, // of an earlier topic
		{"somebody else's", "9", false},
	} {
		r.commit(group, 4, c.note)
		var result resetResult
		r.run(&result, "reset", group, "--to-offset", c.to)
		note, ok := sinks.ParseCommitNote(r.committed(group).Metadata)
		if ok != c.vouches || note.Claim || ok && note.TopicID != r.id {
			r.Errorf("reset from 4 %q to %s left %+v, %t", c.note, c.to, note, ok)
		}
		if open := strings.Contains(c.note, "hi="); open != (result.Moves[0].Claim != nil) {
			r.Errorf("%q: the claim is told as %+v", c.note, result.Moves[0].Claim)
		}
	}
	r.commit(group, 4, r.openNote(7))
	mustSay(r.T, sluice(r.T, "groups", "reset", group, "--to-latest", "--brokers", r.addr), "[4,7] open", "4 to 7 may not be stored")
}

func skipsRecords(r *groupRig) {
	group := r.topic + "-skip"
	at := r.topic + ":0"
	r.fails([]string{"skip", group, at}, "never committed")
	r.commit(group, 3, "")
	mustSay(r.T, sluice(r.T, "groups", "skip", group, at, "--dry-run", "--brokers", r.addr), "offset 3", `"line 3"`, "host=web-1", "nothing is committed")
	if at := r.committed(group).At; at != 3 {
		r.Fatalf("--dry-run moved the group to %d", at)
	}
	var result skipResult
	r.run(&result, "skip", group, at)
	if at := r.committed(group).At; at != 4 || result.Record.Offset != 3 || result.Record.Value != "line 3" {
		r.Errorf("at %d, want 4; said %+v", at, result)
	}
	r.commit(group, rigRecords, "")
	r.fails([]string{"skip", group, at}, "no record to skip")
	r.fails([]string{"skip", group, r.topic}, "TOPIC:PARTITION")
}

func refusesMembers(r *groupRig) {
	for _, protocol := range []string{admin.ProtocolClassic, admin.ProtocolConsumer} {
		group := r.topic + "-" + protocol
		r.commit(group, 3, "")
		ctx := r.Context()
		if protocol == admin.ProtocolConsumer {
			//lint:ignore SA1029 the client asks for this very key
			ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
		}
		joined := make(chan struct{})
		member, err := kgo.NewClient(kgo.SeedBrokers(r.addr), kgo.ConsumerGroup(group), kgo.ConsumeTopics(r.topic), kgo.DisableAutoCommit(), kgo.ClientID("member-1"),
			kgo.WithContext(ctx), kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, a map[string][]int32) {
				if len(a) > 0 {
					close(joined)
				}
			}))
		if err != nil {
			r.Fatal(err)
		}
		select {
		case <-joined:
		case <-time.After(commandTimeout):
			r.Fatal("the member has not joined")
		}
		var details []groupDetail
		r.run(&details, "describe", group)
		g := details[0]
		if g.Protocol != protocol || len(g.Members) != 1 || g.Members[0].ClientID != "member-1" || len(g.Members[0].Assigned[r.topic]) != 2 || *g.Partitions[0].Records != 7 {
			r.Errorf("a group of the %s protocol is described as %+v", protocol, g)
		}
		mustSay(r.T, sluice(r.T, "lag", group, "--brokers", r.addr), group, "7")
		for _, args := range [][]string{{"reset", group, "--to-earliest"}, {"skip", group, r.topic + ":0"}, {"delete", group}} {
			r.fails(args, group, "has members", "member-1", "stop them first")
		}
		if at := r.committed(group).At; at != 3 {
			r.Errorf("a group with a member was moved to %d", at)
		}
		member.Close()
		r.run(new(resetResult), "reset", group, "--to-earliest")
		if at := r.committed(group).At; at != 0 {
			r.Errorf("the group of the %s protocol is at %d after its member left", protocol, at)
		}
	}
}
