//go:build !race

package server

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// socket reads and writes a connection. A socket never blocks in a call, so the
// calls are made without telling Go's scheduler: what the scheduler does about
// one that might block, a monitor thread woken and a processor handed to another
// thread, costs more than a small request, and a tenth of a large one's copy.
//
// The race detector would miss what a message orders, so it gets ordinary calls.
//
// One goroutine may read and one may write at a time. Each call's arguments and
// results lie in the socket, beside functions made once, so that a call costs no
// allocation.
type socket struct {
	nc  net.Conn
	raw syscall.RawConn // nil if nc is not plain TCP

	in, out   transfer
	readable  func(fd uintptr) bool
	writeable func(fd uintptr) bool
}

// transfer is a call under way.
type transfer struct {
	buf   []byte
	flags uintptr
	n     int
	errno syscall.Errno
}

func newSocket(nc net.Conn, raw syscall.RawConn) *socket {
	s := &socket{nc: nc, raw: raw}
	s.readable = func(fd uintptr) bool { return s.in.do(syscall.SYS_RECVFROM, fd) }
	s.writeable = func(fd uintptr) bool { return s.out.do(syscall.SYS_SENDTO, fd) }
	return s
}

// do tries the call and returns false if the socket is not ready for it.
func (t *transfer) do(call, fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.buf))), uintptr(len(t.buf)), t.flags, 0, 0)
		t.n, t.errno = int(n), errno
		if errno != syscall.EINTR {
			return errno != syscall.EAGAIN
		}
	}
}

// Read implements io.Reader.
func (s *socket) Read(b []byte) (int, error) {
	if s.raw == nil || len(b) == 0 {
		return s.nc.Read(b)
	}
	s.in = transfer{buf: b}
	err := s.raw.Read(s.readable)
	s.in.buf = nil
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

// Write implements io.Writer.
func (s *socket) Write(b []byte) (int, error) {
	if s.raw == nil {
		return s.nc.Write(b)
	}
	return s.send(b, syscall.MSG_NOSIGNAL)
}

// writeMore writes b when more follows at once: the kernel may keep the end of it
// until then, so that a response's head and its records share packets.
func (s *socket) writeMore(b []byte) (int, error) {
	if s.raw == nil {
		return s.nc.Write(b)
	}
	return s.send(b, syscall.MSG_NOSIGNAL|syscall.MSG_MORE)
}

func (s *socket) send(b []byte, flags uintptr) (sent int, err error) {
	for sent < len(b) && err == nil {
		s.out = transfer{buf: b[sent:], flags: flags}
		err = s.raw.Write(s.writeable)
		s.out.buf = nil
		switch {
		case err != nil:
		case s.out.errno != 0:
			err = os.NewSyscallError("send", s.out.errno)
		default:
			sent += s.out.n
		}
	}
	return sent, err
}
