package syslog

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/stream"
)

const patience = 20 * time.Second

// taken keeps what it is offered. Held, it keeps those who offer waiting.
type taken struct {
	mu      sync.Mutex
	lines   []string
	peers   map[string]int
	dropped map[string]int64
	gate    chan struct{} // closed when offers may be taken; nil: always
	over    chan struct{}
}

func newTaken() *taken {
	return &taken{peers: map[string]int{}, dropped: map[string]int64{}, over: make(chan struct{})}
}

func (k *taken) Take(o *stream.Offer) error {
	k.mu.Lock()
	gate := k.gate
	k.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-k.over:
			return stream.ErrOver
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range o.Chunk.Lines {
		k.lines = append(k.lines, string(o.Chunk.Value(&o.Chunk.Lines[i])))
		k.peers[o.Origin.Name]++
	}
	return nil
}

func (k *taken) Drop(reason string, lines, _ int64) {
	k.mu.Lock()
	k.dropped[reason] += lines
	k.mu.Unlock()
}

func (k *taken) all() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.lines)
}

// running is a server with its addresses by network.
type running struct {
	*Server
	t     *testing.T
	taken *taken
	addrs map[string]string
	stop  func()
}

func serve(t *testing.T, cfg Config) *running {
	t.Helper()
	r := &running{t: t, taken: newTaken(), addrs: map[string]string{}}
	listening := make(chan struct{}, len(cfg.Listen))
	var mu sync.Mutex
	cfg.OnListen = func(l Listen, at net.Addr) {
		mu.Lock()
		r.addrs[l.Network] = at.String()
		mu.Unlock()
		listening <- struct{}{}
	}
	r.Server = New(slog.New(slog.NewTextHandler(io.Discard, nil)), cfg)
	if r.Stats().Waiting == nil {
		t.Error("nothing is waited for before the start")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, r.taken)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(func() {
		close(r.taken.over)
		r.stop()
	})
	for range cfg.Listen {
		select {
		case <-listening:
		case <-time.After(patience):
			t.Fatal("not listening:", r.Stats().Waiting)
		}
	}
	return r
}

func (r *running) dial(network string) net.Conn {
	r.t.Helper()
	c, err := net.Dial(network, r.addrs[network])
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *running) say(c net.Conn, text string) {
	r.t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) eventually(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			r.t.Fatalf("not in time: %s; have %.2000q, dropped %v, %+v", what, r.taken.all(), r.taken.dropped, r.Stats())
		}
	}
}

func (r *running) wants(lines ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d lines", len(lines)), func() bool { return len(r.taken.all()) >= len(lines) })
	got := r.taken.all()
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		r.t.Fatalf("have %q, want %q", got, lines)
	}
}

