package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluice-io/sluice/internal/testenv"
)

// kind is one kind of fault. run does it, lets it last, and mends what does not
// mend itself.
type kind struct {
	name string
	run  func(w *world)
	// outage says that too few brokers are left while it lasts: what counts is
	// how soon after its end there is service again. Otherwise service must go
	// on, or come back while it lasts.
	outage bool
	needs  need
}

// need is what a kind of fault takes.
type need uint

const (
	namespaces need = 1 << iota // cuts and small disks
	zooKeeper                   // a cluster that stands on one
	spare                       // more nodes than replicas
	ours                        // Apache Kafka ends on a full disk, and counts on no loss of what was not synced
	wallClock                   // nodes whose wall clock can be moved
)

func kinds() []kind {
	return []kind{
		{name: "kill -9 of a leader", run: func(w *world) { w.kill(w.leader()) }},
		{name: "kill -9 of a follower", run: func(w *world) { w.kill(w.follower()) }},
		{name: "kill -9 of the controller", run: func(w *world) { w.kill(w.controller()) }},
		{name: "kill -9 of a leader, thrice in its session", run: killThrice},
		{name: "kill -9 of the controller and of a leader", run: killControllerAndLeader, outage: true},
		{name: "kill -9 of all nodes at once", run: killAll, outage: true},
		{name: "leader frozen past its session", run: func(w *world) { w.freeze(w.leader(), w.pastSession()) }},
		{name: "controller frozen past its session", run: func(w *world) { w.freeze(w.controller(), w.pastSession()) }},
		{name: "follower frozen past its session", run: func(w *world) { w.freeze(w.follower(), w.pastSession()) }},
		{name: "leader frozen for a moment", run: func(w *world) { w.freeze(w.leader(), w.between(0, sessionTimeout/2)) }},
		{name: "rolling restart", run: rollingRestart},
		{name: "torn tail", run: tornTail},
		{name: "partition moved, a node killed meanwhile", run: moveAndKill, needs: spare},
		{name: "monotonic clock ahead after a kill", run: clockAhead, needs: namespaces},
		{name: "wall clock of a leader ahead and back", run: moveWallClock(testenv.WallClockAhead, testenv.WallClockBack), needs: wallClock},
		{name: "wall clock of a leader back and ahead", run: moveWallClock(testenv.WallClockBack, testenv.WallClockAhead), needs: wallClock},

		{name: "leader cut from its followers", run: cutFromFollowers(both), outage: true, needs: namespaces},
		{name: "leader's words to its followers cut", run: cutFromFollowers(to), outage: true, needs: namespaces},
		{name: "followers' words to the leader cut", run: cutFromFollowers(from), outage: true, needs: namespaces},
		{name: "leader cut from ZooKeeper", run: cutFromZooKeeper(both, false), needs: namespaces | zooKeeper},
		{name: "leader's words to ZooKeeper cut", run: cutFromZooKeeper(to, false), needs: namespaces | zooKeeper},
		{name: "ZooKeeper's words to the leader cut", run: cutFromZooKeeper(from, false), needs: namespaces | zooKeeper},
		{name: "leader cut from everything but clients", run: cutFromZooKeeper(both, true), needs: namespaces | zooKeeper},
		{name: "controller cut from ZooKeeper", run: cutControllerFromZooKeeper, needs: namespaces | zooKeeper},

		{name: "ZooKeeper killed and restarted", run: killZooKeeper, needs: zooKeeper},
		{name: "one ZooKeeper killed and restarted", run: killOneZooKeeper, needs: zooKeeper},
		{name: "ZooKeeper frozen until all sessions are over", run: freezeZooKeeper, needs: zooKeeper, outage: true},
		{name: "ZooKeeper and a leader killed", run: killZooKeeperAndLeader, needs: zooKeeper, outage: true},

		{name: "storm of kills, freezes and cuts", run: storm, outage: true, needs: namespaces | zooKeeper},

		{name: "disk of a leader full", run: func(w *world) { w.fillDisk(w.leader()) }, outage: true, needs: namespaces | ours},
		{name: "disk of a follower full", run: func(w *world) { w.fillDisk(w.follower()) }, outage: true, needs: namespaces | ours},
		{name: "power loss of a leader", run: func(w *world) { w.powerLoss(w.leader()) }, needs: namespaces | ours},
		{name: "power loss of a follower", run: func(w *world) { w.powerLoss(w.follower()) }, needs: namespaces | ours},
		{name: "kill -9 of all nodes, power loss of one", run: killAllPowerLoss(1), outage: true, needs: namespaces | ours},
		{name: "kill -9 of all nodes, power loss of two", run: killAllPowerLoss(2), outage: true, needs: namespaces | ours},
	}
}

