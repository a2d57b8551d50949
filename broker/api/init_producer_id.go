package api

// InitProducerId, versions 0 to 5.
//
//	2  flexible
//	3  the producer's current id and epoch (KIP-360)
//	4  PRODUCER_FENCED may be answered
//	5  TRANSACTION_ABORTABLE may be answered
//
// A producer without a transactional id always gets a new id, as in Kafka.
// There are no transactions, so a transactional id is refused.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/server"
)

// producerIDsTimeout limits the wait for a block of producer ids.
const producerIDsTimeout = 10 * time.Second

func initProducerID(a *API, r *server.Request, req *kmsg.InitProducerIDRequest) kmsg.Response {
	resp := kmsg.NewPtrInitProducerIDResponse()
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if resp.ErrorCode = checkInitProducerID(req); resp.ErrorCode != 0 {
		return resp
	}
	id, err := a.producers.next(a.ProducerIDs)
	if err != nil {
		a.Log.Warn("no producer id", "remote", r.Conn.RemoteAddr(), "error", err)
		// The client tries again, as with a coordinator that is being elected.
		resp.ErrorCode = kerr.CoordinatorNotAvailable.Code
		return resp
	}
	resp.ProducerID, resp.ProducerEpoch = id, 0
	return resp
}

func checkInitProducerID(req *kmsg.InitProducerIDRequest) int16 {
	switch {
	case req.TransactionalID != nil && *req.TransactionalID == "":
		return kerr.InvalidRequest.Code
	case req.TransactionalID != nil:
		return kerr.UnsupportedVersion.Code
	case req.Version >= 3 && (req.ProducerID == -1) != (req.ProducerEpoch == -1):
		return kerr.InvalidRequest.Code
	}
	return 0
}

// producerIDs hands out producer ids of blocks that it takes for
// this broker. It is safe for concurrent use.
type producerIDs struct {
	mu        sync.Mutex // held while a block is taken
	free, end int64      // the ids from free up to, not including, end are left
}

func (p *producerIDs) next(take func(context.Context) (int64, int64, error)) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == p.end {
		ctx, cancel := context.WithTimeout(context.Background(), producerIDsTimeout)
		defer cancel()
		first, count, err := take(ctx)
		if err != nil {
			return 0, fmt.Errorf("take a block of producer ids: %w", err)
		}
		p.free, p.end = first, first+count
	}
	id := p.free
	p.free++
	return id, nil
}
