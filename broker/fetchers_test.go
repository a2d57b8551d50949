package broker

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/peer"
	"github.com/sluice-io/sluice/broker/replica"
)

// A broker that has not stored that it told of its last stop, or whose telling no
// controller has decided on, copies nothing: it could come to be in sync, and be taken
// out at its next start for what it had told before.
func TestNothingIsFetchedBeforeTheLastStopIsSettled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan struct{})
	go func() {
		if conn, err := l.Accept(); err == nil {
			conn.Close()
			close(asked)
		}
	}()
	log, _, err := commitlog.Open(commitlog.OSFS{}, filepath.Join(t.TempDir(), "t-0"), commitlog.Config{}, commitlog.OpenOptions{Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Abort()
	p := replica.New(log, replica.Options{Topic: "t", BrokerID: 1}, replica.DefaultTopicConfig())
	st := cluster.Partition{Leader: 2, Replicas: []int32{1, 2}, ISR: []int32{2}}
	if err := p.Follow(st, time.Now()); err != nil {
		t.Fatal(err)
	}
	client := peer.New(testLog(t), peer.Config{BrokerID: 1, Listener: "PLAINTEXT"})
	defer client.Close()
	noted, waiting := make(chan struct{}), make(chan struct{})
	fs := newFetchers(testLog(t), client, 1, peer.FetchConfig{Epoch: func() int64 { return 1 }, Timeout: time.Second}, replica.FetcherConfig{},
		func(ctx context.Context) {
			close(waiting)
			select {
			case <-noted:
			case <-ctx.Done():
			}
		}, time.Now)
	defer fs.stop()
	at := l.Addr().(*net.TCPAddr)
	im := cluster.NewImage("c", []cluster.Broker{{ID: 2, Epoch: 1, Endpoints: []cluster.Endpoint{{Listener: "PLAINTEXT", Host: "127.0.0.1", Port: int32(at.Port)}}}})
	fs.follow(im, []*replica.Partition{p})
	<-waiting
	select {
	case <-asked:
		t.Fatal("it fetches")
	default:
	}
	close(noted)
	select {
	case <-asked:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not fetch")
	}
}

// Both what the store remembers and what the directory does must be settled.
func TestSettledIsBoth(t *testing.T) {
	member := cluster.NewMember(testLog(t), cluster.NewMemory().Open(), nil, cluster.MemberConfig{})
	b := &Broker{member: member, noted: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		b.awaitSettled(ctx)
		close(done)
	}()
	close(b.noted)
	select {
	case <-done:
		t.Error("settled although nothing was decided")
	default:
	}
	cancel()
	<-done
}