func TestEveryNetwork(t *testing.T) {
	dir := t.TempDir()
	r := serve(t, Config{ReceiveBuffer: 1 << 20, SocketMode: 0o620, Listen: []Listen{
		{"tcp", "127.0.0.1:0"}, {"udp", "127.0.0.1:0"}, {"unix", filepath.Join(dir, "s")}, {"unixgram", filepath.Join(dir, "g")},
	}})
	r.say(r.dial("tcp"), "<1>by line\n")
	r.say(r.dial("tcp"), "10 <2>counted")
	udp := r.dial("udp")
	r.say(udp, "<3>datagram\nof two lines\n")
	r.say(udp, "<3>second")
	r.say(r.dial("unix"), "<4>stream\n")
	r.say(r.dial("unixgram"), "<5>local")
	r.wants("<1>by line", "<2>counted", "<3>datagram\nof two lines", "<3>second", "<4>stream", "<5>local")
	want := map[string]int{"127.0.0.1": 4, filepath.Join(dir, "s"): 1, filepath.Join(dir, "g"): 1}
	if r.taken.mu.Lock(); fmt.Sprint(r.taken.peers) != fmt.Sprint(want) {
		t.Errorf("peers %v", r.taken.peers)
	}
	r.taken.mu.Unlock()
	if info, err := os.Stat(filepath.Join(dir, "g")); err != nil || info.Mode().Perm() != 0o620 {
		t.Errorf("%v, %v", info, err)
	}
	if st := r.Stats(); st.Waiting != nil || st.Connections != 3 {
		t.Errorf("stats %+v", st)
	}
	r.stop()
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What has come before a stop is taken, whole or not.
func TestStopTakesWhatHasCome(t *testing.T) {
	r := serve(t, Config{Listen: []Listen{{"tcp", "127.0.0.1:0"}}})
	c := r.dial("tcp")
	r.say(c, "<1>first\n")
	r.wants("<1>first")
	r.say(c, "<1>second\n<1>not wh")
	r.stop()
	r.wants("<1>first", "<1>second", "<1>not wh")
}

func TestLimitOfConnections(t *testing.T) {
	r := serve(t, Config{Listen: []Listen{{"tcp", "127.0.0.1:0"}}, ConnectionsMax: 2})
	first, second := r.dial("tcp"), r.dial("tcp")
	r.say(first, "<1>a\n")
	r.say(second, "<1>b\n")
	r.wants("<1>a", "<1>b")
	third := r.dial("tcp")
	if _, err := third.Read(make([]byte, 1)); err == nil {
		t.Error("the third connection was answered")
	}
	r.eventually("it is counted", func() bool { return r.Stats().Refused == 1 })
	first.Close()
	r.eventually("there is room again", func() bool { return r.Stats().Connections == 1 })
	r.say(r.dial("tcp"), "<1>c\n")
	r.wants("<1>a", "<1>b", "<1>c")
}

func TestIdleTimeout(t *testing.T) {
	r := serve(t, Config{Listen: []Listen{{"tcp", "127.0.0.1:0"}}, IdleTimeout: 50 * time.Millisecond})
	c := r.dial("tcp")
	r.say(c, "<1>half")
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection: %v", err)
	}
	r.wants("<1>half")
	if st := r.Stats(); st.Idle != 1 {
		t.Errorf("stats %+v", st)
	}
}

// While nothing is kept, a connection is held and datagrams beyond the limit are dropped and counted.
func TestNothingIsKept(t *testing.T) {
	r := serve(t, Config{Listen: []Listen{{"tcp", "127.0.0.1:0"}, {"udp", "127.0.0.1:0"}}})
	gate := make(chan struct{})
	r.taken.gate = gate
	c := r.dial("tcp")
	line := []byte("<1>" + strings.Repeat("x", 996) + "\n")
	written := 0
	if err := c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := c.Write(line)
		written += n
		if err != nil {
			break
		}
	}
	udp := r.dial("udp")
	datagram := "<1>" + strings.Repeat("y", 59_997)
	sent := int64(0)
	r.eventually("datagrams are dropped", func() bool {
		_, err := udp.Write([]byte(datagram))
		if err == nil {
			sent++
		}
		r.taken.mu.Lock()
		defer r.taken.mu.Unlock()
		return r.taken.dropped[DropBacklog] > 10
	})
	close(gate)
	r.eventually("all of the connection, and the datagrams that were not dropped", func() bool {
		r.taken.mu.Lock()
		defer r.taken.mu.Unlock()
		tcp, udp := 0, int64(0)
		for _, l := range r.taken.lines {
			if l[3] == 'x' {
				tcp++
			} else {
				udp++
			}
		}
		return tcp == written/len(line) && udp+r.taken.dropped[DropBacklog]+r.Stats().KernelDrops == sent
	})
}

