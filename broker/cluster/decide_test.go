package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The files of testdata/decide run decisions on an image of partitions of the
// topic "t". A broker is written ID@EPOCH with flags after colons: clean, lost,
// replaced.
func TestDecisions(t *testing.T) {
	datadriven.Walk(t, "testdata/decide", func(t *testing.T, path string) {
		d := &decisions{}
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			return d.run(t, td)
		})
	})
}

type decisions struct{ im *Image }

func (d *decisions) run(t *testing.T, td *datadriven.TestData) string {
	was := d.im
	next, out, err := d.decide(t, td)
	if err != nil {
		if next != nil {
			t.Fatalf("an image beside an error")
		}
		return "error: " + kind(err) + "\n"
	}
	d.im = next
	if td.Cmd == "image" {
		return describe(next)
	}
	checkStep(t, was, next)
	switch td.Cmd {
	case "reassign", "cancel", "continue":
		checkNobodyLeaves(t, was, next)
	}
	return describe(next) + out
}

// kind is the sentinel of an error.
func kind(err error) string {
	for _, e := range []error{
		ErrUnknownTopic, ErrUnknownPartition, ErrFencedLeaderEpoch, ErrInvalidUpdateVersion, ErrIneligibleReplica,
		ErrInvalidRequest, ErrNotController, ErrElectionNotNeeded, ErrPreferredLeaderNotAvailable,
		ErrEligibleLeadersNotAvailable, ErrNoReassignment, ErrNoReplicaInSync, ErrInvalidAssignment,
	} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	return err.Error()
}

func (d *decisions) decide(t *testing.T, td *datadriven.TestData) (next *Image, out string, err error) {
	unclean := func(string) bool { return td.HasArg("unclean") }
	lost := map[int32]bool{}
	switch td.Cmd {
	case "image":
		return parseImage(t, td), "", nil
	case "live":
		brokers := parseBrokers(t, td, lost)
		return WithLive(d.im, brokers, func(id int32) bool { return lost[id] }, unclean), "", nil
	case "offline":
		var broker int32
		td.ScanArgs(t, "broker", &broker)
		var failed []TopicPartition
		for _, p := range argOf(td, "failed") {
			failed = append(failed, TopicPartition{"t", atoi(t, p)})
		}
		return WithOffline(d.im, broker, Diff(nil, d.im), failed, unclean), "", nil
	case "shutdown":
		var broker int32
		td.ScanArgs(t, "broker", &broker)
		next, remaining := ShutDown(d.im, broker)
		return next, fmt.Sprintf("remaining %v\n", remaining), nil
	case "alter-isr":
		next, err = AlterISR(d.im, d.parseAlter(t, td))
	case "elect":
		kind := ElectPreferred
		if td.HasArg("unclean") {
			kind = ElectUnclean
		}
		next, err = Elect(d.im, partitionArg(t, td), kind)
	case "reassign":
		next, err = StartReassignment(d.im, partitionArg(t, td), parseIDs(t, argOf(td, "to")))
	case "cancel":
		next, err = CancelReassignment(d.im, partitionArg(t, td))
	case "continue":
		next = ContinueReassignment(d.im, partitionArg(t, td))
	case "balance":
		var percent int
		td.ScanArgs(t, "percent", &percent)
		next = BalanceLeaders(d.im, percent)
	default:
		t.Fatalf("unknown command %s", td.Cmd)
	}
	return next, "", err
}

func partitionArg(t *testing.T, td *datadriven.TestData) TopicPartition {
	tp := TopicPartition{Topic: "t"}
	td.MaybeScanArgs(t, "p", &tp.Partition)
	return tp
}

func argOf(td *datadriven.TestData, name string) []string {
	for _, a := range td.CmdArgs {
		if a.Key == name {
			return slices.DeleteFunc(slices.Clone(a.Vals), func(v string) bool { return v == "" })
		}
	}
	return nil
}

func atoi(t *testing.T, s string) int32 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

func parseIDs(t *testing.T, words []string) []int32 {
	out := []int32{}
	for _, w := range words {
		out = append(out, atoi(t, w))
	}
	return out
}

