// Package producer sends record batches that lie in a journal to the brokers of Kafka's protocol, each exactly once.
//
// It builds the batches itself (Packer), gives each the identity and the sequences by which a broker tells repeats, has it written to the
// journal (Log), and sends exactly these bytes until the partition's leader has acknowledged them. What to do when there is no answer,
// one that leaves open what happened, or one that the batch is refused, is decided by lanes, which do no I/O. Trouble of the destination
// (down, moving, not authorised) is never a record's fault: it is waited out, in order, for ever.
package producer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Limits of the Kafka producer.
const (
	// batchBytesMaxDefault bounds a batch where the topic's own
	// max.message.bytes could not be asked for; Kafka's default for it.
	batchBytesMaxDefault = 1_000_012
	// batchBytesMaxCeiling bounds a batch however much a topic allows, unless
	// records may be larger.
	batchBytesMaxCeiling = 1<<20 + 12
	// DialTimeout bounds the wait for one connection.
	DialTimeout = 5 * time.Second
	// requestBackoffMax bounds the pause between two attempts of the client at the same request.
	requestBackoffMax = 2 * time.Second
)

// KafkaConfig configures a Kafka producer.
type KafkaConfig struct {
	ClientID string
	// RecordBytesMax is the largest record to expect; 0 means no larger than a
	// batch usually is.
	RecordBytesMax int
	// Client are the options that say where the brokers are and how they are
	// talked to: seeds, TLS, SASL. Seeds are required.
	Client []kgo.Opt
	// Dial makes connections, without TLS; batches are written to them from where they are. nil means that Client says how connections are
	// made, and requests are copied.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	SenderConfig
}

// Kafka is a sender with its goroutine, a client of brokers, and what makes topics. Its methods are safe for concurrent use.
type Kafka struct {
	*Sender
	client *kgo.Client
	admin  *kadm.Client
	wire   *clientTransport
	turned sync.WaitGroup
	wakeup chan struct{}

	recordBytesMax int
}

// NewKafka makes a producer. It does not connect: brokers that are down are waited for. recovered are the batches that the journal holds
// unsettled, in order and in bundles, and floors what it knows of where they may lie.
func NewKafka(log *slog.Logger, journal Log, recovered []*Bundle, floors []Floor, cfg KafkaConfig) (*Kafka, error) {
	opts := []kgo.Opt{
		kgo.ClientID(cfg.ClientID), kgo.DialTimeout(DialTimeout), kgo.RetryBackoffFn(backoff), kgo.DisableClientMetrics(),
	}
	var p *pieces
	if cfg.Dial != nil {
		p = newPieces(cfg.Dial)
		opts = append(opts, kgo.Dialer(p.dial))
	}
	client, err := kgo.NewClient(append(opts, cfg.Client...)...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	k := &Kafka{recordBytesMax: cfg.RecordBytesMax, client: client, admin: kadm.NewClient(client), wire: newClientTransport(client, p), wakeup: make(chan struct{}, 1)}
	k.Sender = NewSender(log, journal, k.wire, recovered, floors, cfg.SenderConfig, k.poke)
	k.turned.Go(k.run)
	return k, nil
}

func backoff(attempt int) time.Duration {
	return min(50*time.Millisecond<<min(attempt, 10), requestBackoffMax)
}

func (k *Kafka) poke() {
	select {
	case k.wakeup <- struct{}{}:
	default:
	}
}

// Close gives up what is not acknowledged: it stays in the journal.
func (k *Kafka) Close() {
	k.closed.Store(true)
	k.wire.cancel()
	k.turned.Wait()
	k.wire.close()
}

// run turns the sender.
func (k *Kafka) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.wire.ctx.Done():
			return
		case <-k.wakeup:
		case <-timer.C:
		}
		k.Turn(time.Now())
		if at := k.Due(); !at.IsZero() {
			timer.Reset(max(time.Until(at), time.Millisecond))
		}
	}
}
