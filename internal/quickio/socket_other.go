//go:build !linux || !(amd64 || arm64) || race

package quickio

import "net"

// Socket is a connection whose calls are ordinary ones here.
type Socket struct{ net.Conn }

// NewSocket takes a connection over.
func NewSocket(conn net.Conn) *Socket { return &Socket{conn} }

// WriteMore is Write, which cannot hold back the end of b.
func (s *Socket) WriteMore(b []byte) (int, error) { return s.Write(b) }

// WriteParts writes parts, which it changes, one after the other.
func (s *Socket) WriteParts(parts net.Buffers) (int64, error) { return parts.WriteTo(s.Conn) }
