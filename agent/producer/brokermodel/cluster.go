// Package brokermodel is a model of what Kafka's brokers do with the requests that the agent's producer sends: which batches a partition
// takes, what it remembers of their producers, what it says of them. Tests drive senders against it, where real brokers would be too slow
// or their faults could not be had at will; TestModelAgainstBrokers replays the same scripts against it, a real Apache Kafka and ours.
//
// It knows nothing of time: producers are forgotten by Forget. Of replication it knows the high watermark, which Commit moves to the end of
// a leader's log, and that a new leader may lack what lies beyond it (Truncate).
package brokermodel

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/record"
)

// RememberedBatches is how many batches of a producer a partition can tell repeats of.
const RememberedBatches = 5

// Cluster is some brokers. Not safe for concurrent use.
type Cluster struct {
	ID     string
	Topics map[string]*Topic
	// Replicated has every batch in all replicas at once. Else Commit says when.
	Replicated bool
	nextID     int64
	made       byte
}

// Topic is one topic's lifetime.
type Topic struct {
	Name string
	ID   [16]byte
	// BatchBytesMax is max.message.bytes.
	BatchBytesMax int
	// Compacted topics refuse records without a key.
	Compacted  bool
	Partitions []*Partition
}

// Partition is a log with what it remembers of producers.
type Partition struct {
	Leader     int32
	Log        []record.Batch // with their offsets; some may have been compacted away
	Start, End int64
	// HighWatermark is the end of what all replicas have. Consumers read to it, and acknowledgements wait for it.
	HighWatermark int64
	// Full has what would be written refused because the disk is full.
	Full bool
	// Unavailable has produces refused for the partition's own state, as with too few replicas in sync.
	Unavailable bool
	producers   map[int64]*producerState
}

// producerState is what a partition remembers of a producer.
type producerState struct {
	epoch int16
	last  []remembered // at most RememberedBatches, the newest last; never empty
}

type remembered struct {
	base, end int32 // sequences, inclusive
	offset    int64
}

// New makes a cluster without topics.
func New(id string) *Cluster { return &Cluster{ID: id, Topics: map[string]*Topic{}, nextID: 1000} }

// Make makes a topic, or makes it again: with another ID and empty.
func (c *Cluster) Make(name string, partitions int) *Topic {
	c.made++
	t := &Topic{Name: name, ID: [16]byte{0xAA, c.made}, BatchBytesMax: 1 << 20}
	c.Topics[name] = t
	t.Grow(partitions)
	return t
}

// Grow adds partitions up to a count.
func (t *Topic) Grow(partitions int) {
	for len(t.Partitions) < partitions {
		t.Partitions = append(t.Partitions, &Partition{producers: map[int64]*producerState{}})
	}
}

// Forget forgets all producers, as after producer.id.expiration.ms.
func (p *Partition) Forget() { clear(p.producers) }

// Restart forgets all but the last batch of each producer, as a start of Kafka from its snapshot does.
func (p *Partition) Restart() {
	for _, s := range p.producers {
		s.last = s.last[len(s.last)-1:]
	}
}

// Commit says that all replicas have what the leader has.
func (p *Partition) Commit() { p.HighWatermark = p.End }

// Truncate is a change to a leader that has nothing beyond the high watermark. It remembers of producers what its log says.
func (p *Partition) Truncate() {
	p.Log = slices.DeleteFunc(p.Log, func(b record.Batch) bool { return b.LastOffset() >= p.HighWatermark })
	p.End = p.HighWatermark
	known := p.producers
	p.producers = map[int64]*producerState{}
	for _, b := range p.Log {
		if known[b.ProducerID()] != nil { // what was forgotten stays so
			p.remember(b)
		}
	}
}

// DeleteTo moves the log's start.
func (p *Partition) DeleteTo(offset int64) {
	p.Start = max(p.Start, min(offset, p.End))
	p.Log = slices.DeleteFunc(p.Log, func(b record.Batch) bool { return b.LastOffset() < p.Start })
}

