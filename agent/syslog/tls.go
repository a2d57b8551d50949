package syslog

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSConfig makes a server's settings of PEM files. The certificate is read at each handshake, so that a renewed one is used. With
// clientCA clients must have a certificate that is signed by one in it.
func TLSConfig(certFile, keyFile, clientCA string) (*tls.Config, error) {
	load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("load the certificate: %w", err)
		}
		return &cert, nil
	}
	if _, err := load(nil); err != nil {
		return nil, err
	}
	cfg := &tls.Config{GetCertificate: load, MinVersion: tls.VersionTLS12}
	if clientCA == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, fmt.Errorf("read the authorities of clients: %w", err)
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New("read the authorities of clients: " + clientCA + " has no certificate")
	}
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	return cfg, nil
}
