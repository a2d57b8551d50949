// Package agent runs the collecting part of pipelines on a host: it follows
// files, frames and processes their lines, and hands them to a destination.
package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/pipelines"
)

// Destination takes chunks of records. *producer.Kafka is the real one.
type Destination interface {
	// Prepare sees to it that the topic exists and returns its number of
	// partitions. It returns an error when it cannot now; it is called again.
	Prepare(ctx context.Context, topic producer.TopicSpec) (partitions int32, err error)
	// Send takes the chunk over until it calls Done. It does not block for
	// the destination's trouble; the agent bounds what is in flight.
	Send(c *producer.Chunk)
	// Close stops sending. Chunks not done by then never will be.
	Close()
}

// Config of an agent. The zero value of each field is documented with it.
type Config struct {
	// StateDir holds the checkpoint and the lock of this agent. Required.
	StateDir string
	// Brokers (host:port) serve pipelines that name none.
	Brokers []string
	// Once reads what is there at the start and returns when it is acknowledged.
	Once bool
	// DrainTimeout bounds the wait for acknowledgements after a cancel; 0 means 10 s.
	DrainTimeout time.Duration
	// CheckpointInterval is the time between two checkpoints; 0 means 1 s.
	CheckpointInterval time.Duration
	// Hostname is the value of the `host` header; "" means os.Hostname.
	Hostname string
	// InFlightBytesMax bounds the memory of unacknowledged lines of a
	// pipeline; 0 means 32 MiB.
	InFlightBytesMax int64
	// OpenFilesMax bounds the descriptors of followed files of a pipeline;
	// 0 means half the process's limit.
	OpenFilesMax int
	// ScanInterval is the shortest time between two scans of the directories
	// (the truth beside which change events are a hint); 0 means 1 s. Scans
	// stretch by themselves so that they cost no more than 0.2 % of a core.
	ScanInterval time.Duration
	// RotateGrace is how long a rotated or deleted file must be quiet before
	// it is closed; 0 means 5 s.
	RotateGrace time.Duration
	// LineIdle is how long an unterminated last line is kept back before it is
	// sent as it is; 0 means 5 s.
	LineIdle time.Duration
	// Destination replaces the Kafka producer of a pipeline (benchmarks);
	// nil means Kafka.
	Destination func(*pipelines.Pipeline) (Destination, error)
}

// Count is an amount of lines and of the bytes they took in their files.
type Count struct {
	Lines, Bytes int64
}

// Account says where everything that was read of one pipeline's files is:
// Read = Acked + InFlight + the sum of Dropped, at any moment.
type Account struct {
	Pipeline string
	Read     Count
	Acked    Count
	InFlight Count
	Dropped  map[string]Count // by reason
	// LostBytes estimates what truncations destroyed before it was read.
	LostBytes int64
}

// Agent runs the collecting part of some pipelines. Its methods are safe for
// concurrent use.
type Agent struct {
	log *slog.Logger
	cfg Config
}

// New checks the configuration, takes the lock on the state directory and
// loads the checkpoint. It fails when another agent holds the directory or
// the checkpoint was written by a newer version.
func New(log *slog.Logger, reg prometheus.Registerer, pipes []*pipelines.Pipeline, cfg Config) (*Agent, error) {
	return &Agent{log: log, cfg: cfg}, nil
}

// Run follows the files until ctx is cancelled and then drains. It may be
// called once.
func (a *Agent) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Accounts returns one account per pipeline, in the order given to New.
func (a *Agent) Accounts() []Account { return nil }

// Ready returns nil when every pipeline has its topic and has looked for its
// files once, else what it waits for.
func (a *Agent) Ready() error { return nil }