// Handle answers a request as a broker does. It panics on requests that the agent's producer does not send.
func (c *Cluster) Handle(broker int32, req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		return c.produce(broker, req)
	case *kmsg.FetchRequest:
		return c.fetch(broker, req)
	case *kmsg.ListOffsetsRequest:
		return c.listOffsets(broker, req)
	case *kmsg.DescribeProducersRequest:
		return c.describe(broker, req)
	case *kmsg.InitProducerIDRequest:
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		c.nextID++
		resp.ProducerID, resp.ProducerEpoch = c.nextID, 0
		return resp
	case *kmsg.MetadataRequest:
		return c.metadata(req)
	}
	panic(fmt.Sprintf("request %T is not in the model", req))
}

// partition finds a partition, by the topic's ID where there is one.
func (c *Cluster) partition(broker int32, name string, id [16]byte, index int32) (*Topic, *Partition, *kerr.Error) {
	t := c.Topics[name]
	if id != ([16]byte{}) {
		t = nil
		for _, x := range c.Topics {
			if x.ID == id {
				t = x
			}
		}
		if t == nil {
			return nil, nil, kerr.UnknownTopicID
		}
	}
	if t == nil || int(index) >= len(t.Partitions) {
		return nil, nil, kerr.UnknownTopicOrPartition
	}
	p := t.Partitions[index]
	if p.Leader != broker {
		return nil, nil, kerr.NotLeaderForPartition
	}
	return t, p, nil
}

func code(err *kerr.Error) int16 {
	if err == nil {
		return 0
	}
	return err.Code
}