// pastSession is longer than a session, often by little.
func (w *world) pastSession() time.Duration {
	return sessionTimeout + w.between(0, sessionTimeout)
}

// kill ends a node and starts it again, within its session or past it.
func (w *world) kill(n *testenv.Node) {
	w.say("kill node %d", n.ID)
	n.Kill()
	w.hold(w.between(0, 2*sessionTimeout))
	w.restart()
}

// killThrice lets a node come back so soon, and so often, that the others hardly
// notice: each time it is another broker of the same ID.
func killThrice(w *world) {
	n := w.leader()
	w.say("kill node %d thrice", n.ID)
	for range 3 {
		n.Kill()
		w.hold(w.between(0, sessionTimeout/4))
		w.restart()
		w.hold(w.between(0, sessionTimeout/4))
	}
}

// killControllerAndLeader leaves one node, often before it knows of the first
// death.
func killControllerAndLeader(w *world) {
	controller := w.controller()
	leader := w.leader()
	for leader == controller {
		leader = w.cluster.Nodes[w.rng.IntN(len(w.cluster.Nodes))]
	}
	w.say("kill nodes %d and %d", controller.ID, leader.ID)
	controller.Kill()
	w.hold(w.between(0, sessionTimeout))
	leader.Kill()
	w.hold(w.between(0, 2*sessionTimeout))
	w.outageOver = time.Now()
	w.restart()
}

// clockAhead starts a node again with its monotonic clock hours ahead of what it
// was, as no reboot sets it.
func clockAhead(w *world) {
	n := w.leader()
	w.say("kill node %d, its clock goes ahead", n.ID)
	n.Kill()
	n.Host.AheadBy(w.between(time.Hour, 24*time.Hour))
	w.hold(w.between(0, sessionTimeout))
	w.restart()
}

// moveWallClock sets a leader's time, and sets it right again while the process runs
// or, as often, by a kill: the next one has the machine's time.
func moveWallClock(first, then syscall.Signal) func(w *world) {
	return func(w *world) {
		n := w.leader()
		w.say("the wall clock of node %d moves by %s", n.ID, testenv.WallStep)
		w.signal(n.Process(), first)
		w.hold(w.between(sessionTimeout/2, 2*sessionTimeout))
		if w.rng.IntN(2) == 0 {
			w.kill(n)
			return
		}
		w.signal(n.Process(), then)
	}
}

func killAll(w *world) {
	for _, n := range w.cluster.Nodes {
		_ = n.Process().Signal(syscall.SIGKILL)
	}
	w.hold(w.between(0, sessionTimeout))
	w.outageOver = time.Now()
	w.restart()
}

func (w *world) freeze(n *testenv.Node, d time.Duration) {
	w.say("freeze node %d for %s", n.ID, d)
	w.signal(n.Process(), syscall.SIGSTOP)
	w.hold(d)
	w.signal(n.Process(), syscall.SIGCONT)
}

func (w *world) signal(p *testenv.Process, sig syscall.Signal) {
	if err := p.Signal(sig); err != nil {
		w.t.Fatalf("send %s: %v", sig, err)
	}
}

// rollingRestart restarts nodes as an operator does: the next one when all
// replicas are in sync again.
func rollingRestart(w *world) {
	for _, n := range w.cluster.Nodes {
		if err := n.Stop(); err != nil && w.cluster.Name == "sluice" {
			w.t.Errorf("node %d stopped by SIGTERM: %v", n.ID, err)
		}
		w.restart()
		w.awaitWhole()
	}
}

// moveAndKill gives a partition other replicas and kills any node, before, while
// or after the new ones catch up.
func moveAndKill(w *world) {
	partition := w.rng.IntN(partitions)
	var target []int32
	for _, i := range w.rng.Perm(len(w.cluster.Nodes))[:replicas] {
		target = append(target, w.cluster.Nodes[i].ID)
	}
	w.say("move partition %d from %v to %v", partition, w.partition(partition).Replicas, target)
	w.await(*within, "the move begins", func(ctx context.Context) error {
		var req kadm.AlterPartitionAssignmentsReq
		req.Assign(w.topic, int32(partition), target)
		resp, err := w.admin.AlterPartitionAssignments(ctx, req)
		return errors.Join(err, resp.Error())
	})
	w.hold(w.between(0, sessionTimeout/2))
	w.kill(w.cluster.Nodes[w.rng.IntN(len(w.cluster.Nodes))])
	w.await(wholeWithin, "the move ends", func(ctx context.Context) error {
		if is := w.partition(partition).Replicas; !slices.Equal(is, target) {
			return fmt.Errorf("partition %d has replicas %v", partition, is)
		}
		return nil
	})
}

