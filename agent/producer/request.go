package producer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/record"
)

const (
	// requestBytesMax bounds a produce request, unless one batch is larger.
	requestBytesMax = 8 << 20
	// produceTimeout is how long the broker waits for its replicas.
	produceTimeout = 10_000 // ms
	// readBackBytes is how much of a log is asked for at a time.
	readBackBytes = 4 << 20
)

// outgoing is a produce request on its way: the batches of several partitions of one leader, one of each.
type outgoing struct {
	*kmsg.ProduceRequest
	leader  int32
	batches []*Batch
	lanes   []*lane
	bytes   int
}

func newOutgoing(leader int32) *outgoing {
	r := &outgoing{ProduceRequest: kmsg.NewPtrProduceRequest(), leader: leader}
	r.Acks, r.TimeoutMillis = -1, produceTimeout
	return r
}

// takes says whether a batch may go with the request.
func (r *outgoing) takes(l *lane, b *Batch) bool {
	if r.bytes > 0 && r.bytes+b.Size > requestBytesMax {
		return false
	}
	for _, x := range r.lanes {
		if x == l {
			return false
		}
	}
	return true
}

func (r *outgoing) add(l *lane, b *Batch) {
	r.batches, r.lanes, r.bytes = append(r.batches, b), append(r.lanes, l), r.bytes+b.Size
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = b.Partition, b.Data
	for i := range r.Topics {
		if t := &r.Topics[i]; t.Topic == b.Topic && t.TopicID == b.TopicID {
			t.Partitions = append(t.Partitions, p)
			return
		}
	}
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.TopicID, t.Partitions = b.Topic, b.TopicID, append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
}

// answer is what a produce request got for one batch.
type answer struct {
	verdict verdict
	refusal *refusal
	base    int64
	err     error
	stale   bool // the leader is to be looked for again
}

// answers sorts a response by the request's batches.
func (r *outgoing) answers(resp kmsg.Response, err error) []answer {
	out := make([]answer, len(r.batches))
	if err != nil {
		for i := range out {
			out[i] = answer{verdict: lost, err: err, stale: true}
		}
		return out
	}
	got := resp.(*kmsg.ProduceResponse)
	for i, b := range r.batches {
		if p := find(got, b); p != nil {
			out[i] = judge(p)
		} else {
			out[i] = answer{verdict: lost, err: errors.New("the response has no word on the partition"), stale: true}
		}
	}
	return out
}

func find(resp *kmsg.ProduceResponse, b *Batch) *kmsg.ProduceResponseTopicPartition {
	for i := range resp.Topics {
		t := &resp.Topics[i]
		if t.Topic != b.Topic && (t.Topic != "" || t.TopicID != b.TopicID) {
			continue
		}
		for j := range t.Partitions {
			if t.Partitions[j].Partition == b.Partition {
				return &t.Partitions[j]
			}
		}
	}
	return nil
}

// judge says what an answer means for a batch.
func judge(p *kmsg.ProduceResponseTopicPartition) answer {
	err := kerr.ErrorForCode(p.ErrorCode)
	if err == nil {
		return answer{verdict: stored, base: p.BaseOffset}
	}
	if p.ErrorMessage != nil && *p.ErrorMessage != "" {
		err = fmt.Errorf("%w (%s)", err, *p.ErrorMessage)
	}
	a := answer{verdict: lost, err: err, stale: true}
	switch {
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		a.verdict, a.refusal, a.stale = refused, &refusal{err: err, tooLarge: true}, false
	case errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.InvalidTimestamp), errors.Is(err, kerr.UnsupportedCompressionType):
		a.verdict, a.refusal, a.stale = refused, &refusal{err: err, records: badRecords(p)}, false
	case errors.Is(err, kerr.OutOfOrderSequenceNumber), errors.Is(err, kerr.UnknownProducerID), errors.Is(err, kerr.InvalidProducerEpoch),
		errors.Is(err, kerr.DuplicateSequenceNumber), errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerIDMapping):
		a.verdict = outOfOrder
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.InconsistentTopicID),
		errors.Is(err, kerr.NotLeaderForPartition), errors.Is(err, kerr.LeaderNotAvailable), errors.Is(err, kerr.NotEnoughReplicas),
		errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed), errors.Is(err, kerr.PolicyViolation):
		a.verdict = unstored
	}
	return a
}

func badRecords(p *kmsg.ProduceResponseTopicPartition) (out []int) {
	for _, r := range p.ErrorRecords {
		out = append(out, int(r.RelativeOffset))
	}
	return out
}

// send sends a request, and has the answers taken.
func (s *Sender) send(r *outgoing) {
	s.transport.Produce(r.leader, r.ProduceRequest, func(resp kmsg.Response, err error) {
		answers := r.answers(resp, err)
		s.post(func(now time.Time) { s.tookAnswers(r, answers, now) })
	})
}

// askFloor asks for the end of a partition.
func (s *Sender) askFloor(l *lane, leader int32) (int64, error) {
	return s.listOffset(l, leader, endOffset, "end")
}

// The timestamps by which ListOffsets asks for the ends of a log.
const (
	endOffset   int64 = -1
	startOffset int64 = -2
)

func (s *Sender) listOffset(l *lane, leader int32, timestamp int64, what string) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = l.key.name
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.Timestamp = l.key.partition, -1, timestamp
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := ask[*kmsg.ListOffsetsResponse](s.transport, leader, req)
	if err != nil {
		return 0, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, errors.New("no word on the partition's " + what)
	}
	got := resp.Topics[0].Partitions[0]
	return got.Offset, kerr.ErrorForCode(got.ErrorCode)
}

