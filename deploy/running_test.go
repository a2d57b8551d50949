package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/sluice-io/sluice/internal/testenv"
)

const (
	scrapeInterval = time.Second
	answersTimeout = 90 * time.Second // until every panel has data
	answersPoll    = 500 * time.Millisecond
	linesPerTick   = 20
	writeTick      = 50 * time.Millisecond
	ticksPerFile   = 60 // a rename every 3 s
)

func TestPrometheusConfiguration(t *testing.T) {
	out, err := testenv.Promtool(t, "check", "config", "prometheus/prometheus.yml").CombinedOutput()
	if err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// Every metric that an alert asks for is one that the source makes.
func TestAlertsNameMetrics(t *testing.T) {
	source := sourceText(t)
	for _, name := range regexp.MustCompile(`sluice_\w+`).FindAllString(readText(t, "prometheus/alerts.yml"), -1) {
		made := slices.ContainsFunc([]string{"", "sluice_", "sluice_agent_", "sluice_sink_"}, func(prefix string) bool {
			return strings.Contains(source, `"`+strings.TrimPrefix(name, prefix)+`"`)
		})
		if !made {
			t.Errorf("an alert asks for %s, which nothing makes", name)
		}
	}
}

// TestEveryPanelAnswers runs the quick start's pipeline on a log that grows and
// is rotated, has Prometheus scrape it by the configuration beside this file,
// and demands data of every query of every panel.
func TestEveryPanelAnswers(t *testing.T) {
	metrics := startPipeline(t, testenv.Sluice(t))
	prometheus := testenv.Prometheus(t, scrapeConfig(t, metrics))
	d := readDashboard(t)
	values := d.values(scrapeInterval)

	for _, q := range unanswered(t, prometheus, d.queries(t, values)) {
		t.Errorf("%s: %v\n\t%s", q.where, q.last, q.expr)
	}
	checkMetricNames(t, d, prometheus)
}

// unanswered asks until every query has data, and returns those that stay without.
func unanswered(t *testing.T, prometheus *testenv.PrometheusServer, pending []*query) []*query {
	t.Helper()
	deadline := time.NewTimer(answersTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(answersPoll)
	defer tick.Stop()
	for {
		pending = slices.DeleteFunc(pending, func(q *query) bool {
			q.last = answers(t.Context(), prometheus, q.expr)
			if q.last == nil {
				t.Logf("answered: %s: %s", q.where, q.expr)
			}
			return q.last == nil
		})
		if len(pending) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return pending
		}
	}
}

// A query of the dashboard, ready to be sent.
type query struct {
	where string
	expr  string
	last  error
}

func (d *dashboard) queries(t *testing.T, values map[string]string) (all []*query) {
	t.Helper()
	for _, p := range d.queryPanels() {
		for _, target := range p.Targets {
			expr, err := interpolate(target.Expr, values)
			if err != nil {
				t.Fatalf("panel %q: %v", p.Title, err)
			}
			all = append(all, &query{where: fmt.Sprintf("panel %q, query %s", p.Title, target.RefID), expr: expr})
		}
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		expr, err := v.asExpression()
		if err != nil {
			t.Fatalf("variable %s: %v", v.Name, err)
		}
		all = append(all, &query{where: "variable " + v.Name, expr: expr})
	}
	return all
}

var labelValues = regexp.MustCompile(`^label_values\((.+),\s*(\w+)\)$`)

// asExpression turns label_values(metric, label), Grafana's own function, into
// an expression that has a series for each value.
func (v variable) asExpression() (string, error) {
	text, err := v.text()
	if err != nil {
		return "", err
	}
	m := labelValues.FindStringSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%q is not label_values(metric, label)", text)
	}
	return fmt.Sprintf(`count by (%[2]s) (%[1]s) and count by (%[2]s) ({%[2]s!=""})`, m[1], m[2]), nil
}

// answers returns nil if the expression has at least one series with a number.
func answers(ctx context.Context, prometheus *testenv.PrometheusServer, expr string) error {
	series, err := prometheus.Query(ctx, expr)
	if err != nil {
		return err
	}
	if len(series) == 0 {
		return errors.New("no series")
	}
	if !slices.ContainsFunc(series, func(s testenv.Series) bool { return s.Value != "NaN" && s.Value != "" }) {
		return errors.New("only NaN")
	}
	return nil
}