// parseBrokers reads the words of an argument "brokers".
func parseBrokers(t *testing.T, td *datadriven.TestData, lost map[int32]bool) []Broker {
	var out []Broker
	for _, w := range argOf(td, "brokers") {
		flags := strings.Split(w, ":")
		id, epoch, _ := strings.Cut(flags[0], "@")
		b := Broker{ID: atoi(t, id), Epoch: int64(atoi(t, epoch))}
		for _, f := range flags[1:] {
			switch f {
			case "clean":
				b.Clean = true
			case "lost":
				lost[b.ID] = true
			case "replaced":
				b.Replaced = true
			default:
				t.Fatalf("unknown flag %s", f)
			}
		}
		out = append(out, b)
	}
	return out
}

// parseImage reads a line a partition, as describe writes it.
func parseImage(t *testing.T, td *datadriven.TestData) *Image {
	im := NewImage("c", parseBrokers(t, td, nil))
	topic := &Topic{Name: "t", ID: TopicID{1}}
	for _, line := range strings.Split(strings.TrimSpace(td.Input), "\n") {
		p := Partition{Leader: NoLeader, ISR: []int32{}}
		for _, field := range strings.Fields(line)[1:] {
			key, value, _ := strings.Cut(field, "=")
			ids := parseIDs(t, strings.FieldsFunc(value, func(r rune) bool { return r == ',' }))
			switch key {
			case "leader":
				p.Leader = ids[0]
			case "epoch":
				p.LeaderEpoch = ids[0]
			case "pe":
				p.PartitionEpoch = ids[0]
			case "replicas":
				p.Replicas = ids
			case "isr":
				p.ISR = ids
			case "adding":
				p.Adding = ids
			case "removing":
				p.Removing = ids
			case "offline":
				p.Offline = ids
			default:
				t.Fatalf("unknown field %s", field)
			}
		}
		topic.Partitions = append(topic.Partitions, p)
	}
	return im.With(topic)
}

func joinIDs(ids []int32) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = fmt.Sprint(id)
	}
	return strings.Join(words, ",")
}

func describe(im *Image) string {
	var b strings.Builder
	for i, p := range im.Topic("t").Partitions {
		b.WriteString(describePartition(i, p) + "\n")
	}
	for _, broker := range im.Brokers {
		if broker.ShuttingDown {
			fmt.Fprintf(&b, "broker %d shuts down\n", broker.ID)
		}
	}
	return b.String()
}

func describePartition(i int, p Partition) string {
	s := fmt.Sprintf("%d leader=%d epoch=%d pe=%d replicas=%s isr=%s", i, p.Leader, p.LeaderEpoch, p.PartitionEpoch, joinIDs(p.Replicas), joinIDs(p.ISR))
	for _, more := range []struct {
		name string
		ids  []int32
	}{{"adding", p.Adding}, {"removing", p.Removing}, {"leaving", p.Leaving()}, {"offline", p.Offline}} {
		if len(more.ids) > 0 {
			s += fmt.Sprintf(" %s=%s", more.name, joinIDs(more.ids))
		}
	}
	return s
}

func (d *decisions) parseAlter(t *testing.T, td *datadriven.TestData) AlterPartition {
	a := AlterPartition{TopicPartition: partitionArg(t, td), TopicID: TopicID{1}}
	if topic := d.im.Topic("t"); int(a.Partition) < len(topic.Partitions) {
		p := topic.Partitions[a.Partition]
		a.Leader, a.LeaderEpoch, a.PartitionEpoch = p.Leader, p.LeaderEpoch, p.PartitionEpoch
	}
	td.MaybeScanArgs(t, "leader", &a.Leader)
	td.MaybeScanArgs(t, "epoch", &a.LeaderEpoch)
	td.MaybeScanArgs(t, "pe", &a.PartitionEpoch)
	if td.HasArg("other-topic") {
		a.TopicID = TopicID{2}
	}
	for _, w := range argOf(td, "isr") {
		id, epoch, known := strings.Cut(w, "@")
		r := InSyncReplica{ID: atoi(t, id), Epoch: UnknownBrokerEpoch}
		if known {
			r.Epoch = int64(atoi(t, epoch))
		}
		a.ISR = append(a.ISR, r)
	}
	return a
}

