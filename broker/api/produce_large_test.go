package api

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/record"
)

// The checksums of large requests are made while they arrive: each partition's batch
// is judged by its own bytes, wherever in the request it lies.
func TestProduceLargeRequestIsSummedRightly(t *testing.T) {
	const batches = 4
	n := newNode(t)
	n.topic("t", topicOptions{partitions: batches})
	w := n.dial()
	value := strings.Repeat("0123456789", 300_000/10)
	for _, version := range []int16{3, 9} {
		for bad := range batches {
			for _, at := range []int{record.HeaderBytes - 1, 70, 70_000, 150_000, 300_000} {
				req := produceTo("t", 0, version, nil)
				req.Topics[0].Partitions = nil
				for i := range batches {
					p := kmsg.NewProduceRequestTopicPartition()
					p.Partition, p.Records = int32(i), n.batchOf(record.BuildOptions{}, value)
					if i == bad {
						p.Records[at] ^= 0x10
					}
					req.Topics[0].Partitions = append(req.Topics[0].Partitions, p)
				}
				for _, p := range w.ask(req).(*kmsg.ProduceResponse).Topics[0].Partitions {
					want := map[bool]int16{true: kerr.CorruptMessage.Code}[p.Partition == int32(bad)]
					if p.ErrorCode != want {
						t.Errorf("version %d, byte %d of batch %d flipped: code %d of partition %d", version, at, bad, p.ErrorCode, p.Partition)
					}
				}
			}
		}
	}
}
