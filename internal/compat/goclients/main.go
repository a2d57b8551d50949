// Command goclients does with a broker what users of two Go clients do:
//
//	goclients CLIENT ADDR PART
//	goclients restarts ADDR,ADDR,... TOPIC
//
// CLIENT is sarama or kafka-go. Its last line says "passed PART"; otherwise it
// says what was wrong and ends with status 1. The second form goes on while
// brokers restart, until its standard input ends.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	timeout       = 50 * time.Second // of a whole run
	retryInterval = 50 * time.Millisecond
)

type part func(ctx context.Context, addr string) error

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: goclients CLIENT ADDR PART")
		os.Exit(2)
	}
	if os.Args[1] == "restarts" {
		if err := saramaRestarts(strings.Split(os.Args[2], ","), os.Args[3]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	clients := map[string]map[string]part{"sarama": saramaParts(), "kafka-go": kafkaGoParts()}
	run, ok := clients[os.Args[1]][os.Args[3]]
	if !ok {
		fmt.Fprintf(os.Stderr, "goclients: no part %q of %q\n", os.Args[3], os.Args[1])
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := run(ctx, os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "goclients:", err)
		os.Exit(1)
	}
	fmt.Println("passed", os.Args[3])
}

// values are n payloads that compress, each other than the rest.
func values(prefix string, n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = fmt.Appendf(nil, "%s line %d of a log, of a log, of a log", prefix, i)
	}
	return all
}

// checkOnce finds out whether got holds each of want once, in whatever order.
func checkOnce(what string, got, want [][]byte) error {
	count := map[string]int{}
	for _, v := range want {
		count[string(v)]++
	}
	for _, v := range got {
		count[string(v)]--
	}
	for v, n := range count {
		if n != 0 {
			return fmt.Errorf("%s: %d values of %d, %q %d times too few", what, len(got), len(want), v, n)
		}
	}
	return nil
}

// retry calls f until it succeeds: what was changed at a controller reaches the
// brokers a little later.
func retry(ctx context.Context, f func() error) error {
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}
