package agent

import (
	"testing"
	"time"

	"github.com/sluice-io/sluice/pipelines"
)

// Lines that come seldom do not wait for others, unless the age of batches is set; those that come often do.
func TestParcelAfterARestIsShippedAtOnce(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		age   time.Duration
		rests []time.Duration // before each parcel
		waits []time.Duration // of each
	}{
		{0, []time.Duration{0, 50 * ms, 50 * ms, 3 * ms, 19 * ms, restMin}, []time.Duration{0, 0, 0, lingerDefault, lingerDefault, 0}},
		{5 * ms, []time.Duration{0, 50 * ms, 3 * ms}, []time.Duration{5 * ms, 5 * ms, 5 * ms}},
	} {
		r := &runner{}
		r.batching(pipelines.Topic{Batch: pipelines.AgentBatch{Age: c.age}})
		now := time.Unix(1000, 0)
		for i, rest := range c.rests {
			now = now.Add(rest)
			r.openParcel(now)
			if got := r.shipDue(now.Add(time.Hour)).Sub(now); got != c.waits[i] {
				t.Errorf("age %v: parcel %d after %v waits for %v, want %v", c.age, i, rest, got, c.waits[i])
			}
			r.parcel = nil
		}
	}
}
