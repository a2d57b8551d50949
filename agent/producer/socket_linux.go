//go:build (amd64 || arm64) && !race

package producer

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// socket is a TCP connection whose calls are made without telling Go's scheduler: a socket never blocks in one, and what the scheduler does
// about a call that might, a monitor thread kept awake and the processor handed to another thread in the middle of a copy, took a seventh of
// the CPU of an agent that sends without compression.
//
// The race detector would miss what a message orders, so it gets ordinary calls.
//
// One goroutine may read and one may write at a time. Each call's arguments and results lie in the socket, beside functions made once, so
// that a call costs no allocation.
type socket struct {
	net.Conn
	raw syscall.RawConn

	in        received
	out       sending
	readable  func(fd uintptr) bool
	writeable func(fd uintptr) bool
}

// received is a read under way.
type received struct {
	buf   []byte
	n     int
	errno syscall.Errno
}

// sending is a write under way.
type sending struct {
	parts []syscall.Iovec
	n     int
	errno syscall.Errno
}

// sendPartsMax bounds the parts of one call; the kernel takes 1024.
const sendPartsMax = 256

// newSocket takes a connection over; one that is not plain TCP stays what it is.
func newSocket(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return conn
	}
	s := &socket{Conn: conn, raw: raw}
	s.readable, s.writeable = s.in.try, s.out.try
	return s
}

// try makes the call and returns false if the socket is not ready for it.
func (r *received) try(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(r.buf))), uintptr(len(r.buf)), 0, 0, 0)
		r.n, r.errno = int(n), errno
		if errno != syscall.EINTR {
			return errno != syscall.EAGAIN
		}
	}
}

func (s *sending) try(fd uintptr) bool {
	msg := syscall.Msghdr{Iov: unsafe.SliceData(s.parts), Iovlen: uint64(len(s.parts))}
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&msg)), syscall.MSG_NOSIGNAL)
		s.n, s.errno = int(n), errno
		if errno != syscall.EINTR {
			return errno != syscall.EAGAIN
		}
	}
}

// load takes the first parts of what is to be written.
func (s *sending) load(parts net.Buffers) {
	for _, p := range parts[:min(len(parts), sendPartsMax)] {
		if len(p) > 0 {
			s.parts = append(s.parts, syscall.Iovec{Base: &p[0], Len: uint64(len(p))})
		}
	}
}

// Read implements net.Conn.
func (s *socket) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return s.Conn.Read(b)
	}
	s.in.buf = b
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

// Write implements net.Conn.
func (s *socket) Write(b []byte) (int, error) {
	n, err := s.writeParts(net.Buffers{b})
	return int(n), err
}

// writeParts writes parts, which it changes, one after the other.
func (s *socket) writeParts(parts net.Buffers) (sent int64, err error) {
	for len(parts) > 0 && err == nil {
		s.out.load(parts)
		if len(s.out.parts) == 0 {
			break
		}
		err = s.raw.Write(s.writeable)
		clear(s.out.parts) // they keep batches
		s.out.parts = s.out.parts[:0]
		switch {
		case err != nil:
		case s.out.errno != 0:
			err = os.NewSyscallError("send", s.out.errno)
		default:
			sent += int64(s.out.n)
			parts = passed(parts, s.out.n)
		}
	}
	return sent, err
}

// writeParts writes parts, which it changes, one after the other.
func writeParts(conn net.Conn, parts net.Buffers) (int64, error) {
	if s, ok := conn.(*socket); ok {
		return s.writeParts(parts)
	}
	return parts.WriteTo(conn)
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
