package bench

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
	"github.com/sluice-io/sluice/sinks/directory"
	"github.com/sluice-io/sluice/sinks/hdfs"
)

var filesFlag = flag.Bool("files", false, "measure the file sinks: formats on a local directory, JSON lines on an HDFS against its client alone")

const (
	filesRows     = 100_000 // of a claim, as by default
	filesClaims   = 4       // of a partition and round
	filesRounds   = 3
	filesParallel = 4 // partitions that are written at the same time, as by default
)

// TestFiles prints what the file sinks take, from JSON values in memory to files that are stored: decoding, columns, encoding, compression, ledger.
func TestFiles(t *testing.T) {
	if !*filesFlag {
		t.Skip("make bench-files")
	}
	for _, c := range []struct{ name, settings string }{
		{"parquet zstd", "format: parquet, compression: zstd"},
		{"parquet snappy", "format: parquet, compression: snappy"},
		{"parquet zstd by hour and host", "format: parquet, partition: {path: 'dt=%Y-%m-%d/hour=%H/host={host}', time: ts}"},
		{"avro zstd", "format: avro, compression: zstd"},
		{"avro snappy", "format: avro, compression: snappy"},
		{"json zstd", "format: json, compression: zstd"},
		{"json none", "format: json, compression: none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var rates []float64
			for range filesRounds {
				l := newFileLoad(t, fmt.Sprintf("directory: {path: %q, sync: false, %s}", filepath.Join(t.TempDir(), "table"), c.settings), 1)
				l.run(t, 0) // schema, buffers
				before := cpuOf(t, os.Getpid())
				l.run(t, 1)
				rates = append(rates, filesRows*filesClaims/(cpuOf(t, os.Getpid())-before).Seconds())
			}
			slices.Sort(rates)
			t.Logf("%-32s %8.0f rows per core second (median of %d: %.0f)", c.name, rates[len(rates)/2], filesRounds, rates)
		})
	}
	t.Run("hdfs", testFilesOnHDFS)
}

// testFilesOnHDFS compares JSON lines, uncompressed, with what the client alone can write of the same bytes, in turns.
func testFilesOnHDFS(t *testing.T) {
	server := testenv.HDFS(t)
	var limits, reached []float64
	for round := range filesRounds + 1 {
		l := newFileLoad(t, fmt.Sprintf("hdfs: {namenodes: [%q], path: /bench/%d, user: %s, format: json, compression: none}", server.Addr, round, server.User), filesParallel)
		l.run(t, 0)
		began := time.Now()
		l.run(t, 1)
		took := time.Since(began)
		bytes := l.bytes(t)
		limit := clientLimit(t, l.pipe.Sinks[0].HDFS, bytes/(2*filesParallel*filesClaims))
		if round > 0 { // the first warms the JVMs up
			limits, reached = append(limits, limit), append(reached, float64(bytes)/2/took.Seconds())
		}
	}
	slices.Sort(limits)
	slices.Sort(reached)
	a, b := reached[len(reached)/2], limits[len(limits)/2]
	t.Logf("JSON lines on HDFS: %.0f MB/s of %.0f MB/s that the client alone writes: %.0f%% (%.0f of %.0f)", a/1e6, b/1e6, 100*a/b, reached, limits)
}

// clientLimit is the rate at which the client writes files of a size, as many at a time as the sink does.
func clientLimit(t *testing.T, cfg *pipelines.HDFS, size int64) float64 {
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(i * 7)
	}
	f, err := hdfs.NewFS(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	began := time.Now()
	each(filesParallel, func(p int) error {
		for i := range filesClaims {
			file, err := f.Create(fmt.Sprintf("limit/%d-%d", p, i))
			if err != nil {
				return err
			}
			for at := 0; at < len(content); at += 256 << 10 {
				if _, err := file.Write(content[at:min(len(content), at+256<<10)]); err != nil {
					return err
				}
			}
			if err := file.Close(); err != nil {
				return err
			}
		}
		return nil
	}, t)
	return float64(size) * filesParallel * filesClaims / time.Since(began).Seconds()
}

