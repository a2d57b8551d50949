package producer

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// AnyBroker is given to Ask where it does not matter which broker answers.
const AnyBroker int32 = -1

// Transport carries a sender's requests to brokers.
type Transport interface {
	// Ask sends a request that is not a produce, and waits for its answer.
	Ask(broker int32, req kmsg.Request) (kmsg.Response, error)
	// Produce sends a request after those that were given before for the same broker. It does not wait; the answer is given to then, once,
	// on any goroutine.
	Produce(broker int32, req *kmsg.ProduceRequest, then func(kmsg.Response, error))
	// Go has f run, which asks, and does not wait for it.
	Go(f func())
}

// clientTransport is a transport over franz-go's connections. Produce is for one goroutine.
type clientTransport struct {
	client *kgo.Client
	ctx    context.Context // ends with close
	cancel context.CancelFunc
	calls  sync.WaitGroup
	before map[int32]chan struct{} // by broker: closed when the last request is written
	pieces *pieces                 // of the client's connections; nil when these are encrypted
}

func newClientTransport(client *kgo.Client, p *pieces) *clientTransport {
	t := &clientTransport{client: client, before: map[int32]chan struct{}{}, pieces: p}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// close ends what is under way. Nothing may be asked any more.
func (t *clientTransport) close() {
	t.cancel()
	t.client.Close()
	t.calls.Wait()
}

// Go implements Transport.
func (t *clientTransport) Go(f func()) { t.calls.Go(f) }

// Ask implements Transport.
func (t *clientTransport) Ask(broker int32, req kmsg.Request) (kmsg.Response, error) {
	if broker == AnyBroker {
		return t.client.Request(t.ctx, req)
	}
	return t.client.Broker(int(broker)).Request(t.ctx, req)
}

// Produce implements Transport.
func (t *clientTransport) Produce(broker int32, req *kmsg.ProduceRequest, then func(kmsg.Response, error)) {
	r := &orderedProduce{ProduceRequest: req, written: make(chan struct{}), pieces: t.pieces}
	before := t.before[broker]
	t.before[broker] = r.written
	t.calls.Go(func() {
		if before != nil {
			<-before
		}
		resp, err := t.client.Broker(int(broker)).Request(t.ctx, r)
		r.passed()
		r.forget()
		then(resp, err)
	})
}

// orderedProduce tells when it is written to its connection: the next one to the same broker may follow from then on.
type orderedProduce struct {
	*kmsg.ProduceRequest
	written chan struct{}
	once    sync.Once

	pieces *pieces
	first  atomic.Pointer[byte] // of the buffer that it was appended to without its batches
}

// AppendTo implements kmsg.Request. The client calls it when it is this request's turn on the connection.
func (r *orderedProduce) AppendTo(dst []byte) []byte {
	if r.pieces == nil {
		dst = r.ProduceRequest.AppendTo(dst)
	} else {
		var places []piecePlace
		dst, places = appendPieced(dst, r.ProduceRequest)
		r.first.Store(&dst[0])
		r.pieces.note(&dst[0], r, places)
	}
	r.passed()
	return dst
}

// forget lets go of batches that were not written.
func (r *orderedProduce) forget() {
	if first := r.first.Load(); first != nil {
		r.pieces.forget(first, r)
	}
}

func (r *orderedProduce) passed() { r.once.Do(func() { close(r.written) }) }
