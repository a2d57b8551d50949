package sinks

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/connect"
)

// fetchWaitMax is how long a fetch without new records waits at the broker. It also bounds how long a resumed partition waits for
// the fetch in flight.
const fetchWaitMax = 500 * time.Millisecond

// kafkaOptions are the options every client of the worker shares: where the brokers are and how to talk to them.
func (w *Worker) kafkaOptions() ([]kgo.Opt, error) {
	options, err := connect.Brokers(w.pipe.Brokers, w.cfg.Brokers)
	if err != nil {
		return nil, err
	}
	return append(options,
		kgo.ClientID(w.cfg.ClientID),
		kgo.WithLogger(clientLogger{w.log, &w.clientTrouble}),
		kgo.WithHooks(brokerWatch{w.log, &w.clientTrouble}),
		kgo.MetadataMinAge(250*time.Millisecond),
	), nil
}

// groupOptions make a client a member of the sink's group.
func (s *session) groupOptions() []kgo.Opt {
	w := s.w
	pool := &fetchPool{}
	options := []kgo.Opt{
		kgo.ConsumerGroup(w.spec.Group()),
		kgo.ConsumeTopics(w.pipe.Topic.Name),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(w.cfg.SessionTimeout),
		kgo.HeartbeatInterval(w.cfg.SessionTimeout / 6),
		kgo.RebalanceTimeout(2 * w.cfg.SessionTimeout),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(s.onAssigned),
		kgo.OnOffsetsFetched(s.onOffsetsFetched),
		kgo.AdjustFetchOffsetsFn(s.startOffsets),
		kgo.OnPartitionsRevoked(s.onRevoked),
		kgo.OnPartitionsLost(s.onLost),
		// A group without a commit begins at the earliest record. A commit that the log no longer has is never passed over in silence.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // their offsets are part of a range, or a range at the log's end would never close
		kgo.FetchMaxBytes(min(fetchBytesFirst, w.cfg.FetchBytesMax)),
		kgo.FetchMaxPartitionBytes(min(fetchBytesFirst, w.cfg.FetchBytesMax)),
		kgo.FetchMaxWait(fetchWaitMax),
		kgo.WithHooks(s.sizer),
		kgo.WithPools(pool),
		kgo.WithDecompressor(pool),
	}
	if w.cfg.InstanceID != "" {
		options = append(options, kgo.InstanceID(w.cfg.InstanceID))
	}
	return options
}

// clientTrouble is what the worker's Kafka clients have trouble with; the log has its beginning and its end. Safe for concurrent use.
type clientTrouble struct {
	mu     sync.Mutex // guards what follows
	down   map[string]bool
	logged trouble
}

// clientLogger passes what the Kafka client has to say on: its own info level is detail to a reader of our log, and a warning that it repeats is one.
type clientLogger struct {
	log     *slog.Logger
	trouble *clientTrouble
}

func (l clientLogger) Level() kgo.LogLevel {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

// connectFailure is the client's message for what brokerWatch logs better.
const connectFailure = "unable to open connection to broker"

func (l clientLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelDebug
	if level <= kgo.LogLevelWarn && msg != connectFailure && l.trouble.fresh(msg) {
		to = slog.LevelWarn
	}
	l.log.Log(context.Background(), to, "kafka: "+msg, keyvals...)
}

func (t *clientTrouble) fresh(msg string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.logged == nil {
		t.logged = trouble{}
	}
	return t.logged.fresh(errors.New(msg), time.Now())
}

// brokerWatch logs when a broker can no longer be reached, and when it can again.
type brokerWatch struct {
	log     *slog.Logger
	trouble *clientTrouble
}

var _ kgo.HookBrokerConnect = brokerWatch{}

// OnBrokerConnect is called by the client for each attempt to connect.
func (b brokerWatch) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	addr := net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port)))
	t := b.trouble
	t.mu.Lock()
	before := t.down[addr]
	if t.down == nil {
		t.down = map[string]bool{}
	}
	t.down[addr] = err != nil
	t.mu.Unlock()
	switch {
	case err != nil && !before:
		b.log.Warn("a broker cannot be reached; trying again until it can", "broker", addr, "error", err)
	case err == nil && before:
		b.log.Info("the broker can be reached again", "broker", addr)
	}
}
