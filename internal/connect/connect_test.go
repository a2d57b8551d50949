package connect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/pipelines"
)

func TestBrokers(t *testing.T) {
	for name, c := range map[string]struct {
		brokers  *pipelines.Brokers
		fallback []string
		addr     string
	}{
		"the pipeline's own": {&pipelines.Brokers{Addr: []string{"a:9092"}}, []string{"b:9092"}, "a:9092"},
		"the fallback":       {nil, []string{"b:9092"}, "b:9092"},
	} {
		opts, err := Brokers(c.brokers, c.fallback)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		client, err := kgo.NewClient(opts...)
		if err != nil {
			t.Fatal(err)
		}
		if got := client.OptValue(kgo.SeedBrokers).([]string); len(got) != 1 || got[0] != c.addr {
			t.Errorf("%s: seeds %v, want %s", name, got, c.addr)
		}
		client.Close()
	}
}

func TestMistakesNameTheirPlace(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(empty, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(t.TempDir(), "none.pem")
	at := []string{"a:9092"}
	for want, b := range map[string]*pipelines.Brokers{
		"--brokers":              nil,
		"brokers.tls: read ca_f": {Addr: at, TLS: &pipelines.TLS{CAFile: missing}},
		"holds no PEM":           {Addr: at, TLS: &pipelines.TLS{CAFile: empty}},
		"cert_file":              {Addr: at, TLS: &pipelines.TLS{CertFile: missing, KeyFile: missing}},
		"brokers.sasl: unknown":  {Addr: at, SASL: &pipelines.SASL{Mechanism: "GSSAPI"}},
		"SLUICE_NO_SUCH_NAME":    {Addr: at, SASL: &pipelines.SASL{Mechanism: pipelines.SASLPlain, Password: pipelines.NewSecret("${SLUICE_NO_SUCH_NAME}")}},
	} {
		if _, err := Brokers(b, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that says %q, have %v", want, err)
		}
	}
}
