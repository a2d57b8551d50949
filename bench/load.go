// Package bench is the load generator and the load consumer behind `sluice bench`. It speaks the Kafka protocol
// through franz-go and nothing else, so the same run measures this broker and any other.
//
// A produced value starts with a stamp, '@' and 19 decimal digits of Unix nanoseconds, so that a consumer on the same
// machine (or one with the same clock) can tell the end-to-end latency of each record.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// stampBytes is the length of the stamp at the start of every value.
const stampBytes = 20

// latencyMax is the largest latency the histograms keep apart; longer ones count as this.
const latencyMax = 10 * time.Minute

// A new topic is asked for this often, and this long, until it is served.
const (
	leaderPoll    = 20 * time.Millisecond
	leaderWaitMax = 30 * time.Second
)

// Stats is what a run has seen so far, or in all when it is returned at the end.
type Stats struct {
	Records int64
	Bytes   int64 // of values
	Errors  int64
	Elapsed time.Duration
	Latency *hdrhistogram.Histogram // microseconds; nil when there is nothing to time
}

// RecordsPerSecond is the mean rate over the run.
func (s Stats) RecordsPerSecond() float64 { return float64(s.Records) / max(s.Elapsed.Seconds(), 1e-9) }

// MegabytesPerSecond is the mean rate of value bytes over the run, in units of 10^6 bytes.
func (s Stats) MegabytesPerSecond() float64 {
	return float64(s.Bytes) / 1e6 / max(s.Elapsed.Seconds(), 1e-9)
}

// Quantile is the latency below which the share q (0 to 1) of the records lie.
func (s Stats) Quantile(q float64) time.Duration {
	if s.Latency == nil {
		return 0
	}
	return time.Duration(s.Latency.ValueAtQuantile(q*100)) * time.Microsecond
}

// Print writes the run as a few lines for a person.
func (s Stats) Print(w io.Writer, what string) {
	fmt.Fprintf(w, "%s %d records, %.1f MB in %.2f s: %.0f records/s, %.1f MB/s, %d errors\n",
		what, s.Records, float64(s.Bytes)/1e6, s.Elapsed.Seconds(), s.RecordsPerSecond(), s.MegabytesPerSecond(), s.Errors)
	if s.Latency == nil || s.Latency.TotalCount() == 0 {
		return
	}
	fmt.Fprintf(w, "latency ms: p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f\n", ms(s.Quantile(.5)), ms(s.Quantile(.9)),
		ms(s.Quantile(.99)), ms(s.Quantile(.999)), float64(s.Latency.Max())/1e3)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, latencyMax.Microseconds(), 3)
}

func observe(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Microseconds(), 1), latencyMax.Microseconds())) // clamped, so it cannot be out of range
}

// EnsureTopic creates the topic with the number of partitions unless it is there; replicas of -1 take the broker's default.
func EnsureTopic(ctx context.Context, client *kgo.Client, topic string, partitions int32, replicas int16) error {
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	if topics.Has(topic) {
		return nil
	}
	if _, err := admin.CreateTopic(ctx, partitions, replicas, nil, topic); err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	return waitForLeaders(ctx, client, topic)
}

// waitForLeaders returns when every partition of a new topic is served; a broker may answer the creation before that.
func waitForLeaders(ctx context.Context, client *kgo.Client, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, leaderWaitMax)
	defer cancel()
	again := time.NewTicker(leaderPoll)
	defer again.Stop()
	for {
		ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic) // a leader alone can answer it
		if err == nil && ends.Error() == nil && len(ends[topic]) > 0 {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("topic %s has no leaders after %s: %w", topic, leaderWaitMax, errors.Join(err, ctx.Err()))
		}
	}
}

// Payload says what the bytes after the stamp are.
type Payload string

const (
	PayloadLog    Payload = "log"    // text like an access log, which compresses about as well as one
	PayloadRandom Payload = "random" // bytes that do not compress
)

// payloads makes n different values of size bytes.
func payloads(kind Payload, n, size int) ([][]byte, error) {
	out := make([][]byte, n)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range out {
		v := make([]byte, 0, size+200)
		for len(v) < size {
			switch kind {
			case PayloadLog:
				v = fmt.Appendf(v, `10.%d.%d.%d - - [30/Nov/2026:10:00:%02d +0000] "GET /item/%d HTTP/1.1" 200 %d "-" "Mozilla/5.0 (X11; Linux x86_64)" `,
					rng.IntN(256), rng.IntN(256), rng.IntN(256), rng.IntN(60), rng.IntN(5000), rng.IntN(50000))
			case PayloadRandom:
				v = append(v, byte(rng.Uint32()))
			default:
				return nil, fmt.Errorf("unknown payload %q: use %q or %q", kind, PayloadLog, PayloadRandom)
			}
		}
		out[i] = v[:size]
	}
	return out, nil
}

// stamp overwrites the start of a value with the time.
func stamp(value []byte, now time.Time) {
	if len(value) < stampBytes {
		return
	}
	value[0] = '@'
	strconv.AppendInt(value[1:1], now.UnixNano(), 10)
}

// stamped reads the time a value was produced at.
func stamped(value []byte) (time.Time, bool) {
	if len(value) < stampBytes || value[0] != '@' {
		return time.Time{}, false
	}
	ns, err := strconv.ParseInt(string(value[1:stampBytes]), 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	return time.Unix(0, ns), true
}
