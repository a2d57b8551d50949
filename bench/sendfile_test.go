package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// bareAddr makes this test binary a bare server of bareFile on that address: a process of its own, as a broker is.
var (
	bareAddr = flag.String("bare-addr", "", "serve -bare-file on this address and measure nothing")
	bareFile = flag.String("bare-file", "", "the files to serve are this name with .0 and so on: one for each connection")
)

// TestBareServer is what this machine can do: it sends regions of a file from the page cache, and no more.
func TestBareServer(t *testing.T) {
	if *bareAddr == "" {
		t.Skip("a part of TestAgainstKafka")
	}
	l, err := net.Listen("tcp", *bareAddr)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		path := fmt.Sprintf("%s.%d", *bareFile, n%benchPartitions)
		go func() { _ = sendRegions(conn, path) }() // a client that goes ends it
	}
}

// sendRegions answers each byte that comes with the next region of the file behind its size, and begins again at its end.
func sendRegions(conn net.Conn, path string) error {
	defer conn.Close()
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var ask [1]byte
	var size [4]byte
	for left := info.Size(); ; {
		if _, err := io.ReadFull(conn, ask[:]); err != nil {
			return err
		}
		n := min(left, rawFetchBytes)
		binary.BigEndian.PutUint32(size[:], uint32(n))
		if _, err := conn.Write(size[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(conn, f, n); err != nil { // sendfile
			return err
		}
		if left -= n; left == 0 {
			if left, err = info.Size(), rewind(f); err != nil {
				return err
			}
		}
	}
}

func rewind(f *os.File) error {
	_, err := f.Seek(0, io.SeekStart)
	return err
}

func startBare(t *testing.T) rival {
	path := filepath.Join(t.TempDir(), "file")
	batch, err := rawBatch(RawConfig{RecordBytes: 100, BatchRecords: 9000, Codec: "none"})
	if err != nil {
		t.Fatal(err)
	}
	for n := range benchPartitions {
		f, err := os.Create(fmt.Sprintf("%s.%d", path, n))
		if err != nil {
			t.Fatal(err)
		}
		for written := 0; written < rawFetchBytesFilled/benchPartitions; written += len(batch) {
			if _, err := f.Write(batch); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	p := testenv.Start(t, testenv.Command{Name: "bare server", Path: os.Args[0],
		Args: []string{"-test.run", "^TestBareServer$", "-bare-addr", addr, "-bare-file", path},
		Ready: func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err == nil {
				err = conn.Close()
			}
			return err
		}})
	return rival{name: "bare server", addr: addr, pid: p.PID()}
}

// sendfileLimit compares the raw fetch with the same of a server that does nothing else but sendfile, in turn.
func sendfileLimit(t *testing.T, rivals [2]rival) {
	client := connectTo(t, rivals[0])
	w := &work{t, rivals[0], client, topicName("fetched")}
	fetch := rawFetchLoad()
	makeTopic(t, client, w.topic, benchPartitions, nil)
	if err := fetch.prepare(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	bare := startBare(t)
	samples := [2][]sample{}
	for range *runsEach {
		before := rivals[0].cpu(t)
		s, err := fetch.run(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		s.cpu = rivals[0].cpu(t).since(before)
		samples[0] = append(samples[0], s)
		samples[1] = append(samples[1], askBare(t, bare))
	}
	limit := load{name: "raw fetch 100 B, the bare server instead of Kafka"}
	limit.figure("MB/s", samples, func(s sample) float64 { return s.stats.MegabytesPerSecond() })
	limit.figure("CPU s/GB", samples, func(s sample) float64 { return s.cpu.perGB(s.stats.Bytes) })
	if err := deleteTopic(t.Context(), client, w.topic); err != nil {
		t.Fatal(err)
	}
}

func askBare(t *testing.T, bare rival) sample {
	ctx, cancel := context.WithTimeout(t.Context(), *loadFor)
	defer cancel()
	counted := newTally()
	before := bare.cpu(t)
	var wg sync.WaitGroup
	for range benchPartitions {
		wg.Go(func() {
			if err := askRegions(ctx, bare.addr, counted); err != nil {
				t.Error("client of the bare server: ", err)
			}
		})
	}
	wg.Wait()
	return sample{stats: counted.stats(), cpu: bare.cpu(t).since(before)}
}

func askRegions(ctx context.Context, addr string, t *tally) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	in := bufio.NewReaderSize(conn, rawReadBuffer)
	var buf []byte
	for ctx.Err() == nil {
		if _, err := conn.Write([]byte{1}); err != nil {
			return err
		}
		if buf, err = readFrame(in, buf); err != nil {
			return err
		}
		t.addMany(0, len(buf), 0)
	}
	return nil
}
