// Package deploy holds no code: its tests check the files beside it, the
// dashboard's queries by asking a real Prometheus that scrapes a running Sluice.
package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	dashboardFile  = "grafana/dashboards/overview.json"
	gridColumns    = 24
	panelsExpected = 20 // fewer would mean that this test reads the file wrongly
)

// The parts of a Grafana dashboard that its queries are made of.
type dashboard struct {
	Title      string
	UID        string
	Templating struct{ List []variable }
	Panels     []panel
}

type variable struct {
	Name, Type, AllValue string
	Query                json.RawMessage // a string, or an object with the string
}

type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ H, W, X, Y int }
	Datasource  struct{ Type, UID string }
	Targets     []struct{ RefID, Expr, LegendFormat string }
	Panels      []panel // of a collapsed row
}

func readDashboard(t *testing.T) *dashboard {
	t.Helper()
	b, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// queryPanels are the panels that show data, those inside rows too.
func (d *dashboard) queryPanels() []panel {
	var all []panel
	for _, p := range d.Panels {
		if p.Type != "row" {
			all = append(all, p)
		}
		all = append(all, p.Panels...)
	}
	return all
}

// text is the query of a variable, whichever form Grafana wrote it in.
func (v variable) text() (string, error) {
	var s string
	if json.Unmarshal(v.Query, &s) == nil {
		return s, nil
	}
	var o struct{ Query string }
	err := json.Unmarshal(v.Query, &o)
	return o.Query, err
}

// Variables in Grafana's three notations: $name, ${name:format}, [[name:format]].
// A $ before a digit is none (it is a capture in label_replace).
var variableRef = regexp.MustCompile(`\$([A-Za-z_]\w*)|\$\{([A-Za-z_][\w.]*)(?::[^}]*)?\}|\[\[([A-Za-z_]\w*)(?::[^\]]*)?\]\]`)

// interpolate replaces variables as Grafana does before it sends a query.
// A name without a value is an error, since Grafana would send it as it stands.
func interpolate(expr string, values map[string]string) (string, error) {
	var unknown []string
	out := variableRef.ReplaceAllStringFunc(expr, func(ref string) string {
		m := variableRef.FindStringSubmatch(ref)
		name := m[1] + m[2] + m[3]
		value, ok := values[name]
		if !ok {
			unknown = append(unknown, name)
		}
		return value
	})
	if len(unknown) > 0 {
		return "", fmt.Errorf("variables %s are not defined", strings.Join(unknown, ", "))
	}
	return out, nil
}

// builtIns are Grafana's own variables for a time range of 5 minutes on a panel
// of about 300 points and a data source scraped every interval:
// $__rate_interval is the larger of $__interval + interval and 4 * interval.
func builtIns(interval time.Duration) map[string]string {
	step := max(time.Second, interval)
	rate := max(step+interval, 4*interval)
	span := 5 * time.Minute
	return map[string]string{
		"__interval":      seconds(step),
		"__interval_ms":   fmt.Sprint(step.Milliseconds()),
		"__rate_interval": seconds(rate),
		"__range":         seconds(span),
		"__range_s":       fmt.Sprint(int(span.Seconds())),
		"__range_ms":      fmt.Sprint(span.Milliseconds()),
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%ds", int(d.Seconds())) }

// values are those of the dashboard's variables with "All" chosen.
func (d *dashboard) values(interval time.Duration) map[string]string {
	values := builtIns(interval)
	for _, v := range d.Templating.List {
		values[v.Name] = v.AllValue
	}
	return values
}

func TestInterpolate(t *testing.T) {
	values := map[string]string{"pipeline": ".*", "__rate_interval": "4s", "a": "1"}
	for expr, want := range map[string]string{
		`rate(x{pipeline=~"$pipeline"}[$__rate_interval])`: `rate(x{pipeline=~".*"}[4s])`,
		`x{p=~"${pipeline:regex}"} * ${a} + [[a]]`:         `x{p=~".*"} * 1 + 1`,
		`label_replace(x, "to", "$1", "from", "(.*)")`:     `label_replace(x, "to", "$1", "from", "(.*)")`,
		`x{path=~"^/a$"}`: `x{path=~"^/a$"}`,
		`rate(sluice_agent_lines_read_total[5m]) > $a == 2`: `rate(sluice_agent_lines_read_total[5m]) > 1 == 2`,
	} {
		if got, err := interpolate(expr, values); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", expr, got, err, want)
		}
	}
	if _, err := interpolate("x{a=~\"$gone\"}", values); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("an undefined variable: %v", err)
	}
	if got := builtIns(10 * time.Second)["__rate_interval"]; got != "40s" {
		t.Errorf("$__rate_interval at 10 s: %s", got)
	}
}

func TestDashboardIsWellFormed(t *testing.T) {
	d := readDashboard(t)
	if d.Title == "" || d.UID == "" {
		t.Error("a dashboard needs title and uid: links and provisioning go by them")
	}
	panels := d.queryPanels()
	if len(panels) < panelsExpected {
		t.Errorf("%d panels", len(panels))
	}
	values := d.values(10 * time.Second)
	ids := map[int]string{}
	for _, p := range panels {
		if other, taken := ids[p.ID]; taken {
			t.Errorf("panels %q and %q have the id %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		for _, complaint := range p.complaints(values) {
			t.Errorf("panel %q: %s", p.Title, complaint)
		}
	}
	for i, p := range d.Panels {
		for _, q := range d.Panels[:i] {
			if p.overlaps(q) {
				t.Errorf("panels %q and %q overlap", p.Title, q.Title)
			}
		}
	}
}

func (p panel) complaints(values map[string]string) (all []string) {
	if p.Title == "" {
		all = append(all, "no title")
	}
	if p.Datasource.UID != "${datasource}" {
		all = append(all, "its data source is not the dashboard's variable")
	}
	if p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > gridColumns {
		all = append(all, fmt.Sprintf("it lies outside the grid of %d columns", gridColumns))
	}
	if len(p.Targets) == 0 {
		all = append(all, "no query")
	}
	var refs []string
	for _, q := range p.Targets {
		if slices.Contains(refs, q.RefID) {
			all = append(all, "two queries "+q.RefID)
		}
		refs = append(refs, q.RefID)
		if _, err := interpolate(q.Expr, values); err != nil || q.Expr == "" {
			all = append(all, fmt.Sprintf("query %s %q: %v", q.RefID, q.Expr, err))
		}
	}
	return all
}

func (p panel) overlaps(q panel) bool {
	a, b := p.GridPos, q.GridPos
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

// TestProvisioningNames checks what the files say of each other.
func TestProvisioningNames(t *testing.T) {
	datasource := readText(t, "grafana/provisioning/datasources/prometheus.yaml")
	interval := regexp.MustCompile(`scrape_interval: (\w+)`).FindStringSubmatch(readText(t, "prometheus/prometheus.yml"))
	if interval == nil || !strings.Contains(datasource, "timeInterval: "+interval[1]) {
		t.Errorf("the data source's timeInterval is not Prometheus' scrape_interval %v", interval)
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
