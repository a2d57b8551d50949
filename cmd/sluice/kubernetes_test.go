package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/kubernetes/apifake"
	"github.com/sluice-io/sluice/internal/testenv"
)

// The agent as a process asks an API server over TLS, with a token that is renewed. What a line was labelled with when it went into the
// journal stays, however often it is sent.
func TestLabelsOfPodsOverKills(t *testing.T) {
	api := apifake.New(true)
	t.Cleanup(api.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pod := func(tier string) {
		api.Set(apifake.Pod{Namespace: "shop", Name: "cart-1", UID: "9f1c", Node: "n1", Labels: map[string]string{"tier": tier}})
	}
	n := 0
	lines := func(count int) {
		var text strings.Builder
		for range count {
			fmt.Fprintf(&text, "2026-11-30T10:00:00.000000000Z stdout F {\"n\":%d}\n", n)
			n++
		}
		write("pods/shop_cart-1_9f1c/app/0.log", text.String())
	}
	metrics := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	h := newHost(t, fmt.Sprintf(`file:
    include: [%s/pods/*/*/*.log]
    container:
      json: true
      kubernetes: {url: %q, node: n1, token_file: %q, ca_file: %q}
process:
  - set: {tier: 'headers["label.tier"]'}`, dir, api.URL, write("token", "first"), write("ca.crt", string(api.Certificate()))), "--metrics", metrics)
	api.Require("first")
	pod("web")
	lines(100)
	h.broker.up()
	h.agent.up()
	h.settled(100)

	h.broker.now.Kill()
	lines(100)
	deadline, tick := time.NewTimer(settleFor), time.NewTicker(20*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !strings.Contains(getText(t, "http://"+metrics+"/metrics"), `sluice_agent_lines_sent_total{input="file",pipeline="host"} 200`) {
		select {
		case <-deadline.C:
			t.Fatal("the lines are not in the journal")
		case <-tick.C:
		}
	}
	h.agent.now.Kill()
	pod("db")
	api.Require("second")
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lines(100)
	h.broker.up()
	h.agent.up()
	h.settled(300)
	h.mustHoldOnce(300, func(line string) (int, error) {
		var x struct {
			N    int
			Tier string
		}
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			return 0, err
		}
		if want := map[bool]string{true: "web", false: "db"}[x.N < 200]; x.Tier != want {
			return 0, fmt.Errorf("its tier is %q", x.Tier)
		}
		return x.N, nil
	})
}
