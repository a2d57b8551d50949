package testenv

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// librdkafkaPart is Python's confluent-kafka, whose wheel carries a librdkafka
// of the same version.
var librdkafkaPart = Part{
	Name:    "confluent-kafka",
	Version: "2.12.1",
	From:    "pip",
	toRun:   []string{"python3"},
	fetch:   fetchConfluentKafka,
}

func fetchConfluentKafka(ctx context.Context, dir, version string) error {
	err := runIn(ctx, dir, "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
		"--only-binary", ":all:", "--target", dir, "confluent-kafka=="+version)
	if err != nil {
		return err
	}
	return runIn(ctx, dir, "env", "PYTHONPATH="+dir, "python3", "-c", "import confluent_kafka; confluent_kafka.Producer({})")
}

// Python returns a command that runs python3 with confluent-kafka (librdkafka
// 2.12) to import. The command is killed when t ends.
func Python(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	dir := need(t, librdkafkaPart)
	cmd := exec.CommandContext(t.Context(), "python3", args...)
	path := dir
	if have := os.Getenv("PYTHONPATH"); have != "" {
		path += string(filepath.ListSeparator) + have
	}
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "PYTHONUNBUFFERED=1")
	return cmd
}
