package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// idleConnectionsMax is how many connections to a server are kept between writes.
const idleConnectionsMax = 8

// serverPenalty is how long a server that failed is asked last.
const serverPenalty = 10 * time.Second

// servers are the addresses of the sink. Where the table may be written through any of them (see table.anyServer), each partition of the topic has one that it
// prefers, and goes to the next while that fails. Otherwise there is only one. Guarded by Sink.mu.
type servers struct {
	free   map[string][]transport
	failed map[string]time.Time // when a server failed last
}

// order is the addresses in the order in which a partition tries them.
func (s *Sink) order(partition int32, now time.Time) []string {
	addrs := s.spec.ClickHouse.Addr
	n := len(addrs)
	s.mu.Lock()
	defer s.mu.Unlock()
	var good, bad []string
	for i := range n {
		addr := addrs[(int(partition)+i)%n]
		if at, ok := s.servers.failed[addr]; ok && now.Sub(at) < serverPenalty {
			bad = append(bad, addr)
		} else {
			good = append(good, addr)
		}
	}
	return append(good, bad...)
}

// conn takes an idle connection or makes one, to the first server that can be reached.
func (s *Sink) conn(ctx context.Context, partition int32) (conn transport, addr string, err error) {
	var errs []error
	for _, addr := range s.order(partition, time.Now()) {
		if conn := s.idle(addr); conn != nil {
			return conn, addr, nil
		}
		conn, err := s.dial(ctx, addr)
		if err == nil {
			return conn, addr, nil
		}
		s.fail(addr)
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, "", errors.Join(errs...)
}

func (s *Sink) idle(addr string) transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	for free := s.servers.free[addr]; len(free) > 0; free = s.servers.free[addr] {
		conn := free[len(free)-1]
		s.servers.free[addr] = free[:len(free)-1]
		if conn.usable() {
			return conn
		}
	}
	return nil
}

// fail has a server asked last for a while, if there is another.
func (s *Sink) fail(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers.failed[addr] = time.Now()
}

// release gives a connection back whose last request went well.
func (s *Sink) release(conn transport, addr string) {
	s.mu.Lock()
	delete(s.servers.failed, addr)
	if len(s.servers.free[addr]) < idleConnectionsMax && conn.usable() {
		s.servers.free[addr] = append(s.servers.free[addr], conn)
		conn = nil
	}
	s.mu.Unlock()
	if conn != nil {
		conn.close()
	}
}

// with runs a request on a connection for the partition; one that failed is not used again.
func (s *Sink) with(ctx context.Context, partition int32, request func(transport) error) error {
	conn, addr, err := s.conn(ctx, partition)
	if err != nil {
		return err
	}
	if err := request(conn); err != nil {
		conn.close()
		if _, answered := serverErrorOf(err); !answered || ctx.Err() != nil {
			s.fail(addr)
		}
		return fmt.Errorf("%s: %w", addr, err)
	}
	s.release(conn, addr)
	return nil
}
