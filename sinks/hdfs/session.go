package hdfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"strings"

	"github.com/colinmarc/hdfs/v2"
	krb5 "github.com/jcmturner/gokrb5/v8/client"
)

// session is a client and what it has authenticated with. It connects again by itself and goes from one NameNode to the next.
//
// With Kerberos a client that failed is replaced, and its successor reads the keytab and logs in anew: the client keeps the key for encrypted blocks for ever, which
// the NameNode lets end, and goes on asking for the renewal of a ticket that has ended while the KDC was away.
type session struct {
	client *hdfs.Client
	krb    *krb5.Client // nil: without Kerberos

	uses    int  // guarded by FS.mu
	retired bool // guarded by FS.mu: closed with its last use
}

// acquire returns the session of now, which is the caller's until release.
func (f *FS) acquire() (*session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session == nil {
		s, err := f.connect()
		if err != nil {
			return nil, err
		}
		f.session = s
	}
	f.session.uses++
	return f.session, nil
}

// release gives a session back, with what its use ended with.
func (f *FS) release(s *session, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.uses--
	if s.krb != nil && isOfSession(err) {
		f.retire(s)
	}
	if s.retired && s.uses == 0 {
		_ = s.close() // its connections may have been cut long ago
	}
}

// retire has the next use connect anew. The caller holds mu.
func (f *FS) retire(s *session) {
	s.retired = true
	if f.session == s {
		f.session = nil
	}
}

// isOfSession says that another session might not have failed: what a NameNode has answered it would answer again.
func isOfSession(err error) bool {
	var remote remoteError
	switch {
	case err == nil, errors.As(err, &remote), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrPermission), errors.Is(err, io.EOF):
		return false
	}
	return true
}

// use does what a client can.
func (f *FS) use(what func(*hdfs.Client) error) error {
	s, err := f.acquire()
	if err != nil {
		return err
	}
	err = what(s.client)
	f.release(s, err)
	if s.krb == nil && err != nil && strings.Contains(err.Error(), outOfTurn) {
		return fmt.Errorf("%w: the NameNode's answer is one to a connection that it refuses: does it demand Kerberos (hdfs.kerberos)?", err)
	}
	return explain(err)
}

// outOfTurn is how the client puts that an answer belongs to no request, as that of a NameNode which demands Kerberos does.
const outOfTurn = "unexpected sequence number"

func (f *FS) connect() (*session, error) {
	options := hdfs.ClientOptions{
		Addresses:           f.cfg.NameNodes,
		User:                f.user,
		UseDatanodeHostname: f.cfg.UseHostnames,
		NamenodeDialFunc:    f.dial,
		DatanodeDialFunc:    f.dial,
	}
	s := &session{}
	if k := f.cfg.Kerberos; k != nil {
		var err error
		if s.krb, err = login(k); err != nil {
			return nil, err
		}
		options.KerberosClient, options.KerberosServicePrincipleName, options.DataTransferProtection = s.krb, k.Service, k.Protection
	}
	var err error
	if s.client, err = hdfs.NewClient(options); err != nil {
		return nil, errors.Join(explain(err), s.close())
	}
	return s, nil
}

// close ends the connections, and the renewal of tickets.
func (s *session) close() (err error) {
	if s.client != nil {
		err = s.client.Close()
	}
	if s.krb != nil {
		s.krb.Destroy()
	}
	return err
}

// Close ends the connections, those of files that are open with the files.
func (f *FS) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.session
	if s == nil {
		return nil
	}
	f.retire(s)
	if s.uses > 0 {
		return nil
	}
	return s.close()
}

// reader is a file being read. Not safe for concurrent use.
type reader struct {
	*hdfs.FileReader
	fs      *FS
	session *session
	err     error // of the session
	closed  bool
}

func (r *reader) Read(b []byte) (int, error) {
	n, err := r.FileReader.Read(b)
	if isOfSession(err) {
		r.err = err
	}
	return n, explain(err)
}

func (r *reader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	err := r.FileReader.Close()
	r.fs.release(r.session, r.err)
	return err
}

// probeBytes is the size of the file that tries the protection of blocks.
const probeBytes = 1024

// probe writes a file and reads it back, since there are protections under which the client writes what it cannot read: told at the start, that is not found out with
// the first claim that is stored.
func (f *FS) probe() error {
	name := fmt.Sprintf(".probe.%016x.tmp", rand.Uint64())
	w, err := f.Create(name)
	if err != nil {
		return err
	}
	_, err = w.Write(make([]byte, probeBytes))
	if err = errors.Join(err, w.Close()); err == nil {
		if err = f.readAll(name); err != nil {
			err = fmt.Errorf("what is written cannot be read back with protection %q: the client reads blocks under authentication, and under privacy where the HDFS "+
				"has dfs.encrypt.data.transfer.cipher.suites: AES/CTR/NoPadding: %w", f.cfg.Kerberos.Protection, err)
		}
	}
	return errors.Join(err, f.Remove(name))
}

func (f *FS) readAll(name string) error {
	r, err := f.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close())
}
