package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
)

// FetchConfig says how a follower's requests wait.
type FetchConfig struct {
	// Epoch is the follower's present registration, which each fetch names (KIP-903).
	Epoch func() int64
	// BytesMin is what a fetch waits for, for WaitMax (replica.fetch.min.bytes,
	// replica.fetch.wait.max.ms).
	BytesMin int
	WaitMax  time.Duration
	// Timeout bounds the wait for an answer beyond WaitMax (replica.socket.timeout.ms).
	Timeout time.Duration
}

// FetchConn carries the fetches of one fetcher to its leader, over one
// connection and one session (KIP-227): each request names only what changed
// since the one before. It is not safe for concurrent use, but for Close.
type FetchConn struct {
	c    *Client
	cfg  FetchConfig
	to   cluster.Broker
	conn *conn

	session fetchSession
}

// fetchSession is what the leader knows from earlier requests.
type fetchSession struct {
	id, epoch int32
	known     map[partitionKey]askedPartition
}

// askedPartition is what a request says of a partition.
type askedPartition struct {
	leaderEpoch, lastEpoch, maxBytes int32
	offset, logStart                 int64
	seen                             int32 // the session epoch of the last request that had it
}

const (
	fetchVersion = 17
	// sessionFull is the epoch of a request that names all its partitions and
	// begins a session.
	sessionFull = 0
)

// Fetcher returns a connection for fetches from a leader. It is made at the
// first fetch.
func (c *Client) Fetcher(to cluster.Broker, cfg FetchConfig) *FetchConn {
	return &FetchConn{c: c, cfg: cfg, to: to}
}

// Close ends the connection.
func (f *FetchConn) Close() {
	if f.conn != nil {
		_ = f.conn.Close()
		f.conn = nil
	}
	f.session = fetchSession{}
}

// Fetch sends a request and returns the answer, whose records are valid until
// the next call. After an error the next call begins with a new connection.
func (f *FetchConn) Fetch(ctx context.Context, req *replica.FetchRequest) (*replica.FetchResponse, error) {
	resp, err := f.fetch(ctx, req)
	if errors.Is(err, errNoSession) {
		f.session = fetchSession{}
		resp, err = f.fetch(ctx, req)
	}
	if err != nil {
		f.Close()
		host, port := f.to.At(f.c.cfg.Listener)
		return nil, fmt.Errorf("fetch from broker %d at %s:%d: %w", f.to.ID, host, port, err)
	}
	return resp, nil
}

// errNoSession says that the leader does not go on with the session.
var errNoSession = errors.New("fetch session is gone")

func (f *FetchConn) fetch(ctx context.Context, req *replica.FetchRequest) (*replica.FetchResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.WaitMax+f.cfg.Timeout)
	defer cancel()
	if err := f.connect(ctx); err != nil {
		return nil, err
	}
	resp, err := f.conn.roundTrip(ctx, f.request(req))
	if err != nil {
		return nil, err
	}
	answer, ok := resp.(*kmsg.FetchResponse)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errMalformed, resp)
	}
	switch answer.ErrorCode {
	case 0:
	case kerr.FetchSessionIDNotFound.Code, kerr.InvalidFetchSessionEpoch.Code, kerr.FetchSessionTopicIDError.Code:
		return nil, errNoSession
	default:
		return nil, kerr.ErrorForCode(answer.ErrorCode)
	}
	f.session.answered(answer.SessionID)
	return readFetched(answer), nil
}

