package compat

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

var (
	kgoFull    = flag.Bool("kgo.full", false, "run franz-go's public tests with all their records and waits")
	kgoBrokers = flag.Int("kgo.brokers", 1, "brokers that they run against, each topic with a replica on every one")
)

const (
	kgoTimeout = 8 * time.Minute
	// Those of transactions and share groups, and of servers with authentication.
	kgoNotOurs = "Txn|Share|SCRAM|OAuth"
	// Those that wait for seconds by the clock, with every balancer.
	kgoSlow = "TestIssue523|TestIssue337|TestIssue434"
)

// TestFranzGoSuite runs the public tests of franz-go's client against the
// broker: in short, or with -kgo.full as their authors do.
func TestFranzGoSuite(t *testing.T) {
	covers(t, "kgo")
	seeds := kgoSeeds(t)
	skip, records := kgoNotOurs+"|"+kgoSlow, "2000"
	if *kgoFull {
		skip, records = kgoNotOurs, "50000"
	}
	var printed testenv.Buffer
	path, dir := testenv.FranzGoTests(t)
	cmd := exec.CommandContext(t.Context(), path, "-test.v", "-test.skip", skip, "-test.timeout", kgoTimeout.String())
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KGO_SEEDS="+seeds, fmt.Sprintf("KGO_TEST_RF=%d", *kgoBrokers), "KGO_TEST_RECORDS="+records, "KGO_LOG_LEVEL=none")
	cmd.Stdout, cmd.Stderr = &printed, &printed
	err := cmd.Run()
	out := printed.String()
	passed := regexp.MustCompile(`(?m)^--- PASS: (\S+)`).FindAllString(out, -1)
	t.Logf("franz-go's tests: %d pass; not run: %v", len(passed), regexp.MustCompile(`(?m)^--- SKIP: \S+`).FindAllString(out, -1))
	if err != nil || len(passed) < 100 {
		t.Errorf("franz-go's tests: %v, %d pass\n%s", err, len(passed), failures(out))
	}
}

func kgoSeeds(t *testing.T) string {
	if *kgoBrokers == 1 {
		return startBroker(t).addr
	}
	c := testenv.StartCluster(t, testenv.StartZooKeeper(t).Addr+"/sluice", testenv.ClusterConfig{Nodes: *kgoBrokers,
		Properties: map[string]string{"group.consumer.heartbeat.interval.ms": consumerHeartbeat}})
	return strings.Join(c.Addrs(), ",")
}

// failures picks the messages of failed tests from the output of verbose ones.
func failures(out string) string {
	var b strings.Builder
	message := regexp.MustCompile(`^\s*(--- FAIL|\w+_test\.go:\d+: |panic|FAIL)`)
	for _, line := range linesOf(out) {
		if message.MatchString(line) && !strings.Contains(line, ": deleting ") {
			b.WriteString(line + "\n")
		}
	}
	const bytesMax = 16 << 10
	if s := b.String(); len(s) <= bytesMax {
		return s
	} else {
		return s[len(s)-bytesMax:]
	}
}
