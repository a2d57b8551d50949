package compat

import (
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestLibrdkafka runs testdata/client.py, in which an assertion names what is
// wrong and whose last line says how far it came.
func TestLibrdkafka(t *testing.T) {
	b := startBroker(t)
	for _, part := range []string{"codecs", "idempotence", "admin", "group", "rebalance", "seek"} {
		t.Run(part, func(t *testing.T) {
			out := output(t, testenv.Python(t, "testdata/client.py", b.addr, part), "")
			if !strings.HasSuffix(strings.TrimSpace(out), "passed "+part) {
				t.Errorf("client.py %s printed:\n%s", part, out)
			}
		})
	}
}
