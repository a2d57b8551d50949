package syslog

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// dropCounter finds what the system dropped of a UDP socket in /proc/net/udp and udp6, where the socket stands by its inode.
type dropCounter struct {
	inode  uint64 // 0: no socket
	last   int64
	before int64 // of sockets that are closed
}

func (d *dropCounter) total() int64 {
	if d.inode != 0 {
		for _, path := range []string{"/proc/net/udp", "/proc/net/udp6"} {
			if n, ok := dropsIn(path, d.inode); ok {
				d.last = n
			}
		}
	}
	return d.before + d.last
}

// dropsIn reads the last column of the line whose tenth is the inode.
func dropsIn(path string, inode uint64) (int64, bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer f.Close() // only read from
	want := strconv.AppendUint(nil, inode, 10)
	for in := bufio.NewScanner(f); in.Scan(); {
		fields := bytes.Fields(in.Bytes())
		if len(fields) >= 13 && bytes.Equal(fields[9], want) {
			n, err := strconv.ParseInt(string(fields[12]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// watchDrops begins to count the drops of a socket.
func (p *place) watchDrops(c net.PacketConn) {
	u, ok := c.(*net.UDPConn)
	if !ok {
		return
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return
	}
	var st syscall.Stat_t
	_ = raw.Control(func(fd uintptr) { err = syscall.Fstat(int(fd), &st) })
	if err == nil {
		p.mu.Lock()
		p.drops.inode = st.Ino
		p.mu.Unlock()
	}
}

// closeDrops keeps the count of a socket that is about to be closed.
func (p *place) closeDrops() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drops.before, p.drops.last, p.drops.inode = p.drops.total(), 0, 0
}

// receiveBuffer is what the system grants; 0 when it does not tell.
func receiveBuffer(c *net.UDPConn) (n int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if n, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
			n = 0
		}
	})
	return n / 2 // Linux doubles it for its own bookkeeping
}
