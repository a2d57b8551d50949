package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// handlerFunc is a Handler.
type handlerFunc func(*Request)

func (f handlerFunc) Handle(r *Request) { f(r) }

// echo answers with the body.
func echo(r *Request) {
	r.Respond(Response{Parts: []Part{{Bytes: bytes.Clone(r.Body)}}})
}

// start serves h on a free port until the test ends.
func start(t testing.TB, cfg Config, h handlerFunc) (*Server, string) {
	t.Helper()
	return startLogging(t, cfg, h, io.Discard)
}

func startLogging(t testing.TB, cfg Config, h handlerFunc, log io.Writer) (*Server, string) {
	t.Helper()
	cfg.ListenAddrs = []string{"127.0.0.1:0"}
	s := New(slog.New(slog.NewTextHandler(log, nil)), nil, cfg, h)
	addrs, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	s.Serve()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Shutdown(ctx) // the context has ended: connections are cut
	})
	return s, addrs[0].String()
}

// client is a raw connection.
type client struct {
	t testing.TB
	net.Conn
}

func dial(t testing.TB, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, Conn: c}
}

// request encodes a request with header version 1.
func request(key int16, correlation int32, body string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(key))
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(correlation))
	b = append(b, 0, 2, 'm', 'e')
	b = append(b, body...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// receive reads one response.
func (c *client) receive() (correlation int32, body []byte) {
	c.t.Helper()
	head := make([]byte, 8)
	if _, err := io.ReadFull(c, head); err != nil {
		c.t.Fatalf("read response: %v", err)
	}
	body = make([]byte, int(binary.BigEndian.Uint32(head))-4)
	if _, err := io.ReadFull(c, body); err != nil {
		c.t.Fatalf("read response: %v", err)
	}
	return int32(binary.BigEndian.Uint32(head[4:])), body
}

// expect reads a response and compares it.
func (c *client) expect(correlation int32, body string) {
	c.t.Helper()
	gotID, got := c.receive()
	if gotID != correlation || string(got) != body {
		c.t.Fatalf("response %d %q, want %d %q", gotID, got, correlation, body)
	}
}

// expectClosed waits for the server to close the connection, and returns what it sent before.
func (c *client) expectClosed() []byte {
	c.t.Helper()
	got, err := io.ReadAll(c)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Fatal("the connection was not closed")
	}
	return got
}