// checkNobodyLeaves checks that a reassignment takes nobody out of those in sync:
// that is for a leader to do.
func checkNobodyLeaves(t *testing.T, was, is *Image) {
	t.Helper()
	for i, p := range is.Topic("t").Partitions {
		if before := was.Topic("t").Partitions[i]; !sameMembers(before.ISR, p.ISR) {
			t.Errorf("in sync are %v after %v", p.ISR, before.ISR)
		}
	}
}

// checkStep checks the rules that all decisions keep.
func checkStep(t *testing.T, was, is *Image) {
	t.Helper()
	for i, p := range is.Topic("t").Partitions {
		for _, problem := range stepProblems(was.Topic("t").Partitions[i], p, is) {
			t.Errorf("%s\n from %s\n to   %s", problem, describePartition(i, was.Topic("t").Partitions[i]), describePartition(i, p))
		}
	}
}

func stepProblems(was, is Partition, im *Image) (out []string) {
	check := func(ok bool, problem string) {
		if !ok {
			out = append(out, problem)
		}
	}
	_, live := im.Broker(is.Leader)
	check(is.Leader == NoLeader || slices.Contains(is.ISR, is.Leader), "the leader is not in sync")
	check(is.Leader == NoLeader || live, "the leader is not there")
	check(len(difference(is.ISR, is.Replicas)) == 0, "who has no replica is in sync")
	check(len(difference(is.Adding, is.Replicas)) == 0 && len(difference(is.Removing, is.Replicas)) == 0, "who comes or goes has no replica")
	check(is.LeaderEpoch >= was.LeaderEpoch, "the leader epoch falls")
	check(is.Leader == was.Leader || is.LeaderEpoch == was.LeaderEpoch+1, "another leader without an epoch of its own")
	stored := is
	stored.Offline, stored.PartitionEpoch = was.Offline, was.PartitionEpoch
	want := was.PartitionEpoch
	if !stored.Equal(was) {
		want++
	}
	check(is.PartitionEpoch == want, fmt.Sprintf("the partition epoch is not %d", want))
	return out
}

// What a replica's broker can have gone through between two looks.
const (
	stayed = iota
	isAway
	cameClean
	cameUnclean
	cameLost
	cameReplaced
	diskFailed
	shutsDown
	fates
)

// All combinations of what three replicas went through, who was in sync, who
// led, and whether an unclean election is allowed.
func TestElectionsInAllCombinations(t *testing.T) {
	cases := 0
	for combination := range fates * fates * fates {
		fate := [4]int{0, combination % fates, combination / fates % fates, combination / fates / fates}
		for members := range 8 {
			isr := []int32{}
			for id := int32(1); id <= 3; id++ {
				if members&(1<<(id-1)) != 0 {
					isr = append(isr, id)
				}
			}
			for _, leader := range append([]int32{NoLeader}, isr...) {
				for _, unclean := range []bool{false, true} {
					cases++
					checkElection(t, fate, isr, leader, unclean)
					if t.Failed() {
						return
					}
				}
			}
		}
	}
	if cases < 9000 {
		t.Errorf("only %d cases", cases)
	}
}

