package compat

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestClients runs the programs in testdata and goclients, each of which does
// with one client library what its users do. A part's last line says "passed".
func TestClients(t *testing.T) {
	b := startBroker(t)
	script := func(run func(testing.TB, ...string) *exec.Cmd, args ...string) func(*testing.T, string) *exec.Cmd {
		return func(t *testing.T, part string) *exec.Cmd { return run(t, append(args, part)...) }
	}
	goClient := func(name string) func(*testing.T, string) *exec.Cmd {
		return func(t *testing.T, part string) *exec.Cmd {
			return exec.CommandContext(t.Context(), testenv.GoClients(t), name, b.addr, part)
		}
	}
	for _, client := range []struct {
		row   string
		cmd   func(*testing.T, string) *exec.Cmd
		parts string
	}{
		{"confluent", script(testenv.Python, "testdata/confluent.py", b.addr), "codecs idempotence admin group rebalance seek"},
		{"kafka-python", script(testenv.KafkaPython, "testdata/kafka_python.py", b.addr), "codecs idempotence admin group timestamps delete-records"},
		{"aiokafka", script(testenv.Aiokafka, "testdata/aiokafka_client.py", b.addr), "codecs idempotence admin group timestamps delete-records"},
		{"kafkajs", script(testenv.Kafkajs, "testdata/kafkajs.js", b.addr), "codecs idempotence admin group timestamps delete-records"},
		{"sarama", goClient("sarama"), "codecs idempotence admin group delete-records"},
		{"kafka-go", goClient("kafka-go"), "codecs admin group"},
	} {
		t.Run(client.row, func(t *testing.T) {
			t.Parallel()
			for _, part := range strings.Fields(client.parts) {
				t.Run(part, func(t *testing.T) {
					if part == "delete-records" {
						coversIfOffered(t, b, []kmsg.Key{kmsg.DeleteRecords}, client.row+"-delete")
					} else {
						covers(t, client.row)
					}
					out := output(t, client.cmd(t, part), "")
					if !strings.HasSuffix(strings.TrimSpace(out), "passed "+part) {
						t.Errorf("%s printed:\n%s", client.row, out)
					}
				})
			}
		})
	}
}
