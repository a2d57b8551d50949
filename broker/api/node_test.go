package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
	"github.com/sluice-io/sluice/internal/record"
	"github.com/sluice-io/sluice/internal/testenv"
)

// node is a broker's data path over real logs and a real server.
type node struct {
	t          testing.TB
	dir        string
	addr       string
	api        *API
	srv        *server.Server
	partitions *replica.Partitions
	clock      *fakeClock
	log        *testenv.Buffer

	mu    sync.Mutex
	image *cluster.Image
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), partitions: new(replica.Partitions), clock: newFakeClock(), log: new(testenv.Buffer)}
	n.image = cluster.NewImage("test-cluster", []cluster.Broker{{ID: 1, Host: "one", Port: 9092}, {ID: 2, Host: "two", Port: 9093, Rack: "r"}})
	log := slog.New(slog.NewTextHandler(n.log, nil))
	n.api = New(Deps{
		Log:        log,
		Image:      n.currentImage,
		Partitions: n.partitions,
		Now:        n.clock.now,
		AfterFunc:  n.clock.afterFunc,
	}, Config{BrokerID: 1})
	n.srv = server.New(log, nil, server.Config{
		ListenAddrs: []string{"127.0.0.1:0"},
		Check:       n.api.Check, Flexible: n.api.Flexible, APIName: Name,
		Sums: Sums, PieceBytes: record.PieceBytes, PieceSum: record.PieceSum,
	}, n.api)
	addrs, err := n.srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	n.addr = addrs[0].String()
	n.srv.Serve()
	t.Cleanup(n.stop)
	return n
}

func (n *node) stop() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = n.srv.Shutdown(ctx) // the context has ended: connections are cut
	for _, p := range n.partitions.All() {
		p.Log().Abort()
	}
}

func (n *node) currentImage() *cluster.Image {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.image
}

// topicOptions are what a test's topic differs in. The zero value has Kafka's
// defaults, is led in epoch 3 and has its high watermark at the log end.
type topicOptions struct {
	partitions int
	config     func(*replica.TopicConfig)
	log        commitlog.Config
	groupFsync bool
	elsewhere  bool // led by broker 2, no partition here
}

func topicID(name string) (id cluster.TopicID) {
	copy(id[:], name+"................")
	return id
}

// topic makes a topic and returns its partitions.
func (n *node) topic(name string, opt topicOptions) []*replica.Partition {
	n.t.Helper()
	opt.partitions = max(opt.partitions, 1)
	topic := &cluster.Topic{Name: name, ID: topicID(name)}
	var parts []*replica.Partition
	for i := range opt.partitions {
		leader := int32(1)
		if opt.elsewhere {
			leader = 2
		} else {
			parts = append(parts, n.partition(name, int32(i), opt))
		}
		topic.Partitions = append(topic.Partitions, cluster.Partition{Leader: leader, LeaderEpoch: 3, Replicas: []int32{leader}, ISR: []int32{leader}})
	}
	n.mu.Lock()
	n.image = n.image.With(topic)
	n.mu.Unlock()
	n.partitions.Add(parts...)
	return parts
}

func (n *node) partition(topic string, index int32, opt topicOptions) *replica.Partition {
	n.t.Helper()
	l, _, err := commitlog.Open(commitlog.OSFS{}, filepath.Join(n.dir, commitlog.DirName(topic, index)), opt.log,
		commitlog.OpenOptions{Now: n.clock.now()})
	if err != nil {
		n.t.Fatal(err)
	}
	cfg := replica.DefaultTopicConfig()
	if opt.config != nil {
		opt.config(&cfg)
	}
	p := replica.New(l, replica.Options{
		Topic: topic, TopicID: topicID(topic), Partition: index, BrokerID: 1,
		GroupFsync: opt.groupFsync, Notify: func(*replica.Partition) {},
	}, cfg)
	if err := p.Lead(ledHere(3), n.clock.now()); err != nil {
		n.t.Fatal(err)
	}
	return p
}

// ledHere is the state of a partition that has its only replica here.
func ledHere(epoch int32) cluster.Partition {
	return cluster.Partition{Leader: 1, LeaderEpoch: epoch, Replicas: []int32{1}, ISR: []int32{1}}
}

// fakeClock is a clock that the test moves.
type fakeClock struct {
	mu     sync.Mutex
	at     time.Time
	timers map[*fakeTimer]struct{}
}

type fakeTimer struct {
	due time.Time
	fn  func()
}

func newFakeClock() *fakeClock {
	return &fakeClock{at: time.UnixMilli(1_700_000_000_000), timers: map[*fakeTimer]struct{}{}}
}

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *fakeClock) afterFunc(d time.Duration, fn func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &fakeTimer{due: c.at.Add(d), fn: fn}
	c.timers[t] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, waiting := c.timers[t]
		delete(c.timers, t)
		return waiting
	}
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	c.at = c.at.Add(d)
	for t := range c.timers {
		if !t.due.After(c.at) {
			delete(c.timers, t)
			go t.fn()
		}
	}
	c.mu.Unlock()
}

// waiting is how many timers run: one for each request that waits.
func (c *fakeClock) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// wire is a raw client.
type wire struct {
	t testing.TB
	net.Conn
	correlation int32
}

func (n *node) dial() *wire {
	n.t.Helper()
	c, err := net.Dial("tcp", n.addr)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		n.t.Fatal(err)
	}
	return &wire{t: n.t, Conn: c}
}

func encodeRequest(req kmsg.Request, correlation int32) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("test")).AppendRequest(nil, req, correlation)
}

