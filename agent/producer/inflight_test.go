package producer_test

import (
	"sync/atomic"
	"testing"

	"github.com/sluice-io/sluice/agent/producer"
)

// No more batches of a partition are sent and not acknowledged than the setting says, and as many are.
func TestInFlightMax(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		for _, limit := range []int{1, 3, 5} {
			release := make(chan struct{})
			var answers atomic.Int32
			w := &wire{cut: func() bool {
				if answers.Add(1) > 1 { // the first batch of a producer travels alone
					<-release
				}
				return false
			}}
			s := through(t, addr, topicName(t), newMemoryLog(), w)
			s.cfg.InFlightMax = limit
			s.open()
			s.prepare(producer.TopicSpec{})
			s.send("first")
			s.wait()
			s.sendNumbers(0, 100, 10)
			s.until("all is in the journal", func() bool { return s.log.written() >= 11 })
			s.until("as many as may be are sent", func() bool { return w.most() >= limit })
			s.k.Prepare(t.Context(), producer.TopicSpec{Name: s.topic}) // a round trip: were there others, they had been sent
			if n := w.most(); n != limit {
				t.Errorf("%d requests under way, the limit is %d", n, limit)
			}
			close(release)
			s.wait()
			if n := w.most(); n > limit {
				t.Errorf("%d requests under way, the limit is %d", n, limit)
			}
			s.wants(addr, append([]string{"first"}, numbers(0, 100)...))
		}
	})
}