func (f *FetchConn) connect(ctx context.Context) error {
	if f.conn != nil {
		return nil
	}
	c, err := f.c.dial(ctx, f.to)
	if err != nil {
		return err
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok && f.c.cfg.SocketReceiveBytes > 0 {
		_ = tcp.SetReadBuffer(f.c.cfg.SocketReceiveBytes) // a matter of speed only
	}
	f.conn, f.session = c, fetchSession{}
	return nil
}

func (f *FetchConn) request(req *replica.FetchRequest) *kmsg.FetchRequest {
	out := kmsg.NewPtrFetchRequest()
	out.Version = fetchVersion
	out.ReplicaState.ID, out.ReplicaState.Epoch = f.c.cfg.BrokerID, f.cfg.Epoch()
	out.MaxWaitMillis, out.MinBytes, out.MaxBytes = int32(f.cfg.WaitMax.Milliseconds()), int32(f.cfg.BytesMin), int32(req.MaxBytes)
	f.session.fill(out, req)
	return out
}

// fill names the partitions that the leader does not know so, and forgets those
// that are no more asked for.
func (s *fetchSession) fill(out *kmsg.FetchRequest, req *replica.FetchRequest) {
	out.SessionID, out.SessionEpoch = s.id, s.epoch
	if s.epoch == sessionFull {
		s.known = make(map[partitionKey]askedPartition, len(req.Partitions))
	}
	topics := grouped{}
	for i := range req.Partitions {
		q := &req.Partitions[i]
		key := partitionKey{q.Partition.TopicID(), q.Partition.Index()}
		now := askedPartition{q.LeaderEpoch, q.LastEpoch, int32(q.MaxBytes), q.Offset, q.LogStart, s.epoch}
		was, known := s.known[key]
		s.known[key] = now
		if was.seen = s.epoch; known && was == now {
			continue
		}
		at := topics.at(key.id, len(out.Topics), func() {
			t := kmsg.NewFetchRequestTopic()
			t.TopicID = key.id
			out.Topics = append(out.Topics, t)
		})
		out.Topics[at].Partitions = append(out.Topics[at].Partitions, now.encode(key.index))
	}
	if len(s.known) > len(req.Partitions) {
		s.forget(out)
	}
}

func (a askedPartition) encode(index int32) kmsg.FetchRequestTopicPartition {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.LastFetchedEpoch = index, a.leaderEpoch, a.lastEpoch
	p.FetchOffset, p.LogStartOffset, p.PartitionMaxBytes = a.offset, a.logStart, a.maxBytes
	return p
}

// forget names the partitions that were asked for before and are not now.
func (s *fetchSession) forget(out *kmsg.FetchRequest) {
	topics := grouped{}
	for key, asked := range s.known {
		if asked.seen == s.epoch {
			continue
		}
		delete(s.known, key)
		at := topics.at(key.id, len(out.ForgottenTopics), func() {
			t := kmsg.NewFetchRequestForgottenTopic()
			t.TopicID = key.id
			out.ForgottenTopics = append(out.ForgottenTopics, t)
		})
		out.ForgottenTopics[at].Partitions = append(out.ForgottenTopics[at].Partitions, key.index)
	}
}

// answered goes on with the session that the leader named, 0 for none.
func (s *fetchSession) answered(id int32) {
	switch {
	case id == 0:
		*s = fetchSession{}
	case s.epoch == 1<<31-1:
		s.id, s.epoch = id, 1
	default:
		s.id, s.epoch = id, s.epoch+1
	}
}

func readFetched(answer *kmsg.FetchResponse) *replica.FetchResponse {
	out := &replica.FetchResponse{}
	for i := range answer.Topics {
		t := &answer.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			got := replica.FetchedPartition{
				TopicID: t.TopicID, Partition: p.Partition, Err: fetchError(p.ErrorCode),
				HighWatermark: p.HighWatermark, LogStart: p.LogStartOffset, Records: p.RecordBatches,
			}
			if d := p.DivergingEpoch; d.EndOffset >= 0 {
				got.Diverging = &replica.EpochEnd{Epoch: d.Epoch, End: d.EndOffset}
			}
			out.Partitions = append(out.Partitions, got)
		}
	}
	return out
}

// fetchErrors are what a leader says to a fetch.
var fetchErrors = []struct {
	err  error
	code *kerr.Error
}{
	{replica.ErrNotLeader, kerr.NotLeaderForPartition},
	{replica.ErrFencedEpoch, kerr.FencedLeaderEpoch},
	{replica.ErrUnknownEpoch, kerr.UnknownLeaderEpoch},
	{replica.ErrStaleBrokerEpoch, kerr.StaleBrokerEpoch},
	{replica.ErrDeleted, kerr.UnknownTopicOrPartition},
	{replica.ErrDeleted, kerr.UnknownTopicID},
	{replica.ErrOffline, kerr.KafkaStorageError},
	{replica.ErrOffsetOutOfRange, kerr.OffsetOutOfRange},
}

func fetchError(code int16) error {
	if code == 0 {
		return nil
	}
	for _, e := range fetchErrors {
		if e.code.Code == code {
			return e.err
		}
	}
	return kerr.ErrorForCode(code)
}
