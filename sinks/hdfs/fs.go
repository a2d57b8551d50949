package hdfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/colinmarc/hdfs/v2"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks/directory"
)

// FS is a directory of an HDFS. Its methods are safe for concurrent use.
type FS struct {
	cfg  *pipelines.HDFS
	root string
	user string

	mu      sync.Mutex // guards session; held while connecting
	session *session   // nil: not connected
}

var _ directory.FS = (*FS)(nil)

// NewFS makes the file system; nothing is connected to before it is used.
func NewFS(cfg *pipelines.HDFS) (*FS, error) {
	name, err := userOf(cfg)
	return &FS{cfg: cfg, root: path.Clean(cfg.Path), user: name}, err
}

func (f *FS) path(name string) string { return path.Join(f.root, name) }

// List returns what is in a directory.
func (f *FS) List(dir string) (entries []directory.Entry, err error) {
	err = f.use(func(client *hdfs.Client) error {
		infos, err := client.ReadDir(f.path(dir))
		entries = make([]directory.Entry, len(infos))
		for i, info := range infos {
			entries[i] = directory.Entry{Name: info.Name(), Dir: info.IsDir()}
		}
		return err
	})
	return entries, err
}

// Open opens a file for reading.
func (f *FS) Open(name string) (io.ReadCloser, error) {
	s, err := f.acquire()
	if err != nil {
		return nil, err
	}
	r, err := s.client.Open(f.path(name))
	if err != nil {
		f.release(s, err)
		return nil, explain(err)
	}
	opened := &reader{FileReader: r, fs: f, session: s}
	if r.Stat().IsDir() {
		return nil, errors.Join(fmt.Errorf("open %s: it is a directory", name), opened.Close())
	}
	return opened, nil
}

// Create makes a new file, and the directories above it but the root.
func (f *FS) Create(name string) (directory.File, error) {
	s, err := f.acquire()
	if err != nil {
		return nil, err
	}
	w, err := f.create(s.client, name)
	if err != nil {
		f.release(s, err)
		return nil, explain(err)
	}
	return &file{w: w, name: name, closeTimeout: f.cfg.Timeout, fs: f, session: s}, nil
}

func (f *FS) create(client *hdfs.Client, name string) (*hdfs.FileWriter, error) {
	replication, blockSize := f.cfg.Replication, f.cfg.BlockSize
	if replication == 0 || blockSize == 0 {
		defaults, err := client.ServerDefaults()
		if err != nil {
			return nil, err
		}
		if replication == 0 {
			replication = defaults.Replication
		}
		if blockSize == 0 {
			blockSize = defaults.BlockSize
		}
	}
	w, err := client.CreateFile(f.path(name), replication, blockSize, f.cfg.FileMode)
	if !errors.Is(err, fs.ErrNotExist) {
		return w, err
	}
	if err := f.makeParents(client, name); err != nil {
		return nil, err
	}
	return client.CreateFile(f.path(name), replication, blockSize, f.cfg.FileMode)
}

// makeParents makes the directories above name, below the root.
func (f *FS) makeParents(client *hdfs.Client, name string) error {
	if _, err := client.Stat(f.root); err != nil {
		return err
	}
	return client.MkdirAll(path.Dir(f.path(name)), f.cfg.DirMode)
}

// Rename gives a file or a directory another name.
func (f *FS) Rename(from, to string) error {
	err := f.use(func(client *hdfs.Client) error {
		err := client.Rename(f.path(from), f.path(to))
		if !errors.Is(err, fs.ErrNotExist) { // from, or the directory of to
			return err
		}
		if _, err := client.Stat(f.path(from)); err != nil {
			return err
		}
		if err := f.makeParents(client, to); err != nil {
			return err
		}
		return client.Rename(f.path(from), f.path(to))
	})
	if err != nil && strings.Contains(message(err), "not empty") {
		return fmt.Errorf("%s: %w", to, fs.ErrExist)
	}
	return err
}

