package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/pipelines"
)

// destination makes the destination of a pipeline. failures counts what is not
// a record's own fault; catchingUp says whether speed counts more than size.
func (a *Agent) destination(p *pipelines.Pipeline, failures *atomic.Int64, catchingUp func() bool) (Destination, error) {
	if a.cfg.Destination != nil {
		return a.cfg.Destination(p)
	}
	addrs := a.cfg.Brokers
	var opts []kgo.Opt
	if p.Brokers != nil {
		addrs = p.Brokers.Addr
		var err error
		if opts, err = clientOptions(p.Brokers); err != nil {
			return nil, err
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("no brokers are named: set brokers.addr in the pipeline, or --brokers")
	}
	return producer.NewKafka(a.log.With("pipeline", p.Name), producer.KafkaConfig{
		Brokers: addrs, ClientID: "sluice-agent", Client: opts,
		Compression:    string(p.Topic.Compression),
		CatchingUp:     catchingUp,
		OnError:        func(error) { failures.Add(1) },
		RecordBytesMax: p.Collect.File.LineBytesMax + recordOverheadBytes,
	})
}

func clientOptions(b *pipelines.Brokers) ([]kgo.Opt, error) {
	var opts []kgo.Opt
	if b.TLS != nil {
		cfg, err := tlsConfig(b.TLS)
		if err != nil {
			return nil, fmt.Errorf("brokers.tls: %w", err)
		}
		opts = append(opts, kgo.DialTLSConfig(cfg))
	}
	if b.SASL != nil {
		mechanism, err := saslMechanism(b.SASL)
		if err != nil {
			return nil, fmt.Errorf("brokers.sasl: %w", err)
		}
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

func tlsConfig(t *pipelines.TLS) (*tls.Config, error) {
	cfg := &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read ca_file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("load the client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

func saslMechanism(s *pipelines.SASL) (sasl.Mechanism, error) {
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
