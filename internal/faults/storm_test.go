package faults

import (
	"context"
	"syscall"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

const (
	stormPause = 500 * time.Millisecond // between two blows, at most
	stormLasts = 3 * sessionTimeout
)

// storm does one thing after another without waiting for what comes of it: kills
// and starts, freezes and thaws, cuts and mends of single directions, between
// brokers and ZooKeepers alike.
func storm(w *world) {
	until := time.Now().Add(stormLasts)
	for time.Now().Before(until) {
		n := w.cluster.Nodes[w.rng.IntN(len(w.cluster.Nodes))]
		switch w.rng.IntN(6) {
		case 0:
			w.say("kill node %d", n.ID)
			n.Kill()
		case 1:
			w.launchEnded()
		case 2:
			if !n.Ended() {
				w.say("freeze node %d", n.ID)
				_ = n.Process().Signal(syscall.SIGSTOP) // it may end by itself just now
			}
		case 3:
			w.thaw()
		case 4:
			from, to := w.anyHost(), w.anyHost()
			if from != to {
				w.say("cut %s from %s", from.Name, to.Name)
				w.net.Cut(w.t, from, to)
			}
		case 5:
			w.net.Heal(w.t)
		}
		w.hold(w.between(0, stormPause))
	}
	w.thaw()
	w.heal()
	// A node that could not reach ZooKeeper gives up after a while.
	w.await(wholeWithin, "all replicas are in sync after the storm", func(ctx context.Context) error {
		w.launchEnded()
		return w.whole(ctx)
	})
}

func (w *world) launchEnded() {
	for _, n := range w.cluster.Nodes {
		if !n.Ended() {
			continue
		}
		w.say("start node %d", n.ID)
		if err := n.Launch(); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) thaw() {
	for _, n := range w.cluster.Nodes {
		_ = n.Process().Signal(syscall.SIGCONT) // fails only if it has ended
	}
}

// anyHost is that of a broker or of a ZooKeeper.
func (w *world) anyHost() *testenv.Host {
	i := w.rng.IntN(len(w.cluster.Nodes) + len(w.zooKeeper))
	if i < len(w.cluster.Nodes) {
		return w.cluster.Nodes[i].Host
	}
	return w.zooKeeper[i-len(w.cluster.Nodes)].Host
}