// each runs fn for 0 to n-1 at the same time.
func each(n int, fn func(i int) error, t *testing.T) {
	t.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = fn(i) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fileLoad is a sink and the values of its topic.
type fileLoad struct {
	pipe     *pipelines.Pipeline
	sink     *directory.Sink
	blocks   []sinks.Block // of each partition: a worker keeps them too
	parallel int
	values   [][]byte
}

func newFileLoad(t *testing.T, settings string, parallel int) *fileLoad {
	t.Helper()
	pipes, err := pipelines.Parse("bench.yaml", fmt.Appendf(nil, "pipeline: p\ncollect: {file: {include: [/x]}}\nprocess: [{parse: json}]\nsink: {%s}\n", settings))
	if err != nil {
		t.Fatal(err)
	}
	l := &fileLoad{pipe: pipes[0], parallel: parallel}
	log := slog.New(slog.DiscardHandler)
	if l.pipe.Sinks[0].HDFS != nil {
		l.sink, err = hdfs.New(log, l.pipe.Sinks[0])
	} else {
		l.sink, err = directory.New(log, l.pipe.Sinks[0])
	}
	if err == nil {
		_, err = l.sink.Check(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.sink.Close() })
	for range parallel {
		b, err := l.sink.NewBlock()
		if err != nil {
			t.Fatal(err)
		}
		l.blocks = append(l.blocks, b)
	}
	for i := range 10_000 {
		l.values = append(l.values, fmt.Appendf(nil, `{"ts":"2026-11-30T10:%02d:%02d.%03dZ","host":"web-%d","remote_addr":"10.%d.%d.%d","method":"GET","path":"/products/%d","status":%d,"bytes":%d,`+
			`"referer":"https://example.com/","user_agent":"Mozilla/5.0 (X11; Linux x86_64)","seconds":0.0%02d}`,
			i/60%60, i%60, i%1000, i%8, i>>16&255, i>>8&255, i&255, i%5000, 200+i%5, i*37%100000, i%97))
	}
	return l
}

// run stores the claims of a round in each partition.
func (l *fileLoad) run(t *testing.T, round int) {
	t.Helper()
	each(l.parallel, func(p int) error {
		for i := range filesClaims {
			if err := l.store(int32(p), int64((round*filesClaims+i)*filesRows)); err != nil {
				return err
			}
		}
		return nil
	}, t)
}

func (l *fileLoad) store(partition int32, lo int64) error {
	c := sinks.Claim{Pipeline: "p", Topic: "p", TopicID: sinks.TopicID{1}, Partition: partition, Lo: lo, Hi: lo + filesRows - 1}
	if lo == 0 {
		if _, err := l.sink.Stored(context.Background(), c); err != nil {
			return err
		}
	}
	b := l.blocks[partition]
	b.Reset()
	var e pipelines.Event
	stamp := time.Unix(1_800_000_000, 0)
	for i := range int64(filesRows) {
		meta := pipelines.Meta{Topic: "p", Partition: partition, Offset: lo + i, Time: stamp}
		if err := l.pipe.ReadRecord(&e, meta, l.values[i%int64(len(l.values))]); err != nil {
			return err
		}
		if err := b.Append(&e); err != nil {
			return err
		}
	}
	return l.sink.Write(context.Background(), &sinks.Batch{Claim: c, Block: b, Identity: c.Identity()})
}

// bytes is about what the rounds have written: lines of JSON.
func (l *fileLoad) bytes(t *testing.T) int64 {
	t.Helper()
	var one int64
	for _, b := range l.blocks {
		one += b.Bytes() - 8*int64(b.Rows()) // the ends of its lines
	}
	return one * filesClaims * 2
}
