// Package connect turns what a pipeline file says of reaching a server into the settings of the client libraries. The agent and the
// sinks share it.
package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/sluice-io/sluice/pipelines"
)

// Brokers are the client options for the brokers of a pipeline, or, where it names none (b is nil), for fallback. The files and the
// password that b names are read now; an error says which key of the file they stand under.
func Brokers(b *pipelines.Brokers, fallback []string) ([]kgo.Opt, error) {
	if b == nil {
		b = &pipelines.Brokers{Addr: fallback}
	}
	if len(b.Addr) == 0 {
		return nil, errors.New("no brokers are named: set brokers.addr in the pipeline, or --brokers")
	}
	opts := []kgo.Opt{kgo.SeedBrokers(b.Addr...)}
	if b.TLS != nil {
		config, err := TLS(b.TLS)
		if err != nil {
			return nil, fmt.Errorf("brokers.tls: %w", err)
		}
		opts = append(opts, kgo.DialTLSConfig(config))
	}
	if b.SASL != nil {
		mechanism, err := mechanism(b.SASL)
		if err != nil {
			return nil, fmt.Errorf("brokers.sasl: %w", err)
		}
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

// TLS reads the certificates that t names. TLS 1.2 is the least that is spoken.
func TLS(t *pipelines.TLS) (*tls.Config, error) {
	config := &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read ca_file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read cert_file and key_file: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func mechanism(s *pipelines.SASL) (sasl.Mechanism, error) {
	password, err := s.Password.Reveal()
	if err != nil {
		return nil, err
	}
	switch s.Mechanism {
	case pipelines.SASLPlain:
		return plain.Auth{User: s.Username, Pass: password}.AsMechanism(), nil
	case pipelines.SASLScramSHA256:
		return scram.Auth{User: s.Username, Pass: password}.AsSha256Mechanism(), nil
	case pipelines.SASLScramSHA512:
		return scram.Auth{User: s.Username, Pass: password}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("unknown mechanism %q", s.Mechanism)
}
