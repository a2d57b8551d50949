package producer

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestPiecedRequests compares what a connection is written with what the client would have written, in every version that carries batches
// of format 2.
func TestPiecedRequests(t *testing.T) {
	for version := int16(3); version <= kmsg.NewPtrProduceRequest().MaxVersion(); version++ {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis = version, -1, produceTimeout
		for i, name := range []string{"a", "another"} {
			topic := kmsg.NewProduceRequestTopic()
			topic.Topic, topic.TopicID = name, [16]byte{1, byte(i)}
			for partition := range int32(3) {
				p := kmsg.NewProduceRequestTopicPartition()
				p.Partition, p.Records = partition, bytes.Repeat([]byte{byte('a' + i)}, int(partition)*70_000+1)
				topic.Partitions = append(topic.Partitions, p)
			}
			req.Topics = append(req.Topics, topic)
		}
		format := kmsg.NewRequestFormatter(kmsg.FormatterClientID("test"))
		want := format.AppendRequest(nil, req, 7)

		x := newPieces((&net.Dialer{}).DialContext)
		r := &orderedProduce{ProduceRequest: req, written: make(chan struct{}), pieces: x}
		short := format.AppendRequest(make([]byte, 0, 16), r, 7)
		if len(short) > 1000 {
			t.Errorf("version %d: the request has its batches copied, %d bytes", version, len(short))
		}
		if got := sent(t, x, short); !bytes.Equal(got, want) {
			t.Errorf("version %d: %d bytes differ from the client's %d", version, len(got), len(want))
		}
		if len(x.cut) != 0 {
			t.Errorf("version %d: a written request is still kept", version)
		}
	}
}

// sent is what arrives of a request at the other end of a real connection.
func sent(t *testing.T, x *pieces, request []byte) []byte {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := x.dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() {
		defer conn.Close()
		if n, err := conn.Write(request); n != len(request) || err != nil {
			t.Errorf("wrote %d of %d bytes: %v", n, len(request), err)
		}
	})
	got, err := io.ReadAll(other)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestPiecesOfUnwrittenRequests: a request that never got to its connection keeps no batch alive.
func TestPiecesOfUnwrittenRequests(t *testing.T) {
	req := kmsg.NewPtrProduceRequest()
	req.Version = 9
	topic := kmsg.NewProduceRequestTopic()
	topic.Partitions = append(topic.Partitions, kmsg.NewProduceRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	x := newPieces((&net.Dialer{}).DialContext)
	r := &orderedProduce{ProduceRequest: req, written: make(chan struct{}), pieces: x}
	buffer := r.AppendTo(make([]byte, 4, 1000))
	r.forget()
	if len(x.cut) != 0 {
		t.Error("it is still kept")
	}
	next := &orderedProduce{ProduceRequest: req, written: make(chan struct{}), pieces: x}
	next.AppendTo(buffer[:4])
	r.forget() // its answer comes when another request has its buffer
	if len(x.cut) != 1 {
		t.Error("the batches of the next request in the buffer are gone")
	}
}
