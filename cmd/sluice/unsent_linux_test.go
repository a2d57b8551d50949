package main

import (
	"net"

	"golang.org/x/sys/unix"
)

// unsent is how many bytes of a connection the other side has not taken into its buffer.
func unsent(c net.Conn) (n int) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
