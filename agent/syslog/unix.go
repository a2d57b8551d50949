package syslog

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"
)

// aMomentAgo is a deadline that is over.
var aMomentAgo = time.Unix(1, 0)

// staleAfter bounds the question whether a socket is listened at.
const staleAfter = time.Second

// listenUnix listens at a stream socket, in the place of one that nobody listens at.
func listenUnix(path string, mode os.FileMode) (net.Listener, error) {
	if err := removeStale("unix", path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen at unix://%s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("set the permissions of the socket: %w", err), l.Close())
	}
	return l, nil
}

// listenUnixgram is listenUnix for datagrams.
func listenUnixgram(path string, mode os.FileMode) (net.PacketConn, error) {
	if err := removeStale("unixgram", path); err != nil {
		return nil, err
	}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listen at unixgram://%s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("set the permissions of the socket: %w", err), c.Close())
	}
	return &unixgram{UnixConn: c, path: path}, nil
}

// unixgram takes its name away when it is closed.
type unixgram struct {
	*net.UnixConn
	path string
}

// Close implements net.PacketConn.
func (u *unixgram) Close() error { return errors.Join(u.UnixConn.Close(), os.Remove(u.path)) }

// removeStale removes a socket that nobody listens at, as a kill leaves it. Anything else that has the name stays.
func removeStale(network, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the socket: %w", err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is no socket", path)
	}
	c, err := net.DialTimeout(network, path, staleAfter)
	if err == nil {
		_ = c.Close() // it was only asked
		return fmt.Errorf("somebody listens at %s", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket that an earlier run left: %w", err)
	}
	return nil
}
