package producer

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/quickio"
)

// pieces has produce requests written to their connections straight from where their batches are: the client's own way is to copy them
// into a buffer of the whole request first, which costs memory for each request on its way. A request is appended without its batches, and
// noted by the buffer that it was appended to; the connection puts them in when it is given that buffer. Safe for concurrent use.
type pieces struct {
	connect func(ctx context.Context, network, addr string) (net.Conn, error)

	mu  sync.Mutex
	cut map[*byte]pieced // guarded by mu: requests that are appended and not written
}

// pieced is a request whose batches are missing in its buffer. Buffers are used again, by other requests.
type pieced struct {
	request *orderedProduce
	places  []piecePlace
}

// piecePlace is a batch and where it belongs in a request.
type piecePlace struct {
	at   int
	data []byte
}

func newPieces(connect func(ctx context.Context, network, addr string) (net.Conn, error)) *pieces {
	return &pieces{connect: connect, cut: map[*byte]pieced{}}
}

// note keeps what belongs into a request.
func (p *pieces) note(first *byte, of *orderedProduce, places []piecePlace) {
	p.mu.Lock()
	p.cut[first] = pieced{of, places}
	p.mu.Unlock()
}

// take returns what belongs into the request of a buffer, once.
func (p *pieces) take(first *byte) []piecePlace {
	p.mu.Lock()
	defer p.mu.Unlock()
	places := p.cut[first].places
	delete(p.cut, first)
	return places
}

// forget lets go of the batches of a request that was not written.
func (p *pieces) forget(first *byte, of *orderedProduce) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut[first].request == of {
		delete(p.cut, first)
	}
}

// dial makes connections that put batches in.
func (p *pieces) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := p.connect(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &piecedConn{Socket: quickio.NewSocket(conn), pieces: p}, nil
}

// piecedConn is a connection to a broker.
type piecedConn struct {
	*quickio.Socket
	pieces *pieces
}

// Write implements net.Conn. Of a request with batches it says that the whole buffer was written only when they were, too.
func (c *piecedConn) Write(request []byte) (int, error) {
	if len(request) == 0 {
		return c.Socket.Write(request)
	}
	places := c.pieces.take(&request[0])
	if len(places) == 0 {
		return c.Socket.Write(request)
	}
	whole := len(request) - requestLengthBytes
	parts := make(net.Buffers, 0, 2*len(places)+1)
	from := 0
	for _, x := range places {
		parts = append(parts, request[from:x.at], x.data)
		from, whole = x.at, whole+len(x.data)
	}
	parts = append(parts, request[from:])
	binary.BigEndian.PutUint32(request, uint32(whole))
	if n, err := c.WriteParts(parts); err != nil {
		return int(min(n, int64(len(request)-1))), err
	}
	return len(request), nil
}

// requestLengthBytes are those before a request that say how long it is.
const requestLengthBytes = 4

// The versions of the produce request that changed its form.
const (
	produceFlexible = 9
	produceTopicIDs = 13
)

// appendPieced appends a produce request without its batches' bytes, and returns where they belong.
func appendPieced(dst []byte, req *kmsg.ProduceRequest) ([]byte, []piecePlace) {
	flexible := req.Version >= produceFlexible
	if flexible {
		dst = append(dst, 0) // no transaction
	} else {
		dst = append(dst, 0xff, 0xff)
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(req.Acks))
	dst = binary.BigEndian.AppendUint32(dst, uint32(req.TimeoutMillis))
	dst = appendCount(dst, len(req.Topics), flexible)
	var places []piecePlace
	for i := range req.Topics {
		t := &req.Topics[i]
		dst = appendTopic(dst, t, req.Version)
		dst = appendCount(dst, len(t.Partitions), flexible)
		for j := range t.Partitions {
			p := &t.Partitions[j]
			dst = binary.BigEndian.AppendUint32(dst, uint32(p.Partition))
			dst = appendCount(dst, len(p.Records), flexible)
			places = append(places, piecePlace{at: len(dst), data: p.Records})
			dst = appendNoTags(dst, flexible)
		}
		dst = appendNoTags(dst, flexible)
	}
	return appendNoTags(dst, flexible), places
}

func appendTopic(dst []byte, t *kmsg.ProduceRequestTopic, version int16) []byte {
	switch {
	case version >= produceTopicIDs:
		return append(dst, t.TopicID[:]...)
	case version >= produceFlexible:
		dst = binary.AppendUvarint(dst, uint64(len(t.Topic)+1))
	default:
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(t.Topic)))
	}
	return append(dst, t.Topic...)
}

// appendCount appends the length of an array or of bytes.
func appendCount(dst []byte, n int, flexible bool) []byte {
	if flexible {
		return binary.AppendUvarint(dst, uint64(n+1))
	}
	return binary.BigEndian.AppendUint32(dst, uint32(n))
}

func appendNoTags(dst []byte, flexible bool) []byte {
	if flexible {
		return append(dst, 0)
	}
	return dst
}
