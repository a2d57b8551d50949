package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports lie below the kernel's ephemeral range, so that no outgoing connection
// takes one between its choice and its server's bind, or while a server that is
// being restarted is down.
const (
	portMin   = 15000
	portMax   = 31999
	portTries = 1000
)

// reserved holds the UDP socket of each port given out, for the life of the
// test binary: servers here listen on TCP, so the same UDP port serves as a
// lock between test binaries that the kernel drops with its holder.
var reserved struct {
	sync.Mutex
	sockets []net.PacketConn
}

// FreePort returns a loopback TCP port that no other test gets.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func freePort() (int, error) {
	for range portTries {
		port := portMin + rand.IntN(portMax-portMin+1)
		if reserve(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port among %d tried between %d and %d", portTries, portMin, portMax)
}

func reserve(port int) bool {
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	lock, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		lock.Close()
		return false
	}
	l.Close()
	reserved.Lock()
	defer reserved.Unlock()
	reserved.sockets = append(reserved.sockets, lock)
	return true
}
