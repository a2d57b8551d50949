package broker

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// nat forwards connections to where target says, as a router before the broker does.
func nat(t *testing.T, target *atomic.Pointer[string]) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(func() { l.Close() })
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer in.Close()
				out, err := net.Dial("tcp", *target.Load())
				if err != nil {
					return
				}
				running.Go(func() {
					_, _ = io.Copy(out, in) // ends with either side
					out.Close()
				})
				_, _ = io.Copy(in, out)
			})
		}
	})
	return l.Addr().String()
}

// The clients of each listener are told the address that is theirs: those that
// come from behind a router the router's, in every answer that names brokers.
func TestEachListenerHasItsOwnAddress(t *testing.T) {
	cfg := testConfig(t)
	var external atomic.Pointer[string]
	outside := nat(t, &external)
	cfg.ListenerProtocols = []string{"INTERNAL:PLAINTEXT", "EXTERNAL:PLAINTEXT"}
	cfg.Listen = []string{"INTERNAL://127.0.0.1:0", "EXTERNAL://127.0.0.1:0"}
	cfg.Advertise = []string{"EXTERNAL://" + outside}
	n := startNode(t, cfg)
	external.Store(ptr(n.bound[1].String()))
	n.createTopic(t, "t", 1, nil)
	for from, want := range map[string]string{n.Addr(): n.Addr(), outside: outside, n.bound[1].String(): outside} {
		cl := n.client(t, kgo.SeedBrokers(from))
		metadata, err := kmsg.NewPtrMetadataRequest().RequestWith(t.Context(), cl)
		if err != nil {
			t.Fatal(err)
		}
		about, err := kmsg.NewPtrDescribeClusterRequest().RequestWith(t.Context(), cl)
		if err != nil {
			t.Fatal(err)
		}
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.CoordinatorKeys = []string{"g"}
		found, err := find.RequestWith(t.Context(), cl)
		if err != nil {
			t.Fatal(err)
		}
		c := found.Coordinators[0]
		for what, got := range map[string]string{
			"metadata":    fmt.Sprintf("%s:%d", metadata.Brokers[0].Host, metadata.Brokers[0].Port),
			"cluster":     fmt.Sprintf("%s:%d", about.Brokers[0].Host, about.Brokers[0].Port),
			"coordinator": fmt.Sprintf("%s:%d", c.Host, c.Port),
		} {
			if got != want {
				t.Errorf("from %s, %s: told %s, want %s", from, what, got, want)
			}
		}
	}
	produce(t, n.client(t, kgo.SeedBrokers(outside)), "t", 0, 100)
	if got := consume(t, n.client(t, kgo.SeedBrokers(outside), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t")), 100); len(got) != 100 {
		t.Errorf("%d records", len(got))
	}
}