var metricName = regexp.MustCompile(`\bsluice_[a-z0-9_]+\b`)

// checkMetricNames finds names that no code exports, also where "or vector(0)"
// hides that a counter has no series yet: such a name must be a literal in the
// sources, since a vector without children is not scraped.
func checkMetricNames(t *testing.T, d *dashboard, prometheus *testenv.PrometheusServer) {
	t.Helper()
	sources := sourceText(t)
	for _, p := range d.queryPanels() {
		for _, target := range p.Targets {
			for _, name := range metricName.FindAllString(target.Expr, -1) {
				if answers(t.Context(), prometheus, "count("+name+")") != nil && !strings.Contains(sources, `"`+name+`"`) {
					t.Errorf("panel %q: nothing exports %s", p.Title, name)
				}
			}
		}
	}
}

func sourceText(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"agent", "broker", "cmd", "sinks"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(file string, e os.DirEntry, err error) error {
			if err != nil || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
				return err
			}
			b, err := os.ReadFile(file)
			all.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// startPipeline runs `sluice run` on the quick start's pipeline and returns the
// address of its metrics. Lines are written until t ends.
func startPipeline(t *testing.T, sluice string) string {
	t.Helper()
	dir := t.TempDir()
	pipeline := strings.ReplaceAll(readText(t, "../examples/quickstart/pipeline.yaml"), "build/demo", dir)
	file := filepath.Join(dir, "pipeline.yaml")
	if err := os.WriteFile(file, []byte(pipeline), 0o644); err != nil {
		t.Fatal(err)
	}
	writeLog(t, filepath.Join(dir, "access.log"))
	metrics := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	testenv.Start(t, testenv.Command{
		Name:  "sluice",
		Path:  sluice,
		Args:  []string{"run", file, "--data", filepath.Join(dir, "data"), "--metrics", metrics},
		Dir:   dir,
		Ready: func(ctx context.Context) error { return get(ctx, "http://"+metrics+"/readyz") },
	})
	return metrics
}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: HTTP %d", url, resp.StatusCode)
	}
	return nil
}

// writeLog writes access lines, now and then one that no parser takes, and
// renames the file, in the background until t ends.
func writeLog(t *testing.T, file string) {
	t.Helper()
	if err := appendLines(file, 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	stop := make(chan struct{})
	go func() { done <- writeUntil(stop, file) }()
	t.Cleanup(func() {
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func writeUntil(stop <-chan struct{}, file string) error {
	tick := time.NewTicker(writeTick)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		if n%ticksPerFile == 0 {
			if err := os.Rename(file, fmt.Sprintf("%s.%d", file, n/ticksPerFile)); err != nil {
				return err
			}
		}
		if err := appendLines(file, n); err != nil {
			return err
		}
	}
}

func appendLines(file string, n int) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	var b strings.Builder
	for i := range linesPerTick {
		fmt.Fprintf(&b, "203.0.113.%d - - [%s] \"GET /page/%d HTTP/1.1\" 200 %d \"-\" \"curl/8.0\"\n",
			i, time.Now().Format("02/Jan/2006:15:04:05 -0700"), n, 100+i)
	}
	b.WriteString("not an access line\n")
	_, err = f.WriteString(b.String())
	return err
}

// scrapeConfig is the configuration beside this file, but for the interval and
// for the addresses: the first job's target runs, the others' are not there.
func scrapeConfig(t *testing.T, addr string) string {
	t.Helper()
	var config map[string]any
	if err := yaml.Unmarshal([]byte(readText(t, "prometheus/prometheus.yml")), &config); err != nil {
		t.Fatal(err)
	}
	config["global"].(map[string]any)["scrape_interval"] = seconds(scrapeInterval)
	jobs := config["scrape_configs"].([]any)
	jobs[0].(map[string]any)["static_configs"] = []map[string]any{{"targets": []string{addr}}}
	config["scrape_configs"] = jobs[:1]
	out, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
