package deploy

import (
	"os"
	"strings"
	"testing"
)

// The agent's unit is parsed, and gives no more rights than the one that reads files.
func TestAgentUnit(t *testing.T) {
	text, err := os.ReadFile("systemd/sluice-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	section, have := "", map[string]string{}
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[' && line[len(line)-1] == ']':
			section = line[1 : len(line)-1]
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok || section == "" {
				t.Fatalf("line %d is no setting: %q", i+1, line)
			}
			have[section+"."+key] = value
		}
	}
	for key, want := range map[string]string{
		"Service.AmbientCapabilities": "CAP_DAC_READ_SEARCH", "Service.CapabilityBoundingSet": "CAP_DAC_READ_SEARCH",
		"Service.NoNewPrivileges": "yes", "Service.ProtectSystem": "strict", "Service.Restart": "always", "Install.WantedBy": "multi-user.target",
	} {
		if have[key] != want {
			t.Errorf("%s is %q, want %q", key, have[key], want)
		}
	}
	if start := have["Service.ExecStart"]; !strings.HasPrefix(start, "/usr/bin/sluice agent ") || !strings.Contains(start, "/var/lib/"+have["Service.StateDirectory"]) {
		t.Errorf("ExecStart is %q", start)
	}
	if have["Service.User"] == "root" || have["Service.User"] == "" {
		t.Error("the agent runs as root")
	}
}
