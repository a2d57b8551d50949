package testenv

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var kafkajsPart = Part{
	Name:    "kafkajs",
	Version: "2.2.4",
	From:    "npm",
	toFetch: []string{"npm"},
	toRun:   []string{"node"},
	fetch:   fetchKafkajs,
}

func fetchKafkajs(ctx context.Context, dir, version string) error {
	err := runIn(ctx, dir, "npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--prefix", dir, "kafkajs@"+version)
	if err != nil {
		return err
	}
	return runIn(ctx, dir, "node", "-e", `require("kafkajs").Kafka.name`)
}

// Kafkajs returns a command that runs node with kafkajs to require. The command
// is killed when t ends.
func Kafkajs(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	dir := need(t, kafkajsPart)
	cmd := exec.CommandContext(t.Context(), "node", args...)
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING=1")
	return cmd
}
