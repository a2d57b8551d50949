package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var prometheusPart = Part{
	Name:    "prometheus",
	Version: "2.42.0",
	From:    "apt-get",
	toFetch: []string{"apt-get", "dpkg-deb"},
	fetch: func(ctx context.Context, dir, version string) error {
		return fetchDebian(ctx, dir, "prometheus="+version+"*")
	},
}

// PrometheusServer is a running Prometheus.
type PrometheusServer struct {
	Addr string // host:port of its HTTP API
	*Process
}

// Prometheus starts a Prometheus with a configuration in YAML.
func Prometheus(t testing.TB, config string) *PrometheusServer {
	t.Helper()
	parts := need(t, prometheusPart)
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &PrometheusServer{Addr: fmt.Sprintf("127.0.0.1:%d", FreePort(t))}
	s.Process = Start(t, Command{
		Name: "prometheus",
		Path: filepath.Join(parts, "usr/bin/prometheus"),
		Args: []string{"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			"--web.listen-address=" + s.Addr},
		Dir: dir,
		Ready: func(ctx context.Context) error {
			_, err := s.get(ctx, "/-/ready", nil)
			return err
		},
	})
	return s
}

// Promtool returns a command that runs promtool, Prometheus' checker of
// configurations and rules. The command is killed when t ends.
func Promtool(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), filepath.Join(need(t, prometheusPart), "usr/bin/promtool"), args...)
}

// Series is one series of an instant query's answer.
type Series struct {
	Labels map[string]string
	Value  string // as Prometheus prints it; "NaN" is a value
}

// Query evaluates an expression now.
func (s *PrometheusServer) Query(ctx context.Context, expr string) ([]Series, error) {
	body, err := s.get(ctx, "/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return nil, err
	}
	return decodeVector(body)
}

// decodeVector reads the answer described at
// https://prometheus.io/docs/prometheus/2.42/querying/api/.
func decodeVector(body []byte) ([]Series, error) {
	var answer struct {
		Data struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  [2]any // seconds, value
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("answer of Prometheus: %w", err)
	}
	if answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("the expression gives a %s, not a vector", answer.Data.ResultType)
	}
	series := make([]Series, 0, len(answer.Data.Result))
	for _, r := range answer.Data.Result {
		value, _ := r.Value[1].(string)
		series = append(series, Series{Labels: r.Metric, Value: value})
	}
	return series, nil
}

func (s *PrometheusServer) get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	u := url.URL{Scheme: "http", Host: s.Addr, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP %d: %s", resp.StatusCode, body)
	}
	return body, nil
}
