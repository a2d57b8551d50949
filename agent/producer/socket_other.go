//go:build !linux || !(amd64 || arm64) || race

package producer

import "net"

func newSocket(conn net.Conn) net.Conn { return conn }

func writeParts(conn net.Conn, parts net.Buffers) (int64, error) { return parts.WriteTo(conn) }
