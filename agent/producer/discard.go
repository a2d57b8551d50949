package producer

import "context"

// Discard acknowledges every bundle at once and stores none. It is the
// measure of what reading, framing and building batches cost.
type Discard struct {
	// PartitionCount is what every topic is said to have; 0 means 1.
	PartitionCount int32
	// Settled is told every batch; may be nil.
	Settled func(*Batch)
	// Memory takes the batches' memory back; may be nil.
	Memory *Memory
}

// Prepare answers at once.
func (d *Discard) Prepare(context.Context, TopicSpec) (Topic, error) {
	return Topic{Partitions: max(d.PartitionCount, 1)}, nil
}

// Send acknowledges the bundle before it returns.
func (d *Discard) Send(b *Bundle) {
	for _, x := range b.Batches {
		if d.Settled != nil {
			d.Settled(x)
		}
		if d.Memory != nil {
			d.Memory.release(x)
		}
	}
	b.finish()
}

// Close does nothing.
func (d *Discard) Close() {}
