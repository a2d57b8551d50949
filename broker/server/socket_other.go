//go:build !linux || race

package server

import (
	"net"
	"syscall"
)

// socket reads and writes a connection.
type socket struct{ nc net.Conn }

func newSocket(nc net.Conn, _ syscall.RawConn) *socket { return &socket{nc: nc} }

// Read implements io.Reader.
func (s *socket) Read(b []byte) (int, error) { return s.nc.Read(b) }

// Write implements io.Writer.
func (s *socket) Write(b []byte) (int, error) { return s.nc.Write(b) }

// writeMore is Write, which cannot hold back the end of b.
func (s *socket) writeMore(b []byte) (int, error) { return s.nc.Write(b) }