func (c *Cluster) metadata(req *kmsg.MetadataRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	resp.ClusterID = kmsg.StringPtr(c.ID)
	for i := range req.Topics {
		out := kmsg.NewMetadataResponseTopic()
		out.Topic = req.Topics[i].Topic
		t := c.Topics[*out.Topic]
		if t == nil {
			out.ErrorCode = kerr.UnknownTopicOrPartition.Code
			resp.Topics = append(resp.Topics, out)
			continue
		}
		out.TopicID = t.ID
		for i, p := range t.Partitions {
			x := kmsg.NewMetadataResponseTopicPartition()
			x.Partition, x.Leader = int32(i), p.Leader
			out.Partitions = append(out.Partitions, x)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func (c *Cluster) produce(broker int32, req *kmsg.ProduceRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for i := range req.Topics {
		t := &req.Topics[i]
		out := kmsg.NewProduceResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			x := kmsg.NewProduceResponseTopicPartition()
			x.Partition, x.BaseOffset = p.Partition, -1
			topic, part, err := c.partition(broker, t.Topic, t.TopicID, p.Partition)
			if err == nil {
				x.BaseOffset, x.ErrorRecords, err = part.Append(topic, record.Batch(p.Records))
				if c.Replicated {
					part.Commit()
				}
			}
			x.ErrorCode = code(err)
			out.Partitions = append(out.Partitions, x)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// Append is what a leader does with a batch: it takes it, tells a repeat, or refuses it.
func (p *Partition) Append(t *Topic, b record.Batch) (base int64, bad []kmsg.ProduceResponseTopicPartitionErrorRecord, err *kerr.Error) {
	switch {
	case p.Unavailable:
		return -1, nil, kerr.NotEnoughReplicas
	case b.CheckCRC() != nil:
		return -1, nil, kerr.CorruptMessage
	case len(b) > t.BatchBytesMax:
		return -1, nil, kerr.MessageTooLarge
	}
	if bad := keyless(t, b); len(bad) > 0 {
		return -1, bad, kerr.InvalidRecord
	}
	if offset, err := p.sequence(b); err != nil || offset >= 0 {
		return offset, nil, err
	}
	if p.Full {
		return -1, nil, kerr.KafkaStorageError
	}
	kept := slices.Clone(b)
	kept.SetBaseOffset(p.End)
	p.remember(kept)
	p.Log = append(p.Log, kept)
	p.End = kept.LastOffset() + 1
	return kept.BaseOffset(), nil, nil
}

// keyless are the records that a compacted topic refuses.
func keyless(t *Topic, b record.Batch) (bad []kmsg.ProduceResponseTopicPartitionErrorRecord) {
	if !t.Compacted {
		return nil
	}
	i := int32(-1)
	_ = b.Each(nil, func(r *record.Record) error {
		if i++; r.Key == nil {
			x := kmsg.NewProduceResponseTopicPartitionErrorRecord()
			x.RelativeOffset = i
			bad = append(bad, x)
		}
		return nil
	})
	return bad
}

// sequence checks a batch's sequence. An offset is that of the batch that this one repeats, -1 when it is new.
func (p *Partition) sequence(b record.Batch) (offset int64, err *kerr.Error) {
	if b.ProducerID() < 0 {
		return -1, nil
	}
	s := p.producers[b.ProducerID()]
	switch {
	case s == nil: // whatever its sequence
		return -1, nil
	case b.ProducerEpoch() < s.epoch:
		return -1, kerr.InvalidProducerEpoch
	case b.ProducerEpoch() > s.epoch:
		if b.BaseSequence() != 0 {
			return -1, kerr.OutOfOrderSequenceNumber
		}
		return -1, nil
	}
	for _, x := range s.last {
		if x.base == b.BaseSequence() && x.end == b.LastSequence() {
			return x.offset, nil
		}
	}
	if record.AddSequence(s.last[len(s.last)-1].end, 1) != b.BaseSequence() {
		return -1, kerr.OutOfOrderSequenceNumber
	}
	return -1, nil
}

func (p *Partition) remember(b record.Batch) {
	if b.ProducerID() < 0 {
		return
	}
	s := p.producers[b.ProducerID()]
	if s == nil || s.epoch != b.ProducerEpoch() {
		s = &producerState{epoch: b.ProducerEpoch()}
		p.producers[b.ProducerID()] = s
	}
	s.last = append(s.last, remembered{b.BaseSequence(), b.LastSequence(), b.BaseOffset()})
	s.last = s.last[max(len(s.last)-RememberedBatches, 0):]
}

func (c *Cluster) describe(broker int32, req *kmsg.DescribeProducersRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
	for _, t := range req.Topics {
		out := kmsg.NewDescribeProducersResponseTopic()
		out.Topic = t.Topic
		for _, index := range t.Partitions {
			x := kmsg.NewDescribeProducersResponseTopicPartition()
			x.Partition = index
			_, p, err := c.partition(broker, t.Topic, [16]byte{}, index)
			if x.ErrorCode = code(err); err == nil {
				x.ActiveProducers = p.active()
			}
			out.Partitions = append(out.Partitions, x)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func (p *Partition) active() (out []kmsg.DescribeProducersResponseTopicPartitionActiveProducer) {
	for id, s := range p.producers {
		x := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		x.ProducerID, x.ProducerEpoch, x.LastSequence = id, int32(s.epoch), s.last[len(s.last)-1].end
		out = append(out, x)
	}
	return out
}

func (c *Cluster) listOffsets(broker int32, req *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for _, t := range req.Topics {
		out := kmsg.NewListOffsetsResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			x := kmsg.NewListOffsetsResponseTopicPartition()
			x.Partition = p.Partition
			_, part, err := c.partition(broker, t.Topic, [16]byte{}, p.Partition)
			switch x.ErrorCode = code(err); {
			case err != nil:
			case p.Timestamp == -2:
				x.Offset = part.Start
			default:
				x.Offset = part.HighWatermark
			}
			out.Partitions = append(out.Partitions, x)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func (c *Cluster) fetch(broker int32, req *kmsg.FetchRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range req.Topics {
		out := kmsg.NewFetchResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			x := kmsg.NewFetchResponseTopicPartition()
			x.Partition = p.Partition
			_, part, err := c.partition(broker, t.Topic, t.TopicID, p.Partition)
			if err == nil {
				x.HighWatermark = part.HighWatermark
				x.RecordBatches, err = part.read(p.FetchOffset, int(p.PartitionMaxBytes))
			}
			x.ErrorCode = code(err)
			out.Partitions = append(out.Partitions, x)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// read returns whole batches from the one on that holds an offset.
func (p *Partition) read(from int64, bytes int) (out []byte, err *kerr.Error) {
	if from < p.Start || from > p.End {
		return nil, kerr.OffsetOutOfRange
	}
	for _, b := range p.Log {
		if b.LastOffset() < from || b.LastOffset() >= p.HighWatermark {
			continue
		}
		if len(out) > 0 && len(out)+len(b) > bytes {
			break
		}
		out = append(out, b...)
	}
	return out, nil
}