func ask[R kmsg.Response](t Transport, broker int32, req kmsg.Request) (R, error) {
	resp, err := t.Ask(broker, req)
	if err != nil {
		var none R
		return none, err
	}
	return resp.(R), nil
}

// askState asks what a partition has of a producer.
func (s *Sender) askState(l *lane, leader int32, of identity) (present bool, last int32, err error) {
	req := kmsg.NewPtrDescribeProducersRequest()
	t := kmsg.NewDescribeProducersRequestTopic()
	t.Topic, t.Partitions = l.key.name, []int32{l.key.partition}
	req.Topics = append(req.Topics, t)
	resp, err := ask[*kmsg.DescribeProducersResponse](s.transport, leader, req)
	if err != nil {
		if tooOld(err) {
			err = fmt.Errorf("%w: %w", errUnavailable, err)
		}
		return false, 0, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return false, 0, errors.New("no word on the partition's producers")
	}
	p := &resp.Topics[0].Partitions[0]
	err = kerr.ErrorForCode(p.ErrorCode)
	if errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) || errors.Is(err, kerr.UnsupportedVersion) {
		return false, 0, fmt.Errorf("%w (give the agent the right to read the topic): %w", errUnavailable, err)
	}
	for _, x := range p.ActiveProducers {
		if x.ProducerID == of.id && x.ProducerEpoch == int32(of.epoch) && x.LastSequence >= 0 {
			return true, x.LastSequence, err
		}
	}
	return false, 0, err
}

// tooOld says that a broker does not know a request. The client has no error for that to compare with.
func tooOld(err error) bool {
	return strings.Contains(err.Error(), "too old") || strings.Contains(err.Error(), "key is unknown")
}

// logRead is what was found of a producer in a log.
type logRead struct {
	there    map[int32]bool // base sequences
	complete bool           // from the asked offset to the high watermark, without a gap
}

// readLog reads batch headers of a partition from an offset to its high watermark.
func (s *Sender) readLog(l *lane, leader int32, from int64, of identity) (logRead, error) {
	out := logRead{there: map[int32]bool{}, complete: true}
	end, err := s.askFloor(l, leader)
	if err != nil {
		return out, err
	}
	for next := from; next < end; {
		p, err := s.fetch(l, leader, next)
		if errors.Is(err, kerr.OffsetOutOfRange) {
			return s.readFromStart(l, leader, from, of, out)
		}
		if err != nil {
			return out, err
		}
		after, gap := out.take(p.RecordBatches, next, of)
		out.complete = out.complete && !gap
		if after == next {
			return out, fmt.Errorf("read back %s-%d at offset %d: nothing there below the high watermark %d", l.key.name, l.key.partition, next, end)
		}
		next = after
	}
	return out, nil
}

// readFromStart goes on where the log begins now, above the offset asked for.
func (s *Sender) readFromStart(l *lane, leader int32, from int64, of identity, out logRead) (logRead, error) {
	start, err := s.logStart(l, leader)
	if err != nil {
		return out, err
	}
	if start <= from {
		return logRead{complete: false}, nil // the end lies before: the log was truncated
	}
	rest, err := s.readLog(l, leader, start, of)
	rest.complete = false
	return rest, err
}

func (s *Sender) logStart(l *lane, leader int32) (int64, error) {
	return s.listOffset(l, leader, startOffset, "start")
}

// take notes what batches say, and returns the offset after them. gap says that offsets are missing: the log was compacted.
func (r *logRead) take(raw []byte, from int64, of identity) (next int64, gap bool) {
	next = from
	for len(raw) > 0 {
		b, rest, err := record.Next(raw)
		if err != nil { // a fetch may end within a batch
			break
		}
		raw = rest
		if b.LastOffset() < from {
			continue
		}
		if b.BaseOffset() > next || int64(b.Count()) != int64(b.LastOffsetDelta())+1 {
			gap = true
		}
		next = b.LastOffset() + 1
		if b.ProducerID() == of.id && b.ProducerEpoch() == of.epoch && b.BaseSequence() >= 0 {
			r.there[b.BaseSequence()] = true
		}
	}
	return next, gap
}

func (s *Sender) fetch(l *lane, leader int32, offset int64) (*kmsg.FetchResponseTopicPartition, error) {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxBytes, req.MinBytes, req.MaxWaitMillis, req.SessionEpoch = -1, readBackBytes, 1, 500, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = l.key.name, l.key.topic
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch, p.LastFetchedEpoch, p.LogStartOffset = l.key.partition, offset, readBackBytes, -1, -1, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := ask[*kmsg.FetchResponse](s.transport, leader, req)
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, errors.New("no word on the partition's log")
	}
	got := &resp.Topics[0].Partitions[0]
	return got, kerr.ErrorForCode(got.ErrorCode)
}

// askID asks for a new identity.
func (s *Sender) askID() (identity, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch, req.TransactionTimeoutMillis = -1, -1, 0
	resp, err := ask[*kmsg.InitProducerIDResponse](s.transport, AnyBroker, req)
	if err != nil {
		return identity{}, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return identity{}, err
	}
	if resp.ProducerID < 0 || resp.ProducerEpoch < 0 {
		return identity{}, fmt.Errorf("the brokers gave producer ID %d, epoch %d", resp.ProducerID, resp.ProducerEpoch)
	}
	return identity{resp.ProducerID, resp.ProducerEpoch, true}, nil
}

// askMetadata asks for topics.
func (s *Sender) askMetadata(topics []string) (*kmsg.MetadataResponse, error) {
	return ask[*kmsg.MetadataResponse](s.transport, AnyBroker, metadataRequest(topics))
}

func metadataRequest(topics []string) *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	return req
}
