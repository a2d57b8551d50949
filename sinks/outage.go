package sinks

import (
	"time"
)

// outage is a time in which the destination does not take the batches of some partitions. It is logged when it begins and when it ends, and
// every outageReminder while it lasts: each attempt on its own would flood the log.
type outage struct {
	partitions map[int32]bool // whose last write failed
	began      time.Time
	logged     time.Time
	failures   int
}

// outageReminder is how often an outage that lasts is logged again.
const outageReminder = time.Minute

// destinationSaid notes how a partition's last request to the destination went; a nil err ends its part in an outage.
func (w *Worker) destinationSaid(id int32, err error, now time.Time) {
	w.setWaiting(writeOf(id), err)
	if err == nil {
		w.setWaiting("destination", nil)
		w.endTrouble(id, now)
		return
	}
	w.metrics.writeErrors.Inc()
	w.mu.Lock()
	defer w.mu.Unlock()
	o := &w.outage
	if len(o.partitions) == 0 {
		*o = outage{partitions: map[int32]bool{}, began: now}
	}
	o.partitions[id] = true
	o.failures++
	if now.Sub(o.logged) < outageReminder {
		return
	}
	o.logged = now
	w.log.Error("the destination does not take the batch; it is written again, under the same identity, until it does",
		"partition", id, "failures", o.failures, "since", now.Sub(o.began).Round(time.Second), "error", err)
}

// endTrouble takes a partition out of the outage: its batch was stored, or it is another worker's now.
func (w *Worker) endTrouble(id int32, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := &w.outage
	if !o.partitions[id] {
		return
	}
	delete(o.partitions, id)
	if len(o.partitions) == 0 {
		w.log.Info("the destination's trouble is over", "failures", o.failures, "lasted", now.Sub(o.began).Round(time.Millisecond))
	}
}