// direction is which of the words between a node and others are cut.
type direction int

const (
	both direction = iota
	to             // the node's words to them
	from           // theirs to the node
)

func (w *world) cut(d direction, n, other *testenv.Host) {
	if d != from {
		w.net.Cut(w.t, n, other)
	}
	if d != to {
		w.net.Cut(w.t, other, n)
	}
}

// cutFromFollowers leaves the leader its ZooKeeper: it stays the leader of what
// it leads, and without its followers takes nothing. If the cut lasts, the
// followers may not lead either, since the leader's session does not end.
func cutFromFollowers(d direction) func(w *world) {
	return func(w *world) {
		leader := w.leader()
		w.say("cut node %d from the other brokers", leader.ID)
		for _, o := range w.others(leader) {
			w.cut(d, leader.Host, o.Host)
		}
		w.hold(w.between(0, 2*sessionTimeout))
		w.heal()
	}
}

func (w *world) heal() {
	w.outageOver = time.Now()
	w.net.Heal(w.t)
}

// cutFromZooKeeper cuts a leader from all ZooKeepers, and from the other brokers
// too if it is to be all alone. Another leader must be there when its session
// is over.
func cutFromZooKeeper(d direction, alone bool) func(w *world) {
	return func(w *world) { w.cutNodeFromZooKeeper(w.leader(), d, alone) }
}

func cutControllerFromZooKeeper(w *world) { w.cutNodeFromZooKeeper(w.controller(), both, false) }

func (w *world) cutNodeFromZooKeeper(n *testenv.Node, d direction, alone bool) {
	w.say("cut node %d from ZooKeeper", n.ID)
	for _, s := range w.zooKeeper {
		w.cut(d, n.Host, s.Host)
	}
	if alone {
		for _, o := range w.others(n) {
			w.cut(d, n.Host, o.Host)
		}
	}
	w.hold(w.pastSession())
	w.heal()
}

func killZooKeeper(w *world) {
	for _, s := range w.zooKeeper {
		s.Kill()
	}
	w.hold(w.between(0, 2*sessionTimeout))
	w.restartZooKeeper()
}

func (w *world) restartZooKeeper() {
	w.t.Helper()
	if err := testenv.RestartZooKeepers(w.t.Context(), w.zooKeeper...); err != nil {
		w.t.Fatal(err)
	}
}

func killOneZooKeeper(w *world) {
	w.zooKeeper[w.rng.IntN(len(w.zooKeeper))].Kill()
	w.hold(w.between(0, sessionTimeout))
	w.restartZooKeeper()
}

// freezeZooKeeper lets every broker's session end at once: a ZooKeeper that
// wakes expires what it has not heard of.
func freezeZooKeeper(w *world) {
	for _, s := range w.zooKeeper {
		w.signal(s.Process, syscall.SIGSTOP)
	}
	w.hold(w.pastSession())
	w.outageOver = time.Now()
	for _, s := range w.zooKeeper {
		w.signal(s.Process, syscall.SIGCONT)
	}
}

// killZooKeeperAndLeader takes away who could name another leader.
func killZooKeeperAndLeader(w *world) {
	leader := w.leader()
	for _, s := range w.zooKeeper {
		s.Kill()
	}
	w.say("kill ZooKeeper and node %d", leader.ID)
	leader.Kill()
	w.hold(w.between(0, sessionTimeout))
	w.restartZooKeeper()
	w.outageOver = time.Now()
	w.hold(w.between(0, 2*sessionTimeout))
	w.restart()
}

// fillDisk leaves a node no room until its end.
func (w *world) fillDisk(n *testenv.Node) {
	w.say("fill the disk of node %d", n.ID)
	var disk syscall.Statfs_t
	if err := syscall.Statfs(n.Host.Path(n.DataDir), &disk); err != nil || disk.Blocks*uint64(disk.Bsize) > diskBytes {
		w.t.Fatalf("node %d has no small disk of its own: %v", n.ID, err)
	}
	ballast := n.Host.Path(filepath.Join(n.DataDir, "ballast"))
	f, err := os.Create(ballast)
	if err != nil {
		w.t.Fatal(err)
	}
	block := make([]byte, 1<<16)
	full := time.Now().Add(w.between(sessionTimeout, 2*sessionTimeout))
	for time.Now().Before(full) {
		// What the broker frees is taken too.
		if _, err := f.Write(block); err != nil {
			w.hold(poll)
		}
	}
	f.Close()
	w.outageOver = time.Now()
	if err := os.Remove(ballast); err != nil {
		w.t.Fatal(err)
	}
}
