package deploy

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/sluice-io/sluice/internal/testenv"
)

// printConfig has the binary check a broker's configuration as a start would.
func printConfig(t *testing.T, file string) string {
	t.Helper()
	out, err := exec.Command(testenv.Sluice(t), "broker", "--config", file, "--print-config").CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", file, err, out)
	}
	return string(out)
}

func TestThreeNodesConfiguration(t *testing.T) {
	out := printConfig(t, "three-nodes/broker.yaml")
	for _, want := range []string{"zookeeper-3.example:2181/sluice", "BROKERS"} {
		if !strings.Contains(out, want) {
			t.Errorf("the configuration in force lacks %s:\n%s", want, out)
		}
	}
}

type composition struct {
	Services map[string]struct {
		Command []string
		Configs []struct{ Source, Target string }
		Volumes []string
		Ports   []string
	}
	Configs map[string]struct{ Content string }
	Volumes map[string]any
}

// TestThreeNodesComposition checks what `docker compose` cannot: that the
// brokers take their configurations and flags.
func TestThreeNodesComposition(t *testing.T) {
	text, err := os.ReadFile("three-nodes/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c composition
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	for i := 1; i <= 3; i++ {
		name := fmt.Sprintf("broker-%d", i)
		s, ok := c.Services[name]
		if !ok || len(s.Configs) != 1 || len(s.Volumes) != 1 {
			t.Fatalf("service %s: %+v", name, s)
		}
		content := c.Configs[s.Configs[0].Source].Content
		file := filepath.Join(t.TempDir(), "broker.yaml")
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		printConfig(t, file)
		if !strings.Contains(content, fmt.Sprintf("node.id: %d\n", i)) || !strings.Contains(content, name+":9093") {
			t.Errorf("%s has the configuration of another:\n%s", name, content)
		}
		checkFlags(t, s.Command, s.Configs[0].Target)
		for _, p := range s.Ports {
			if other, taken := ports[p]; taken {
				t.Errorf("%s and %s both have port %s", name, other, p)
			}
			ports[p] = name
		}
		volume, _, _ := strings.Cut(s.Volumes[0], ":")
		if _, ok := c.Volumes[volume]; !ok {
			t.Errorf("%s: volume %s is not declared", name, volume)
		}
	}
}

// checkFlags runs a command line with --print-config over a file that is there.
func checkFlags(t *testing.T, command []string, config string) {
	t.Helper()
	args := append([]string{}, command...)
	for i, a := range args {
		if a == config {
			args[i] = "three-nodes/broker.yaml"
		}
	}
	if out, err := exec.Command(testenv.Sluice(t), append(args, "--print-config")...).CombinedOutput(); err != nil {
		t.Errorf("%v: %v\n%s", command, err, out)
	}
}

func TestUnit(t *testing.T) {
	const file = "three-nodes/sluice-broker.service"
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	start := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "ExecStart="); ok {
			start = rest
		}
	}
	command := strings.Fields(start)
	if len(command) < 2 || command[0] != "/usr/bin/sluice" {
		t.Fatalf("ExecStart is %q", start)
	}
	checkFlags(t, command[1:], "/etc/sluice/broker.yaml")
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze to check the rest")
	}
	out, _ := exec.Command("systemd-analyze", "verify", "--man=no", file).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		// The unit is not installed here, nor are its binary and its user.
		if strings.Contains(line, filepath.Base(file)) && !strings.Contains(line, "is not executable") && !strings.Contains(line, "Failed to prepare filename") {
			t.Errorf("systemd-analyze: %s", line)
		}
	}
}
