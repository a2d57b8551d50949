package quickio

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// connected are the two ends of a connection, the first of them as a Socket.
func connected(t *testing.T) (ours *Socket, other net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ours = NewSocket(conn)
	t.Cleanup(func() { ours.Close() })
	if other, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	return ours, other
}

// Parts arrive whole and in order whatever their number and size, more than the kernel's buffers hold and than one call takes.
func TestSocketWritesParts(t *testing.T) {
	ours, other := connected(t)
	var parts net.Buffers
	var want []byte
	for i := range 3000 {
		p := make([]byte, rand.IntN(100)*rand.IntN(100)*rand.IntN(i%7+1))
		for j := range p {
			p[j] = byte(rand.Uint32())
		}
		parts, want = append(parts, p), append(want, p...)
	}
	want = append(want, "the end"...)
	read := make(chan []byte)
	go func() {
		got := make([]byte, len(want))
		n, _ := io.ReadFull(other, got)
		read <- got[:n]
	}()
	if n, err := ours.WriteParts(parts); err != nil || n != int64(len(want)-7) {
		t.Fatalf("%d bytes written of %d: %v", n, len(want)-7, err)
	}
	if n, err := ours.Write([]byte("the end")); n != 7 || err != nil {
		t.Fatal(n, err)
	}
	if got := <-read; !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d arrived, or others", len(got), len(want))
	}
}

func TestSocketReads(t *testing.T) {
	ours, other := connected(t)
	want := bytes.Repeat([]byte("0123456789"), 500_000)
	go func() {
		_, _ = other.Write(want)
		other.Close()
	}()
	if got, err := io.ReadAll(ours); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d: %v", len(got), len(want), err)
	}
}

// A write that goes no further ends at its deadline and tells how much was written, and a read, too.
func TestSocketDeadlines(t *testing.T) {
	ours, _ := connected(t)
	if err := ours.SetDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := ours.WriteParts(net.Buffers{make([]byte, 64<<20)})
	if !errors.Is(err, os.ErrDeadlineExceeded) || n >= 64<<20 {
		t.Errorf("%d bytes written: %v", n, err)
	}
	if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// A connection that the other end has reset gives an error, and no signal ends the process.
func TestSocketOfOneThatIsGone(t *testing.T) {
	ours, other := connected(t)
	if err := other.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	other.Close()
	var err error
	for deadline := time.Now().Add(5 * time.Second); err == nil && time.Now().Before(deadline); {
		_, err = ours.Write([]byte("anything"))
	}
	if err == nil {
		t.Error("writes to a connection that is gone succeed")
	}
}
