// Package clickhouse stores rows in a ClickHouse table.
package clickhouse

import (
	"context"
	"log/slog"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// Sink is a ClickHouse table as destination.
type Sink struct{}

// New makes the sink of spec.ClickHouse.
func New(log *slog.Logger, spec *pipelines.SinkSpec) (*Sink, error) { return &Sink{}, nil }

func (s *Sink) Check(ctx context.Context) (sinks.Destination, error) { return sinks.Destination{}, nil }
func (s *Sink) NewBlock() (sinks.Block, error)                       { return nil, nil }
func (s *Sink) Stored(ctx context.Context, c sinks.Claim) (sinks.Stored, error) {
	return sinks.Stored{}, nil
}
func (s *Sink) Write(ctx context.Context, b *sinks.Batch) error { return nil }
func (s *Sink) Close() error                                    { return nil }