func TestFramingGoldenBytes(t *testing.T) {
	flexible := func(key, version int16) bool { return version >= 9 }
	type header struct {
		key, version int16
		correlation  int32
		client       string
	}
	var got header
	_, addr := start(t, Config{Flexible: flexible}, func(r *Request) {
		got = header{r.Key, r.Version, r.CorrelationID, r.ClientID}
		r.Respond(Response{
			Parts:    []Part{{Bytes: bytes.Clone(r.Body)}, {Bytes: []byte{0xee}}},
			Flexible: r.Version >= 9,
		})
	})
	for _, tc := range []struct {
		name, request, response string
		want                    header
	}{
		{
			"header 1", "0000000f" + "0003" + "0002" + "00000007" + "0003" + "616263" + "aabb",
			"00000007" + "00000007" + "aabb" + "ee",
			header{3, 2, 7, "abc"},
		},
		{
			"header 1, null client", "0000000c" + "0003" + "0002" + "00000008" + "ffff" + "aabb",
			"00000007" + "00000008" + "aabb" + "ee",
			header{3, 2, 8, ""},
		},
		{
			"header 2 with a tagged field", "00000011" + "0003" + "0009" + "ffffffff" + "0001" + "61" + "01" + "05" + "01" + "ff" + "aabb",
			"00000008" + "ffffffff" + "00" + "aabb" + "ee",
			header{3, 9, -1, "a"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dial(t, addr)
			in, _ := hex.DecodeString(tc.request)
			c.send(in)
			want, _ := hex.DecodeString(tc.response)
			out := make([]byte, len(want))
			if _, err := io.ReadFull(c, out); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out, want) {
				t.Errorf("response %x, want %x", out, want)
			}
			if got != tc.want {
				t.Errorf("request %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestAnswersLeaveInOrder(t *testing.T) {
	waiting := make(chan *Request, 1)
	s, addr := start(t, Config{}, func(r *Request) {
		if r.Key == 1 {
			waiting <- r
			return
		}
		echo(r)
	})
	c := dial(t, addr)
	c.send(append(append(request(1, 1, "slow"), request(2, 2, "fast")...), request(2, 3, "too")...))
	first := <-waiting
	waitFor(t, func() bool { return s.anyConn((*Conn).lastIsReady) })
	go echo(first)
	c.expect(1, "slow")
	c.expect(2, "fast")
	c.expect(3, "too")
}

func TestNoResponseLetsTheNextPass(t *testing.T) {
	_, addr := start(t, Config{}, func(r *Request) {
		if r.Key == 1 {
			r.NoResponse()
			return
		}
		echo(r)
	})
	c := dial(t, addr)
	c.send(request(1, 1, "silent"))
	c.send(request(2, 2, "heard"))
	c.expect(2, "heard")
}

func TestManyAnswersFromManyGoroutines(t *testing.T) {
	_, addr := start(t, Config{MaxInFlight: 7}, func(r *Request) { go echo(r) })
	c := dial(t, addr)
	const count = 2000
	go func() {
		for i := range count {
			if _, err := c.Write(request(1, int32(i), strings.Repeat("x", i%5000))); err != nil {
				return
			}
		}
	}()
	for i := range count {
		if id, body := c.receive(); id != int32(i) || len(body) != i%5000 {
			t.Fatalf("response %d of %d bytes at %d", id, len(body), i)
		}
	}
}

func TestBadFramesCloseTheirConnectionOnly(t *testing.T) {
	var log testenv.Buffer
	s, addr := startLogging(t, Config{MaxRequestBytes: 1000}, echo, &log)
	good := dial(t, addr)
	for _, frame := range []string{
		"00000000", "ffffffff", "80000000", "7fffffff", "000003e9", "00000009",
		"0000000a" + "0001" + "0001" + "00000001" + "7fff", // client id longer than the frame
		"0000000a" + "0001" + "0001" + "00000001" + "fffe", // client id of -2 bytes
	} {
		c := dial(t, addr)
		b, _ := hex.DecodeString(frame)
		c.send(b)
		if got := c.expectClosed(); len(got) > 0 {
			t.Errorf("%s was answered with %x", frame, got)
		}
	}
	good.send(request(1, 5, "still here"))
	good.expect(5, "still here")
	waitFor(t, func() bool { return strings.Count(log.String(), "connection closed") == 8 })
	waitFor(t, func() bool { return len(s.connections()) == 1 })
}

func TestCheckComesBeforeTheRestOfTheFrame(t *testing.T) {
	refuse := errors.New("unknown key")
	_, addr := start(t, Config{Check: func(key, _ int16, bytes int) error {
		if key == 99 && bytes == 50<<20 {
			return refuse
		}
		return nil
	}}, echo)
	c := dial(t, addr)
	c.send(binary.BigEndian.AppendUint32(nil, 50<<20))
	c.send([]byte{0, 99, 0, 0})
	c.expectClosed()
}

func TestHalfFrameTimesOut(t *testing.T) {
	for _, part := range []int{1, 4, 6, 12} {
		s, addr := start(t, Config{FrameTimeout: 30 * time.Second}, echo)
		c := dial(t, addr)
		c.send(request(1, 1, "body")[:part])
		waitFor(t, func() bool { return s.anyConn(func(c *Conn) bool { return c.frameDue.Load() != 0 }) })
		s.tidy(time.Now().Add(29 * time.Second))
		if len(s.connections()) != 1 {
			t.Fatal("closed too early")
		}
		s.tidy(time.Now().Add(32 * time.Second))
		c.expectClosed()
	}
}

func TestIdleConnectionIsClosed(t *testing.T) {
	waiting := make(chan *Request, 1)
	s, addr := start(t, Config{IdleTimeout: time.Minute}, func(r *Request) {
		if r.Key == 1 {
			waiting <- r
			return
		}
		echo(r)
	})
	idle, busy := dial(t, addr), dial(t, addr)
	busy.send(request(1, 1, ""))
	r := <-waiting
	waitFor(t, func() bool { return len(s.connections()) == 2 })
	s.tidy(time.Now().Add(2 * time.Minute))
	idle.expectClosed()
	echo(r)
	busy.expect(1, "")
}

func TestAnswersThatAreNotReadCloseTheConnection(t *testing.T) {
	big := make([]byte, 64<<20)
	s, addr := start(t, Config{WriteTimeout: time.Minute}, func(r *Request) {
		r.Respond(Response{Parts: []Part{{Bytes: big}}})
	})
	c := dial(t, addr)
	c.send(request(1, 1, ""))
	waitFor(t, func() bool { return s.anyConn(func(c *Conn) bool { return c.writeDue.Load() != 0 }) })
	s.tidy(time.Now().Add(2 * time.Minute))
	waitFor(t, func() bool { return len(s.connections()) == 0 })
}

func TestClientGoneEndsTheWait(t *testing.T) {
	gone := make(chan struct{})
	waiting := make(chan struct{})
	s, addr := start(t, Config{}, func(r *Request) {
		r.OnGone(func() {
			<-r.Done()
			r.NoResponse()
			close(gone)
		})
		close(waiting)
	})
	c := dial(t, addr)
	c.send(request(1, 1, strings.Repeat("x", 100_000)))
	<-waiting
	if s.memory.small.TryAcquire(s.cfg.RequestMemoryBytes / 2) {
		t.Fatal("the request's memory is not charged")
	}
	c.Close()
	<-gone
	if !s.memory.small.TryAcquire(s.cfg.RequestMemoryBytes / 2) {
		t.Error("the request's memory was not given back")
	}
}

func TestClientGoneIsSeenAtTheInFlightLimit(t *testing.T) {
	const limit = 3
	started := make(chan *Request, 100)
	gone := make(chan struct{}, 100)
	_, addr := start(t, Config{MaxInFlight: limit}, func(r *Request) {
		r.OnGone(func() { gone <- struct{}{} })
		started <- r
	})
	c := dial(t, addr)
	for i := range limit + 2 {
		c.send(request(1, int32(i), "x"))
	}
	var held []*Request
	for range limit {
		held = append(held, <-started)
	}
	select {
	case <-started:
		t.Fatal("a request was started beyond the limit")
	default:
	}
	// One answer lets one more start.
	echo(held[0])
	c.expect(0, "x")
	<-started
	c.Close()
	for range limit {
		<-gone
	}
}

func TestFileRegions(t *testing.T) {
	const size = 5 << 20
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	path := filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var releases sync.WaitGroup
	region := func(file io.ReaderAt, pos int64, n int) Part {
		releases.Add(1)
		return Part{File: file, Pos: pos, Len: n, Release: releases.Done}
	}
	_, addr := start(t, Config{}, func(r *Request) {
		file := io.ReaderAt(f)
		if r.Key == 2 {
			file = bytes.NewReader(data) // no *os.File: through a buffer
		}
		r.Respond(Response{Parts: []Part{
			{Bytes: []byte("head")},
			region(file, 1000, 3<<20),
			{Bytes: []byte("middle")},
			region(file, 7, 100),
			region(file, size-70_000, 70_000),
			{Bytes: []byte("tail")},
		}})
	})
	want := slicesConcat([]byte("head"), data[1000:1000+3<<20], []byte("middle"), data[7:107], data[size-70_000:], []byte("tail"))
	c := dial(t, addr)
	for key := int16(1); key <= 2; key++ {
		c.send(request(key, int32(key), ""))
		if id, got := c.receive(); id != int32(key) || !bytes.Equal(got, want) {
			t.Errorf("key %d: response %d of %d bytes differs", key, id, len(got))
		}
	}
	releases.Wait()
	if pos, err := f.Seek(0, io.SeekCurrent); pos != 0 || err != nil {
		t.Errorf("the file's own position moved to %d, %v", pos, err)
	}
}

func slicesConcat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestRegionCutShortClosesTheConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(path, make([]byte, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, tc := range []struct {
		pos int64
		n   int
	}{{50_000, 50_001}, {99_999, 2}} {
		released := make(chan struct{})
		_, addr := start(t, Config{}, func(r *Request) {
			r.Respond(Response{Parts: []Part{{File: f, Pos: tc.pos, Len: tc.n, Release: func() { close(released) }}}})
		})
		c := dial(t, addr)
		c.send(request(1, 1, ""))
		if got := c.expectClosed(); len(got) >= 8+tc.n {
			t.Errorf("%d bytes of a region that is shorter", len(got))
		}
		<-released
	}
}

func TestConnectionLimits(t *testing.T) {
	s, addr := start(t, Config{MaxConnectionsPerIP: 2}, echo)
	a, b := dial(t, addr), dial(t, addr)
	waitFor(t, func() bool { return len(s.connections()) == 2 })
	dial(t, addr).expectClosed()
	a.send(request(1, 1, "a"))
	a.expect(1, "a")
	b.Close()
	waitFor(t, func() bool { return len(s.connections()) == 1 })
	c := dial(t, addr)
	c.send(request(1, 2, "c"))
	c.expect(2, "c")

	_, addr = start(t, Config{MaxConnections: 1}, echo)
	d := dial(t, addr)
	d.send(request(1, 3, "d"))
	d.expect(3, "d")
	dial(t, addr).expectClosed()
}

func TestRequestMemoryIsBounded(t *testing.T) {
	const size = 400_000
	started := make(chan *Request, 10)
	s, addr := start(t, Config{MaxRequestBytes: 500_000, RequestMemoryBytes: 1}, func(r *Request) { started <- r })
	if s.cfg.RequestMemoryBytes != 1_000_000 {
		t.Fatalf("budget of %d bytes", s.cfg.RequestMemoryBytes)
	}
	a, b := dial(t, addr), dial(t, addr)
	body := strings.Repeat("x", size)
	a.send(request(1, 1, body))
	first := <-started
	sent := make(chan struct{})
	go func() { b.send(request(1, 2, body)); close(sent) }()
	waitFor(t, func() bool { return s.anyConn(func(c *Conn) bool { return c.frameDue.Load() != 0 }) })
	select {
	case <-started:
		t.Fatal("the second request was read without room for it")
	default:
	}
	echo(first)
	a.receive()
	second := <-started
	<-sent
	echo(second)
	b.receive()
}

func TestLargeFramesArriveWhole(t *testing.T) {
	_, addr := start(t, Config{}, echo)
	c := dial(t, addr)
	for _, size := range []int{largeFrameBytes - 20, largeFrameBytes + 1, 3 << 20, 3 << 20, 20 << 20} {
		body := strings.Repeat("0123456789abcdef", size/16)
		go c.send(request(1, 1, body))
		c.expect(1, body)
	}
}

func TestShutdownAnswersWhatHasStarted(t *testing.T) {
	waiting := make(chan *Request, 2)
	s, addr := start(t, Config{}, func(r *Request) { waiting <- r })
	idle, busy := dial(t, addr), dial(t, addr)
	busy.send(append(request(1, 1, "a"), request(1, 2, "b")...))
	a, b := <-waiting, <-waiting
	waitFor(t, func() bool { return len(s.connections()) == 2 })
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	idle.expectClosed()
	echo(b)
	echo(a)
	busy.expect(1, "a")
	busy.expect(2, "b")
	busy.expectClosed()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("the listener is still open")
	}
}

func TestShutdownCutsWhatTakesTooLong(t *testing.T) {
	waiting := make(chan *Request, 1)
	s, addr := start(t, Config{}, func(r *Request) { waiting <- r })
	c := dial(t, addr)
	c.send(request(1, 1, "a"))
	r := <-waiting
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown returned %v", err)
	}
	c.expectClosed()
	echo(r) // too late, and harmless
}

func TestFailLogsTheSoftwareOnce(t *testing.T) {
	var log testenv.Buffer
	_, addr := startLogging(t, Config{}, func(r *Request) {
		r.Conn.SetClientSoftware("librdkafka", "2.0")
		r.Fail(errors.New("unsupported request"))
	}, &log)
	c := dial(t, addr)
	c.send(request(1, 1, ""))
	c.expectClosed()
	waitFor(t, func() bool { return strings.Contains(log.String(), "software=librdkafka software_version=2.0") })
	if n := strings.Count(log.String(), "unsupported request"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func TestGarbageStormLeavesOthersAlone(t *testing.T) {
	s, addr := start(t, Config{}, echo)
	good := dial(t, addr)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 300 {
		c := dial(t, addr)
		switch i % 3 {
		case 0: // a huge frame that never comes
			c.send(append(binary.BigEndian.AppendUint32(nil, 99<<20), request(1, 1, "")[4:]...))
		case 1: // text
			c.send([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
		case 2:
			c.send(request(1, 1, "half")[:9])
		}
		if i%3 != 0 {
			c.Close()
		}
		good.send(request(1, int32(i), "fine"))
		good.expect(int32(i), "fine")
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 40<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	s.tidy(time.Now().Add(time.Hour))
}

func TestMemoryKeepsAndTrims(t *testing.T) {
	m := newMemory(1<<20, 1<<16)
	var frames []*frame
	for range 3 {
		f, err := m.charge(t.Context(), 10_000)
		if err != nil {
			t.Fatal(err)
		}
		m.take(f, 10_000, true)
		frames = append(frames, f)
	}
	for _, f := range frames {
		m.put(f)
	}
	if m.idle != 3*16384 {
		t.Errorf("%d bytes kept", m.idle)
	}
	m.trim() // all were in use since the last one
	f, _ := m.charge(t.Context(), 9000)
	if !m.take(f, 9000, false) {
		t.Error("a kept buffer was not used")
	}
	m.put(f)
	m.trim()
	if m.idle != 16384 {
		t.Errorf("%d bytes kept after a round that needed one buffer", m.idle)
	}
	m.trim()
	if m.idle != 0 {
		t.Errorf("%d bytes kept after a round that needed none", m.idle)
	}
}

// waitFor polls for what another goroutine is about to do.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
		runtime.Gosched()
	}
}

func (s *Server) anyConn(cond func(*Conn) bool) bool {
	for _, c := range s.connections() {
		if cond(c) {
			return true
		}
	}
	return false
}

// lastIsReady tells whether the newest request of a queue of three is answered.
func (c *Conn) lastIsReady() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight == 3 && c.tail.ready
}

func TestSumsOfLargeFrames(t *testing.T) {
	const piece = 64 << 10
	cfg := Config{Sums: func(key int16) bool { return key == 1 }, PieceBytes: piece, PieceSum: crc32.ChecksumIEEE}
	_, addr := start(t, cfg, func(r *Request) {
		b := binary.BigEndian.AppendUint32(nil, uint32(r.BodyAt))
		for _, sum := range r.Sums {
			b = binary.BigEndian.AppendUint32(b, sum)
		}
		r.Respond(Response{Parts: []Part{{Bytes: b}}})
	})
	c := dial(t, addr)
	for _, size := range []int{20, summedBytesMin - 1, summedBytesMin, 5*piece + 1, largeFrameBytes, largeFrameBytes + 1, 3 << 20, 3 << 20, 20 << 20} {
		for key := range int16(2) {
			frame := request(key, 1, strings.Repeat("0123456789abcdefg", size)[:size-12])
			go c.send(frame)
			want := "\x00\x00\x00\x0c" // the body starts behind the header
			for at := 4; key == 1 && size >= summedBytesMin && at+piece <= len(frame); at += piece {
				want = string(binary.BigEndian.AppendUint32([]byte(want), crc32.ChecksumIEEE(frame[at:at+piece])))
			}
			c.expect(1, want)
		}
	}
}
