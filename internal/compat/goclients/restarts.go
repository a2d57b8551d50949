package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	restartsInterval = 10 * time.Millisecond // between two records
	restartsDrain    = time.Minute           // until all is read, at most
)

// saramaRestarts is what sarama makes of brokers that restart. Until its
// standard input ends it produces 0, 1, 2, ... with idempotence, and reads them
// as a member of a group. It prints "acked N", "got N" and "error ...".
func saramaRestarts(brokers []string, topic string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &restartsReader{topic: topic, acked: map[string]bool{}, got: map[string]bool{}}
	group, err := sarama.NewConsumerGroup(brokers, topic+"-readers", restartsConfig())
	if err != nil {
		return err
	}
	defer group.Close()
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() {
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{topic}, r); err != nil && ctx.Err() == nil {
				select { // the group's coordinator is on its way
				case <-time.After(restartsInterval):
				case <-ctx.Done():
				}
			}
		}
	})
	if err := r.produce(brokers); err != nil {
		return err
	}
	return r.drain()
}

func restartsConfig() *sarama.Config {
	c := saramaConfig()
	c.Producer.Idempotent = true
	c.Net.MaxOpenRequests = 1
	c.Producer.Retry.Max, c.Producer.Retry.Backoff = 30, 100*time.Millisecond
	c.Metadata.Retry.Max, c.Metadata.Retry.Backoff = 30, 100*time.Millisecond
	c.Consumer.Offsets.AutoCommit.Enable, c.Consumer.Offsets.AutoCommit.Interval = true, 500*time.Millisecond
	return c
}

// restartsReader prints what it gets. mu guards acked and got.
type restartsReader struct {
	topic      string
	mu         sync.Mutex
	acked, got map[string]bool
}

func (r *restartsReader) produce(brokers []string) error {
	p, err := sarama.NewSyncProducer(brokers, restartsConfig())
	if err != nil {
		return err
	}
	defer p.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	tick := time.NewTicker(restartsInterval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ended:
			return nil
		case <-tick.C:
		}
		value := strconv.Itoa(n)
		if _, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: r.topic, Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder(value)}); err != nil {
			fmt.Printf("error record %d was given up: %s\n", n, strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		fmt.Println("acked", n)
		r.note(r.acked, value)
	}
}

func (r *restartsReader) note(set map[string]bool, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	set[value] = true
}

func (r *restartsReader) drain() error {
	for until := time.Now().Add(restartsDrain); time.Now().Before(until); time.Sleep(restartsInterval) {
		if r.missing() == 0 {
			return nil
		}
	}
	return fmt.Errorf("%d records were not read", r.missing())
}

func (r *restartsReader) missing() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for value := range r.acked {
		if !r.got[value] {
			n++
		}
	}
	return n
}

func (r *restartsReader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *restartsReader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *restartsReader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case m, open := <-claim.Messages():
			if !open {
				return nil
			}
			value := string(m.Value)
			fmt.Println("got", value)
			session.MarkMessage(m, "")
			r.note(r.got, value)
		case <-session.Context().Done():
			return nil
		}
	}
}
