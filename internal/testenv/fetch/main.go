// Command fetch fetches the real servers and clients that the tests use, and
// says which cannot be had and why.
//
//	fetch                 fetch all; exit status 1 if one cannot be had
//	fetch -only NAME      fetch one
//	fetch -skipped FILE   print the closing line of a test run from its notes
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

func main() {
	skipped := flag.String("skipped", "", "sum up this `FILE` of skipped parts")
	only := flag.String("only", "", "fetch the part of this `NAME` alone")
	flag.Parse()
	run := func() error { return fetch(*only) }
	if *skipped != "" {
		run = func() error { return sumUp(*skipped) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}

func sumUp(file string) error {
	line, err := testenv.SkippedLine(file)
	if err != nil {
		return err
	}
	fmt.Println(line)
	return nil
}

// fetch fetches the part of that name, or all if it is empty.
func fetch(only string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cache, err := testenv.CacheDir()
	if err != nil {
		return err
	}
	fmt.Println("parts of the tests, in", cache)
	parts := testenv.Parts()
	if only != "" {
		parts = slices.DeleteFunc(append(parts, testenv.PeerParts()...), func(p testenv.Part) bool { return p.Name != only })
	}
	if len(parts) == 0 {
		return fmt.Errorf("there is no part %q", only)
	}
	missing := 0
	for _, p := range parts {
		start := time.Now()
		if _, err := p.Fetch(ctx); err != nil {
			if !p.Optional() {
				missing++
			}
			fmt.Printf("  %-16s %-16s cannot be had: %v\n", p.Name, p.Version, err)
			continue
		}
		fmt.Printf("  %-16s %-16s there (%s, %.1f s)\n", p.Name, p.Version, p.From, time.Since(start).Seconds())
	}
	if missing > 0 {
		return fmt.Errorf("%d of %d parts cannot be had; tests that want them are skipped", missing, len(parts))
	}
	return nil
}