func checkElection(t *testing.T, fate [4]int, isr []int32, leader int32, unclean bool) {
	t.Helper()
	var before, after []Broker
	was := Partition{Leader: leader, LeaderEpoch: 5, PartitionEpoch: 9, Replicas: []int32{1, 2, 3}, ISR: isr}
	for id := int32(1); id <= 3; id++ {
		b := Broker{ID: id, Epoch: 10}
		switch fate[id] {
		case shutsDown:
			b.ShuttingDown = true
		case diskFailed:
			was.Offline = append(was.Offline, id)
		}
		before = append(before, b)
		b.ShuttingDown = false // a registration does not say so
		switch fate[id] {
		case isAway:
			continue
		case cameClean, cameUnclean, cameLost, cameReplaced:
			b.Epoch, b.Clean, b.Replaced = 20, fate[id] == cameClean, fate[id] == cameReplaced
		}
		after = append(after, b)
	}
	im := NewImage("c", before).With(&Topic{Name: "t", ID: TopicID{1}, Partitions: []Partition{was}})
	next := WithLive(im, after, func(id int32) bool { return fate[id] == cameLost || fate[id] == cameReplaced }, func(string) bool { return unclean })
	is := next.Topic("t").Partitions[0]
	problems := stepProblems(was, is, next)
	problems = append(problems, electionProblems(fate, was, is, unclean)...)
	for _, p := range problems {
		t.Errorf("%s: fates %v, unclean %t\n from %s\n to   %s", p, fate[1:], unclean, describePartition(0, was), describePartition(0, is))
	}
}

func electionProblems(fate [4]int, was, is Partition, unclean bool) (out []string) {
	check := func(ok bool, problem string) {
		if !ok {
			out = append(out, problem)
		}
	}
	is1 := func(ids []int32, fates ...int) bool {
		return slices.ContainsFunc(ids, func(id int32) bool { return slices.Contains(fates, fate[id]) })
	}
	serves := func(id int32) bool {
		return fate[id] != isAway && fate[id] != diskFailed && (fate[id] != shutsDown || id == was.Leader)
	}
	led := is.Leader != NoLeader
	check(!led || serves(is.Leader), "a broker leads that cannot")
	// Somebody leads whenever a replica has everything and can.
	complete := only(was.ISR, func(id int32) bool {
		return serves(id) && slices.Contains([]int{stayed, shutsDown, cameClean, cameUnclean}, fate[id])
	})
	check(led || len(complete) == 0, "nobody leads though a replica could")
	check(led || !unclean || !is1(was.Replicas, stayed, cameClean, cameUnclean, cameLost, cameReplaced), "nobody leads though an unclean election could be held")
	// Nobody leads who lacks something that another may have, but by an unclean election.
	if led && (!slices.Contains(was.ISR, is.Leader) || fate[is.Leader] == cameReplaced) {
		check(unclean && len(complete) == 0, "a replica that is not in sync was elected")
		check(slices.Equal(is.ISR, []int32{is.Leader}), "others are in sync with an unclean leader")
	} else if led && fate[is.Leader] == cameLost {
		others := only(was.ISR, func(id int32) bool { return fate[id] != cameLost && fate[id] != cameReplaced })
		check(len(others) == 0 || unclean, "a replica leads that lost what another has")
	}
	for _, id := range is.ISR {
		check(fate[id] != cameReplaced || led && id == is.Leader && unclean, "a replica with another disk is in sync")
		check(fate[id] != cameLost || len(is.ISR) == 1, "a replica that lost records is in sync with others")
		check(slices.Contains(was.ISR, id) || id == is.Leader, "a replica came to be in sync")
		check(!led || fate[id] != diskFailed, "a replica whose disk has failed is in sync with a leader")
	}
	// Who came back with everything keeps its place under whoever is in sync.
	if led && slices.Contains(was.ISR, is.Leader) && fate[is.Leader] != cameLost && fate[is.Leader] != cameReplaced {
		for _, id := range was.ISR {
			check(fate[id] != cameClean && fate[id] != cameUnclean || slices.Contains(is.ISR, id), "a replica that came back with all it had is no longer in sync")
		}
	}
	// Who is away is left for a leader to take out.
	for _, id := range was.ISR {
		check(fate[id] != isAway || unclean && led && len(is.ISR) == 1 || slices.Contains(is.ISR, id), "a replica that may come back is not waited for")
	}
	if led && is.Leader == was.Leader {
		again := fate[is.Leader] == cameUnclean || fate[is.Leader] == cameLost || fate[is.Leader] == cameReplaced
		check((is.LeaderEpoch > was.LeaderEpoch) == again, "a leader's epoch rises after an unclean start, and only then")
	}
	return out
}
