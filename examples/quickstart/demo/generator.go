package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"
)

// rotatedKept is how many rotated logs lie beside the current one, as logrotate keeps them.
const rotatedKept = 5

// tick is how often the generator writes its share of lines, as a server's buffered log does.
const tick = 5 * time.Millisecond

// A generator writes nginx combined access lines into a log and rotates it by rename. Every line carries its number in the
// query of its request, so that whoever reads the table back can tell which lines are there. Not safe for concurrent use.
type generator struct {
	path        string
	rate        int           // lines per second
	rotateEvery time.Duration // 0 means never

	next    int64 // number of the next line
	bytes   int64
	rotated int
	rng     *rand.Rand
}

func newGenerator(path string, rate int, rotateEvery time.Duration) *generator {
	return &generator{path: path, rate: rate, rotateEvery: rotateEvery, rng: rand.New(rand.NewPCG(7, 11))}
}

// run writes until ctx ends and leaves every line it counted whole in a file.
func (g *generator) run(ctx context.Context) error {
	file, out, err := g.open()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // after a Flush that was checked
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	start, rotatedAt := time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return out.Flush()
		case now := <-ticks.C:
			due := int64(now.Sub(start).Seconds() * float64(g.rate))
			for g.next < due {
				g.bytes += int64(g.writeLine(out, now))
			}
			if err := out.Flush(); err != nil {
				return err
			}
			if g.rotateEvery > 0 && now.Sub(rotatedAt) >= g.rotateEvery {
				rotatedAt = now
				if err := file.Close(); err != nil {
					return err
				}
				if err := g.rotate(); err != nil {
					return err
				}
				if file, out, err = g.open(); err != nil {
					return err
				}
			}
		}
	}
}

func (g *generator) open() (*os.File, *bufio.Writer, error) {
	file, err := os.OpenFile(g.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("open the demo's log: %w", err)
	}
	return file, bufio.NewWriterSize(file, 256<<10), nil
}

// rotate renames the chain: log.4 to log.5, ..., log to log.1.
func (g *generator) rotate() error {
	g.rotated++
	for i := rotatedKept - 1; i >= 1; i-- {
		err := os.Rename(g.path+"."+strconv.Itoa(i), g.path+"."+strconv.Itoa(i+1))
		if err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("rotate the demo's log: %w", err)
		}
	}
	if err := os.Rename(g.path, g.path+".1"); err != nil {
		return fmt.Errorf("rotate the demo's log: %w", err)
	}
	return nil
}

var (
	pages  = []string{"/", "/search", "/cart", "/login", "/item/17", "/item/42", "/item/99", "/help", "/static/app.js", "/static/site.css"}
	agents = []string{"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15", "curl/8.9.1"}
	statuses = []int{200, 200, 200, 200, 200, 200, 304, 302, 404, 500}
)

// writeLine writes one line and returns its length.
func (g *generator) writeLine(out *bufio.Writer, now time.Time) int {
	page := pages[min(g.rng.IntN(len(pages)), g.rng.IntN(len(pages)))] // the first pages are the most read
	n, _ := fmt.Fprintf(out, "10.0.%d.%d - - [%s] \"GET %s?line=%d HTTP/1.1\" %d %d \"-\" \"%s\"\n",
		g.rng.IntN(16), g.rng.IntN(256), now.Format("02/Jan/2006:15:04:05 -0700"), page, g.next,
		statuses[g.rng.IntN(len(statuses))], 200+g.rng.IntN(50_000), agents[g.rng.IntN(len(agents))])
	// An error of Fprintf stays in the bufio.Writer and comes out of Flush.
	g.next++
	return n
}
