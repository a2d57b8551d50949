package testenv

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The Python clients. A wheel of confluent-kafka carries a librdkafka of the
// same version; the codecs of the two pure clients are wheels of their own.
var (
	librdkafkaPart = pipPart("confluent-kafka", "2.12.1", "import confluent_kafka; confluent_kafka.Producer({})")

	kafkaPythonPart = pipPart("kafka-python", "3.0.12", "import kafka, snappy, lz4.frame, zstandard",
		"python-snappy==0.7.3", "cramjam==2.14.0", "lz4==4.4.5", "zstandard==0.25.0")

	aiokafkaPart = pipPart("aiokafka", "0.14.0", "import aiokafka, cramjam",
		"cramjam==2.14.0", "async-timeout==5.0.1", "packaging==26.4", "typing-extensions==4.16.0")
)

// pipPart is a Python package with all that it needs beside it, tried by a
// line of Python once it is fetched.
func pipPart(name, version, try string, needs ...string) Part {
	return Part{
		Name:    name,
		Version: version,
		From:    "pip",
		toRun:   []string{"python3"},
		fetch: func(ctx context.Context, dir, version string) error {
			install := append([]string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
				"--only-binary", ":all:", "--target", dir, name + "==" + version}, needs...)
			if err := runIn(ctx, dir, "python3", install...); err != nil {
				return err
			}
			return runIn(ctx, dir, "env", "PYTHONPATH="+dir, "python3", "-c", try)
		},
	}
}

// Python returns a command that runs python3 with confluent-kafka (librdkafka
// 2.12) to import. The command is killed when t ends.
func Python(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return python(t, librdkafkaPart, args...)
}

// KafkaPython is Python with kafka-python to import.
func KafkaPython(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return python(t, kafkaPythonPart, args...)
}

// Aiokafka is Python with aiokafka to import.
func Aiokafka(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return python(t, aiokafkaPart, args...)
}

func python(t testing.TB, p Part, args ...string) *exec.Cmd {
	t.Helper()
	dir := need(t, p)
	cmd := exec.CommandContext(t.Context(), "python3", args...)
	path := dir
	if have := os.Getenv("PYTHONPATH"); have != "" {
		path += string(filepath.ListSeparator) + have
	}
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}
