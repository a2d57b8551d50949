package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// gathered are the agent's metrics: name and labels without the pipeline and the input, with the value.
func gathered(t *testing.T, a *Agent) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	if err := reg.Register(newCollector(a)); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "sluice_agent_")
			for _, l := range m.GetLabel() {
				if l.GetName() != "pipeline" && l.GetName() != "input" {
					name += " " + l.GetValue()
				}
			}
			out[name] = valueOf(m)
		}
	}
	return out
}

func valueOf(m *dto.Metric) float64 {
	if m.Counter != nil {
		return m.GetCounter().GetValue()
	}
	return m.GetGauge().GetValue()
}

// Files that are furthest behind have metrics of their own, the others are summed up: their number has a bound however many there are.
func TestMetricsOfFilesAreBounded(t *testing.T) {
	r := newRig(t, plainPipeline)
	const count = filesShown + 15
	for i := range count {
		r.write(fmt.Sprintf("%03d.log", i), strings.Repeat("line\n", i+1))
	}
	r.store.hold()
	r.start()
	r.eventually("all is read", func() bool { return r.account().Read.Lines == count*(count+1)/2 })
	m := gathered(t, r.agent)
	shown := 0
	for name := range m {
		if strings.HasPrefix(name, "file_lag_bytes /") {
			shown++
		}
	}
	if shown != filesShown {
		t.Errorf("%d files are shown", shown)
	}
	biggest := " " + r.path(fmt.Sprintf("%03d.log", count-1))
	if got := m["file_lag_bytes"+biggest]; got != count*5 {
		t.Errorf("the file that is furthest behind is shown with %v", got)
	}
	if got := m["file_lag_bytes "+otherFiles]; got != 15*16/2*5 {
		t.Errorf("the others are behind by %v", got)
	}
	if m["memory_bytes"] <= 0 || m["lag_bytes"] != count*(count+1)/2*5 || m["files_open"] != count || m["files_followed"] != count {
		t.Errorf("%v", m)
	}
	r.store.letGo()
	r.eventually("all is acknowledged", func() bool { return r.account().InFlight.Lines == 0 })
	m = gathered(t, r.agent)
	if m["memory_bytes"] != 0 || m["lines_acked_total"] != count*(count+1)/2 || m["file_oldest_unacked_seconds"+biggest] != 0 {
		t.Errorf("%v", m)
	}
	if !slices.Contains([]float64{0, count}, m["file_lines_settled_total"+biggest]) { // it may not be among those shown any more
		t.Errorf("settled: %v", m["file_lines_settled_total"+biggest])
	}
}
