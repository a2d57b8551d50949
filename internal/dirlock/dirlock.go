//go:build unix

// Package dirlock keeps the directory of a process to one process.
package dirlock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	// WaitMax is how long Take waits for the lock: the system lets go of that of a process that was killed only when it is done with the
	// process, which takes a while when it had much memory.
	WaitMax   = 2 * time.Second
	waitRetry = 20 * time.Millisecond
	// holderBytesMax bounds what is read of a lock's file.
	holderBytesMax = 32
)

// InUseError says that another process holds the lock.
type InUseError struct {
	Path   string
	Holder string // its process number, as far as known; "" otherwise
}

func (e *InUseError) Error() string {
	if e.Holder == "" {
		return "in use by another process"
	}
	return "in use by process " + e.Holder
}

// WriteError says that the lock's file cannot be made or written: the directory is not writable, or full.
type WriteError struct{ err error }

func (e *WriteError) Error() string { return e.err.Error() }
func (e *WriteError) Unwrap() error { return e.err }

// Lock is held until Release, or the end of the process, however it ends.
type Lock struct{ f *os.File }

// Take takes the lock that is the file at path, which is made with perm. It waits for a holder up to WaitMax, or until ctx ends. Its error is an
// InUseError or a WriteError where it is one of these; neither names the path.
func Take(ctx context.Context, path string, perm fs.FileMode) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, perm)
	if err != nil {
		return nil, &WriteError{cause(err)}
	}
	l := &Lock{f}
	if err := l.wait(ctx); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = &InUseError{Path: path, Holder: l.holder()}
		}
		return nil, errors.Join(err, l.Release())
	}
	if err := l.sign(); err != nil {
		return nil, &WriteError{errors.Join(cause(err), l.Release())}
	}
	return l, nil
}

// wait takes the lock as soon as it is free.
func (l *Lock) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, WaitMax)
	defer cancel()
	for {
		err := syscall.Flock(int(l.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(waitRetry):
		}
	}
}

// sign writes the process's number into the file, for whom the lock keeps out.
func (l *Lock) sign() error {
	if err := l.f.Truncate(0); err != nil {
		return err
	}
	_, err := l.f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	return err
}

func (l *Lock) holder() string {
	var buf [holderBytesMax]byte
	n, _ := l.f.ReadAt(buf[:], 0) // what is not there is not known
	return strings.TrimSpace(string(buf[:n]))
}

// Release lets go of the lock. The file stays.
func (l *Lock) Release() error {
	if err := l.f.Close(); err != nil {
		return fmt.Errorf("release the lock: %w", cause(err))
	}
	return nil
}

// cause is an error without the path, which the caller's message has.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
