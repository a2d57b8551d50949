//go:build (amd64 || arm64) && !race

package quickio

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// Socket is a connection whose reads and writes are made without telling Go's scheduler where it is plain TCP: a socket never blocks in a call,
// and what the scheduler does about one that might, a monitor thread kept awake and the processor handed to another thread in the middle of a
// copy, costs more than a small request, and a tenth to a seventh of the CPU of large ones.
//
// The race detector would miss what a message orders, so it gets ordinary calls.
//
// One goroutine may read and one may write at a time. Each call's arguments and results lie in the socket, beside functions made once, so
// that a call costs no allocation.
type Socket struct {
	net.Conn
	raw syscall.RawConn // nil if it is not plain TCP

	in, out   transfer
	parts     []syscall.Iovec // of a WriteParts
	msg       syscall.Msghdr  // of it
	readable  func(fd uintptr) bool
	writeable func(fd uintptr) bool
	gathering func(fd uintptr) bool
}

// transfer is a call under way.
type transfer struct {
	of    unsafe.Pointer // what the call is about
	a, b  uintptr        // its arguments behind that
	n     int
	errno syscall.Errno
}

// sendPartsMax bounds the parts of one call; the kernel takes 1024.
const sendPartsMax = 256

// NewSocket takes a connection over.
func NewSocket(conn net.Conn) *Socket {
	s := &Socket{Conn: conn}
	if tcp, ok := conn.(*net.TCPConn); ok {
		s.raw, _ = tcp.SyscallConn() // fails only on a closed connection, which then fails to read
	}
	s.readable = func(fd uintptr) bool { return s.in.do(syscall.SYS_RECVFROM, fd) }
	s.writeable = func(fd uintptr) bool { return s.out.do(syscall.SYS_SENDTO, fd) }
	s.gathering = func(fd uintptr) bool { return s.out.do(syscall.SYS_SENDMSG, fd) }
	return s
}

// do tries the call and returns false if the socket is not ready for it.
func (t *transfer) do(call, fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall6(call, fd, uintptr(t.of), t.a, t.b, 0, 0)
		t.n, t.errno = int(n), errno
		if errno != syscall.EINTR {
			return errno != syscall.EAGAIN
		}
	}
}

// bytesOf is a transfer of a buffer.
func bytesOf(b []byte, flags uintptr) transfer {
	return transfer{of: unsafe.Pointer(unsafe.SliceData(b)), a: uintptr(len(b)), b: flags}
}

// Read implements net.Conn.
func (s *Socket) Read(b []byte) (int, error) {
	if s.raw == nil || len(b) == 0 {
		return s.Conn.Read(b)
	}
	s.in = bytesOf(b, 0)
	err := s.raw.Read(s.readable)
	s.in.of = nil
	switch {
	case err != nil:
		return 0, err
	case s.in.errno != 0:
		return 0, os.NewSyscallError("recv", s.in.errno)
	case s.in.n == 0:
		return 0, io.EOF
	}
	return s.in.n, nil
}

// Write implements net.Conn.
func (s *Socket) Write(b []byte) (int, error) { return s.send(b, syscall.MSG_NOSIGNAL) }

// WriteMore writes b when more follows at once: the kernel may keep the end of it until then, so that what belongs together shares packets.
func (s *Socket) WriteMore(b []byte) (int, error) {
	return s.send(b, syscall.MSG_NOSIGNAL|syscall.MSG_MORE)
}

func (s *Socket) send(b []byte, flags uintptr) (sent int, err error) {
	if s.raw == nil {
		return s.Conn.Write(b)
	}
	for sent < len(b) && err == nil {
		s.out = bytesOf(b[sent:], flags)
		var n int
		n, err = s.write(s.writeable)
		sent += n
	}
	return sent, err
}

// write makes the call that out holds.
func (s *Socket) write(call func(fd uintptr) bool) (int, error) {
	err := s.raw.Write(call)
	s.out.of = nil
	switch {
	case err != nil:
		return 0, err
	case s.out.errno != 0:
		return 0, os.NewSyscallError("send", s.out.errno)
	}
	return s.out.n, nil
}

// WriteParts writes parts, which it changes, one after the other.
func (s *Socket) WriteParts(parts net.Buffers) (sent int64, err error) {
	if s.raw == nil {
		return parts.WriteTo(s.Conn)
	}
	for len(parts) > 0 && err == nil {
		s.load(parts)
		if len(s.parts) == 0 {
			break
		}
		s.msg.Iov, s.msg.Iovlen = unsafe.SliceData(s.parts), uint64(len(s.parts))
		s.out = transfer{of: unsafe.Pointer(&s.msg), a: syscall.MSG_NOSIGNAL}
		var n int
		n, err = s.write(s.gathering)
		clear(s.parts) // they keep what they point to
		s.parts = s.parts[:0]
		sent += int64(n)
		parts = passed(parts, n)
	}
	return sent, err
}

// load takes the first parts of what is to be written.
func (s *Socket) load(parts net.Buffers) {
	for _, p := range parts[:min(len(parts), sendPartsMax)] {
		if len(p) > 0 {
			s.parts = append(s.parts, syscall.Iovec{Base: &p[0], Len: uint64(len(p))})
		}
	}
}

// passed is what is left of parts after n bytes.
func passed(parts net.Buffers, n int) net.Buffers {
	for len(parts) > 0 && n >= len(parts[0]) {
		n -= len(parts[0])
		parts[0] = nil
		parts = parts[1:]
	}
	if n > 0 {
		parts[0] = parts[0][n:]
	}
	return parts
}
