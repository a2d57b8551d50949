package cluster

import (
	"fmt"
	"log/slog"
	"testing"
)

// benchImage has so many topics of ten partitions each, on three brokers.
func benchImage(b *testing.B, topics int) *Image {
	b.Helper()
	im := NewImage("c", []Broker{{ID: 1, Epoch: 1}, {ID: 2, Epoch: 1}, {ID: 3, Epoch: 1}})
	for i := range topics {
		t, err := planTopic(im, NewTopic{Name: fmt.Sprintf("topic_%d", i), Partitions: 10, ReplicationFactor: 3}, ControllerConfig{}.withDefaults())
		if err != nil {
			b.Fatal(err)
		}
		im = im.With(t)
	}
	return im
}

var benchSizes = []int{50, 500, 5000} // topics of ten partitions

// BenchmarkCreateTopics makes topics of ten partitions, one request each; the
// metric is the time for a partition, which must not depend on how many there are.
func BenchmarkCreateTopics(b *testing.B) {
	for _, topics := range []int{50, 500} {
		b.Run(fmt.Sprintf("partitions=%d", topics*10), func(b *testing.B) {
			for b.Loop() {
				m := NewMemory().Open()
				if err := prepareTree(b.Context(), m, "c"); err != nil {
					b.Fatal(err)
				}
				c := NewController(slog.New(slog.DiscardHandler), m, NewMetadata(), nil, ControllerConfig{BrokerID: 1})
				self := Registration{Broker: Broker{ID: 1, Host: "h", Port: 1}}
				if err := m.Txn(b.Context(), CreateEphemeral(brokerPath(1), newBrokerNode(self, c.cfg.Now()))); err != nil {
					b.Fatal(err)
				}
				session, _ := m.Session(b.Context())
				if err := c.TakeOffice(b.Context(), Office{Epoch: 1, EpochVersion: 0, Session: session}); err != nil {
					b.Fatal(err)
				}
				for i := range topics {
					out := c.CreateTopics(b.Context(), []NewTopic{{Name: fmt.Sprintf("topic_%d", i), Partitions: 10, ReplicationFactor: 1}}, false)
					if out[0].Err != nil {
						b.Fatal(out[0].Err)
					}
				}
				c.LeaveOffice()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*topics*10), "ns/partition")
		})
	}
}

// BenchmarkUpdateOne is one partition's change from the controller's image to a
// broker's: it must not depend on how many partitions there are.
func BenchmarkUpdateOne(b *testing.B) {
	for _, topics := range benchSizes {
		b.Run(fmt.Sprintf("partitions=%d", topics*10), func(b *testing.B) {
			im := benchImage(b, topics)
			theirs := Diff(nil, im).Apply(nil)
			tp := TopicPartition{"topic_7", 3}
			for b.Loop() {
				t, p, _ := im.partition(tp)
				p.LeaderEpoch++
				next := im.withPartition(t, 3, p)
				u := Diff(im, next)
				if len(u.Topics) != 1 || len(u.Topics[0].Partitions) != 1 {
					b.Fatalf("%+v", u)
				}
				im, theirs = next, u.Apply(theirs)
			}
		})
	}
}

// BenchmarkBrokerDies is the election for all that a broker of three leads, and
// the update that tells it; the metric is the time for a partition.
func BenchmarkBrokerDies(b *testing.B) {
	for _, topics := range benchSizes {
		b.Run(fmt.Sprintf("partitions=%d", topics*10), func(b *testing.B) {
			im := benchImage(b, topics)
			theirs := Diff(nil, im).Apply(nil)
			for b.Loop() {
				next := WithLive(im, im.Brokers[:2], func(int32) bool { return false }, Never)
				ops := StateOps(im, next, 1)
				u := Diff(im, next)
				u.Apply(theirs)
				if len(ops) < topics*3 { // it led a third
					b.Fatal(len(ops))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*topics*10), "ns/partition")
		})
	}
}