// What the system drops because nobody reads fast enough is counted where the system tells.
func TestKernelDrops(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &place{}
	p.watchDrops(c)
	to, err := net.Dial("udp", c.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	big := make([]byte, 32<<10)
	for range 200 {
		_, _ = to.Write(big)
	}
	dropped := p.drops.total()
	p.closeDrops()
	c.Close()
	if dropped == 0 || dropped >= 200 || p.drops.total() != dropped {
		t.Errorf("%d dropped, %d after the end", dropped, p.drops.total())
	}
}

func TestManyConnectionsAtOnce(t *testing.T) {
	conns := 1000
	if testing.Short() {
		conns = 100
	}
	r := serve(t, Config{Listen: []Listen{{"tcp", "127.0.0.1:0"}}, ConnectionsMax: conns})
	var want []string
	var open []net.Conn
	for i := range conns {
		c := r.dial("tcp")
		open = append(open, c)
		want = append(want, fmt.Sprintf("<1>%d", i), fmt.Sprintf("<2>%d", i))
		r.say(c, fmt.Sprintf("<1>%d\n<2>", i)) // half a message
	}
	for i, c := range open {
		r.say(c, fmt.Sprintf("%d\n", i))
	}
	r.wants(want...)
}

func TestGarbageIsKept(t *testing.T) {
	r := serve(t, Config{Listen: []Listen{{"tcp", "127.0.0.1:0"}}, MessageBytesMax: 1 << 10})
	c := r.dial("tcp")
	garbage := make([]byte, 1<<20)
	_, _ = rand.Read(garbage)
	garbage[0] = 0xff
	r.say(c, string(garbage)+"\n<1>after\n")
	r.eventually("what follows", func() bool { return slices.Contains(r.taken.all(), "<1>after") })
}

// A socket that a kill left is taken over; one that is listened at, and a file, are not.
func TestSocketsThatAreThere(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "s")
	l, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	r := serve(t, Config{Listen: []Listen{{"unix", stale}}})
	r.say(r.dial("unix"), "<1>a\n")
	r.wants("<1>a")
	if _, err := listenUnix(stale, 0o600); err == nil || !strings.Contains(err.Error(), "somebody listens") {
		t.Errorf("a second listener: %v", err)
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnixgram(file, 0o600); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
}

func TestAddressThatIsTaken(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(slog.New(slog.NewTextHandler(io.Discard, nil)), Config{Listen: []Listen{{"tcp", busy.Addr().String()}}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, newTaken())
	}()
	r := &running{Server: s, t: t, taken: newTaken()}
	r.eventually("it is said", func() bool {
		err := s.Stats().Waiting
		return err != nil && strings.Contains(err.Error(), "in use")
	})
	busy.Close()
	r.eventually("it is had", func() bool { return s.Stats().Waiting == nil })
	cancel()
	<-done
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, dir, "server")
	clientCert, clientKey := certificate(t, dir, "client")
	cfg, err := TLSConfig(cert, key, clientCert)
	if err != nil {
		t.Fatal(err)
	}
	r := serve(t, Config{Listen: []Listen{{"tls", "127.0.0.1:0"}}, TLS: cfg})
	pair, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots.AppendCertsFromPEM(text)
	c, err := tls.Dial("tcp", r.addrs["tls"], &tls.Config{RootCAs: roots, ServerName: "localhost", Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.say(c, "9 <1>secret")
	if without, err := tls.Dial("tcp", r.addrs["tls"], &tls.Config{RootCAs: roots, ServerName: "localhost"}); err == nil {
		_, err = without.Read(make([]byte, 1)) // TLS 1.3 tells the client late
		if err == nil {
			t.Error("a client without certificate was let in")
		}
		without.Close()
	}
	if plain, err := net.Dial("tcp", r.addrs["tls"]); err == nil {
		_, _ = plain.Write([]byte("<1>plain\n"))
		plain.Close()
	}
	r.wants("<1>secret")
	if _, err := TLSConfig(cert, filepath.Join(dir, "none"), ""); err == nil {
		t.Error("a key that is not there was taken")
	}
}

// certificate makes one that signs itself.
func certificate(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
