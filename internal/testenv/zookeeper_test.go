package testenv

import (
	"slices"
	"testing"
)

func TestZooKeeperKillRestart(t *testing.T) {
	s := StartZooKeeper(t)
	s.Kill()
	s.Restart(t)
	if mode, err := s.Mode(t.Context()); err != nil || mode != "standalone" {
		t.Errorf("%q, %v", mode, err)
	}
}

func TestZooKeeperEnsemble(t *testing.T) {
	var modes []string
	for _, s := range StartZooKeeperEnsemble(t) {
		mode, err := s.Mode(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		modes = append(modes, mode)
	}
	slices.Sort(modes)
	if !slices.Equal(modes, []string{"follower", "follower", "leader"}) {
		t.Errorf("%v", modes)
	}
}
