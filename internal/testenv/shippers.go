package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// PeerParts are log shippers of others, which the agent is measured against. No test needs them, and one is built for minutes: they are
// fetched by their first measurement, or by fetch -only NAME.
func PeerParts() []Part { return []Part{rsyslogPart, otelPart} }

var rsyslogPart = Part{
	Name:    "rsyslog",
	Version: "8.2302.0",
	From:    "apt-get",
	toFetch: []string{"apt-get", "dpkg-deb"},
	fetch: func(ctx context.Context, dir, version string) error {
		return fetchDebian(ctx, dir, "rsyslog="+version+"*", "rsyslog-kafka="+version+"*", "libestr0=0.1.11*", "libfastjson4=1.2304.0*", "liblognorm5=2.0.6*",
			"librdkafka1=2.0.2*", "libyajl2=2.1.0*", "libsasl2-2", "libdb5.3", "liblz4-1")
	},
}

// Rsyslog returns the command that runs rsyslog with a configuration, in the foreground.
func Rsyslog(t testing.TB, config, pidFile string) Command {
	t.Helper()
	dir := need(t, rsyslogPart)
	libs, err := filepath.Glob(filepath.Join(dir, "usr/lib/*-linux-gnu"))
	if err != nil || len(libs) != 1 {
		t.Fatal(err, libs)
	}
	return Command{Name: "rsyslog", Path: filepath.Join(dir, "usr/sbin/rsyslogd"), Env: []string{"LD_LIBRARY_PATH=" + libs[0]},
		Args: []string{"-n", "-M", filepath.Join(libs[0], "rsyslog"), "-i", pidFile, "-f", config}}
}

// otelParts are what the Collector is built of.
const otelParts = `dist: {name: otelcol, description: a log shipper, output_path: ./build, version: %[1]s}
receivers: [{gomod: github.com/open-telemetry/opentelemetry-collector-contrib/receiver/filelogreceiver v%[1]s}]
exporters: [{gomod: github.com/open-telemetry/opentelemetry-collector-contrib/exporter/kafkaexporter v%[1]s}]
processors: [{gomod: go.opentelemetry.io/collector/processor/batchprocessor v%[1]s}]
extensions: [{gomod: github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage v%[1]s}]
`

var otelPart = Part{
	Name:    "otelcol",
	Version: "0.165.0",
	From:    "go",
	toFetch: []string{"go"},
	fetch: func(ctx context.Context, dir, version string) error {
		if err := os.WriteFile(filepath.Join(dir, "parts.yaml"), fmt.Appendf(nil, otelParts, version), 0o644); err != nil {
			return err
		}
		return runIn(ctx, dir, "go", "run", "go.opentelemetry.io/collector/cmd/builder@v"+version, "--config", "parts.yaml")
	},
}

// OTelCollector returns the command that runs an OpenTelemetry Collector (filelog, batch, kafka) with a configuration.
func OTelCollector(t testing.TB, config string) Command {
	t.Helper()
	return Command{Name: "otelcol", Path: filepath.Join(need(t, otelPart), "build/otelcol"), Args: []string{"--config", config}}
}