// send sends a request and returns its correlation id.
func (w *wire) send(req kmsg.Request) int32 {
	w.t.Helper()
	w.correlation++
	if _, err := w.Write(encodeRequest(req, w.correlation)); err != nil {
		w.t.Fatal(err)
	}
	return w.correlation
}

// receive reads the answer to a request.
func (w *wire) receive(req kmsg.Request, correlation int32) kmsg.Response {
	w.t.Helper()
	b := w.receiveBytes()
	if got := int32(binary.BigEndian.Uint32(b)); got != correlation {
		w.t.Fatalf("answer to request %d, want %d", got, correlation)
	}
	b = b[4:]
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if resp.IsFlexible() && req.Key() != keyApiVersions {
		if b[0] != 0 {
			w.t.Fatalf("%d tagged fields in the response header", b[0])
		}
		b = b[1:]
	}
	if err := resp.ReadFrom(b); err != nil {
		w.t.Fatalf("decode %s version %d: %v", Name(req.Key()), req.GetVersion(), err)
	}
	// Encoded again it must be the same: nothing is left over or malformed.
	if again := resp.AppendTo(nil); !bytes.Equal(again, b) {
		w.t.Fatalf("%s version %d: answer of %d bytes encodes to %d:\n%x\n%x", Name(req.Key()), req.GetVersion(), len(b), len(again), b, again)
	}
	return resp
}

// receiveBytes reads a frame and returns what follows its size.
func (w *wire) receiveBytes() []byte {
	w.t.Helper()
	size := make([]byte, 4)
	if _, err := io.ReadFull(w, size); err != nil {
		w.t.Fatalf("read answer: %v", err)
	}
	b := make([]byte, binary.BigEndian.Uint32(size))
	if _, err := io.ReadFull(w, b); err != nil {
		w.t.Fatalf("read answer: %v", err)
	}
	return b
}

// ask sends a request and reads its answer.
func (w *wire) ask(req kmsg.Request) kmsg.Response {
	w.t.Helper()
	return w.receive(req, w.send(req))
}

func (w *wire) expectClosed() {
	w.t.Helper()
	n, err := io.Copy(io.Discard, w)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		w.t.Fatal("the connection was not closed")
	}
	if n > 0 {
		w.t.Fatalf("%d bytes before the connection was closed", n)
	}
}

// batchOf builds a batch of records with these values, their keys "k".
func (n *node) batchOf(opts record.BuildOptions, values ...string) record.Batch {
	n.t.Helper()
	var b record.Builder
	for _, v := range values {
		b.Append(n.clock.now().UnixMilli(), []byte("k"), []byte(v), nil)
	}
	return n.build(&b, opts)
}

func (n *node) build(b *record.Builder, opts record.BuildOptions) record.Batch {
	n.t.Helper()
	batch, err := b.Build(opts, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	return batch
}

// produceTo makes a request for one partition.
func produceTo(topic string, partition int32, version int16, records []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, acksLeader, 30_000
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.TopicID = topic, topicID(topic)
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, records
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// produce sends a batch to partition 0 and returns the answer for it.
func (w *wire) produce(topic string, version int16, records []byte) kmsg.ProduceResponseTopicPartition {
	w.t.Helper()
	return onlyProduced(w.t, w.ask(produceTo(topic, 0, version, records)))
}

func onlyProduced(t testing.TB, resp kmsg.Response) kmsg.ProduceResponseTopicPartition {
	t.Helper()
	r := resp.(*kmsg.ProduceResponse)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		t.Fatalf("answer for other than one partition: %+v", r)
	}
	return r.Topics[0].Partitions[0]
}

// fetchFrom makes a request for one partition that does not wait.
func fetchFrom(topic string, partition int32, version int16, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MinBytes = version, 1<<20, 1
	req.SessionEpoch = sessionFinal
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topic, topicID(topic)
	t.Partitions = append(t.Partitions, fetchPartition(partition, offset))
	req.Topics = append(req.Topics, t)
	return req
}

func fetchPartition(partition int32, offset int64) kmsg.FetchRequestTopicPartition {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, offset, 1<<20
	return p
}

func onlyFetched(t testing.TB, resp kmsg.Response) kmsg.FetchResponseTopicPartition {
	t.Helper()
	r := resp.(*kmsg.FetchResponse)
	if r.ErrorCode != 0 || r.SessionID != 0 || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		t.Fatalf("answer for other than one partition: %+v", r)
	}
	return r.Topics[0].Partitions[0]
}

func (w *wire) fetch(topic string, version int16, offset int64) kmsg.FetchResponseTopicPartition {
	w.t.Helper()
	return onlyFetched(w.t, w.ask(fetchFrom(topic, 0, version, offset)))
}

// valuesOf returns the values of all records of a fetched partition.
func valuesOf(t testing.TB, batches []byte) (values []string) {
	t.Helper()
	for len(batches) > 0 {
		batch, rest, err := record.Next(batches)
		if err != nil {
			t.Fatal(err)
		}
		if err := batch.CheckCRC(); err != nil {
			t.Fatal(err)
		}
		err = batch.Each(record.NewDecompressor(0), func(r *record.Record) error {
			values = append(values, string(r.Value))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		batches = rest
	}
	return values
}

// waitFor polls for what another goroutine is about to do.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
		runtime.Gosched()
	}
}

// leads makes a broker lead a partition, as far as the picture of the cluster goes.
func (n *node) leads(topic string, partition int, leader, epoch int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := *n.image.Topic(topic)
	t.Partitions = slices.Clone(t.Partitions)
	t.Partitions[partition].Leader, t.Partitions[partition].LeaderEpoch = leader, epoch
	n.image = n.image.With(&t)
}
