package producer

import "context"

// Discard acknowledges every record at once and stores none. It is the
// measure of what reading and framing alone cost.
type Discard struct {
	// PartitionCount is what every topic is said to have; 0 means 1.
	PartitionCount int32
}

// Prepare answers at once.
func (d *Discard) Prepare(context.Context, TopicSpec) (Topic, error) {
	return Topic{Partitions: max(d.PartitionCount, 1)}, nil
}

// Send acknowledges the chunk before it returns.
func (d *Discard) Send(c *Chunk) { c.Done() }

// Close does nothing.
func (d *Discard) Close() {}
