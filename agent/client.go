package agent

import (
	"sync/atomic"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/connect"
	"github.com/sluice-io/sluice/pipelines"
)

// destination makes the destination of a pipeline. failures counts what is not
// a record's own fault; catchingUp says whether speed counts more than size.
func (a *Agent) destination(p *pipelines.Pipeline, failures *atomic.Int64, catchingUp func() bool) (Destination, error) {
	if a.cfg.Destination != nil {
		return a.cfg.Destination(p)
	}
	opts, err := connect.Brokers(p.Brokers, a.cfg.Brokers)
	if err != nil {
		return nil, err
	}
	return producer.NewKafka(a.log.With("pipeline", p.Name), producer.KafkaConfig{
		ClientID: "sluice-agent", Client: opts,
		Compression:    string(p.Topic.Compression),
		CatchingUp:     catchingUp,
		OnError:        func(error) { failures.Add(1) },
		RecordBytesMax: p.Collect.File.LineBytesMax + recordOverheadBytes,
	})
}