// Remove removes a file, or a directory with all that it holds.
func (f *FS) Remove(name string) error {
	return f.use(func(client *hdfs.Client) error {
		if _, err := client.Stat(f.path(name)); err != nil {
			return err
		}
		return client.RemoveAll(f.path(name))
	})
}

// file is a file being written. Not safe for concurrent use.
type file struct {
	w            *hdfs.FileWriter
	name         string
	closeTimeout time.Duration
	fs           *FS
	session      *session // nil: released
	failed       error    // of a write; nil: none
}

func (f *file) Write(b []byte) (int, error) {
	if len(b) == 0 { // the client would begin a block that no DataNode ever has
		return 0, nil
	}
	n, err := f.w.Write(b)
	if err != nil {
		f.failed = err
		// Not wrapped: that the file is not there any more says nothing about its directory.
		return n, fmt.Errorf("write %s: %v", f.name, explain(err))
	}
	return n, nil
}

// closePollMin and closePollMax bound how long a file that is not complete yet is left alone, doubled each time.
const (
	closePollMin = 5 * time.Millisecond
	closePollMax = time.Second
)

// Close waits until the NameNode has the file complete, which takes a copy of each block on one DataNode at least. After a failed write it only lets go.
func (f *file) Close() error {
	if f.session == nil {
		return fs.ErrClosed
	}
	defer func() { f.session = nil }()
	if f.failed != nil {
		_ = f.w.SetDeadline(time.Now())
		_ = f.w.Close() // the connection alone: the file is lost
		f.fs.release(f.session, f.failed)
		return nil
	}
	err := f.complete()
	f.fs.release(f.session, err)
	if hdfs.IsErrReplicating(err) {
		return fmt.Errorf("close %s: it is not complete after %s: the NameNode knows of no DataNode that has its last block", f.name, f.closeTimeout)
	}
	if err != nil {
		return fmt.Errorf("close %s: %v", f.name, explain(err))
	}
	return nil
}

// complete closes the file again and again, until it is complete or the timeout has passed.
func (f *file) complete() error {
	deadline := time.Now().Add(f.closeTimeout)
	for pause := closePollMin; ; pause = min(2*pause, closePollMax) {
		err := f.w.Close()
		if !hdfs.IsErrReplicating(err) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// dial connects within the timeout, which then bounds each wait on the connection.
func (f *FS) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: f.cfg.Timeout}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &boundedConn{Conn: c, timeout: f.cfg.Timeout}, nil
}

// boundedConn fails when the other end is silent for too long, and is closed with the first failure: a late answer must not be taken for that of a
// later request.
type boundedConn struct {
	net.Conn
	timeout time.Duration

	mu    sync.Mutex // guards until
	until time.Time  // the deadline that the user of the connection has set
}

func (c *boundedConn) Read(b []byte) (int, error) {
	if err := c.Conn.SetReadDeadline(c.deadline()); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	if err != nil {
		c.Conn.Close()
	}
	return n, err
}

func (c *boundedConn) Write(b []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(c.deadline()); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		c.Conn.Close()
	}
	return n, err
}

// SetDeadline is for all reads and writes, also one under way.
func (c *boundedConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	c.until = t
	c.mu.Unlock()
	return c.Conn.SetDeadline(t)
}

func (c *boundedConn) deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	bound := time.Now().Add(c.timeout)
	if !c.until.IsZero() && c.until.Before(bound) {
		return c.until
	}
	return bound
}

// remoteError is what a NameNode answers in place of a result.
type remoteError interface {
	Exception() string
	Message() string
}

// message is the text of a NameNode's error, without its stack.
func message(err error) string {
	var remote remoteError
	if !errors.As(err, &remote) {
		return ""
	}
	text, _, _ := strings.Cut(remote.Message(), "\n")
	return text
}

// explain adds to an error what the NameNode said, which the client leaves out.
func explain(err error) error {
	var remote remoteError
	if !errors.As(err, &remote) {
		return err
	}
	class := remote.Exception()
	class = class[strings.LastIndexByte(class, '.')+1:]
	return fmt.Errorf("%w: %s: %s", err, class, message(err))
}
