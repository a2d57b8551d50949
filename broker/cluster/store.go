package cluster

import (
	"context"
	"errors"
	"fmt"
)

// AnyVersion as an expected version matches every version of a node.
const AnyVersion int32 = -1

// Errors of a [Store]. A failed transaction wraps one of them in a [*TxnError].
var (
	// ErrNoNode says that a path, or the parent of a path to create, does not exist.
	ErrNoNode = errors.New("no such node")
	// ErrNodeExists says that a node to create is there already.
	ErrNodeExists = errors.New("node exists")
	// ErrBadVersion says that a node changed since its expected version was read.
	ErrBadVersion = errors.New("version differs")
	// ErrNotEmpty says that a node to delete still has children.
	ErrNotEmpty = errors.New("node has children")
	// ErrEphemeralParent says that a parent is ephemeral, and so cannot have children.
	ErrEphemeralParent = errors.New("parent is ephemeral")
	// ErrStoreClosed says that the store was closed.
	ErrStoreClosed = errors.New("cluster store is closed")
	// ErrSessionEnded says that the session an operation belongs to has ended:
	// nothing of the transaction was applied.
	ErrSessionEnded = errors.New("session has ended")
	// ErrUnavailable says that the store cannot be reached. It may come back;
	// nothing was applied.
	ErrUnavailable = errors.New("cluster store cannot be reached")
	// ErrUncertain says that the store was lost before it answered: a
	// transaction was applied, or was not, or still may be while its session
	// lasts. Reading tells; see [Store.Txn].
	ErrUncertain = errors.New("cluster store was lost before it answered")
	// ErrTooLarge says that a transaction is larger than the store takes.
	ErrTooLarge = errors.New("transaction is larger than ZooKeeper takes (jute.maxbuffer, 1 MiB)")
	// ErrForbidden says that the store's access control refuses this broker.
	ErrForbidden = errors.New("access denied by the cluster store")
)

// Passing tells whether an error of a store is one that its return will end: it could
// not be reached, was lost before it answered, or has ended the session meanwhile.
func Passing(err error) bool {
	for _, passing := range []error{ErrUnavailable, ErrUncertain, ErrSessionEnded} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return connectionBroke(err)
}

// Store is the durable tree that a cluster agrees on. Its meaning is that of
// Apache ZooKeeper: paths begin with a slash, a parent must exist before its
// child, each node has a version that grows by one with each change of its data.
//
// A Store is safe for concurrent use.
type Store interface {
	// Get returns a node's data, which the caller must not change, and its state.
	Get(ctx context.Context, path string) ([]byte, Stat, error)
	// Children returns the names of a node's children, sorted.
	Children(ctx context.Context, path string) ([]string, error)
	// Watch returns a channel that is closed once, at the next change of the
	// kind at path after the call, or when the session ends; it may be closed
	// for a change shortly before the call too. To miss nothing, watch first and
	// read then. The children of a node that does not exist cannot be watched.
	Watch(ctx context.Context, path string, kind WatchKind) (<-chan struct{}, error)
	// Txn applies all of ops or none of them, durably before it returns. After
	// an error that is none of [*TxnError], [ErrSessionEnded] and
	// [ErrUnavailable] it may have been applied: what is read afterwards in the
	// same session shows it, if it was.
	Txn(ctx context.Context, ops ...Op) error
	// Session returns the session that owns ephemeral nodes created from now on.
	Session(ctx context.Context) (Session, error)
}

// WatchKind says which change of a node fires a watch.
type WatchKind int8

const (
	// WatchData fires when the node is created, changed or deleted.
	WatchData WatchKind = iota
	// WatchChildren fires when a child is created or deleted, or the node itself is deleted.
	WatchChildren
)

// Stat is the state of a node.
type Stat struct {
	// Version counts the changes of the node's data since it was created, from 0.
	Version int32
	// Created is the number of the transaction that created the node. It grows
	// over the life of a cluster, across sessions and restarts.
	Created int64
	// Owner is the session that an ephemeral node belongs to, 0 for others.
	Owner int64
}

// Session is a client's lease on its ephemeral nodes.
type Session struct {
	ID int64
	// Ended is closed when the session has ended and its ephemeral nodes are gone.
	Ended <-chan struct{}
}

// OpKind is what an [Op] does.
type OpKind int8

// The kinds of operations of a transaction. Their values are stored.
const (
	OpCheck  OpKind = 1 // the node exists and has the version
	OpCreate OpKind = 2 // the node does not exist and its parent does
	OpSet    OpKind = 3 // the node exists and has the version
	OpDelete OpKind = 4 // the node exists, has the version and no children
)

// Op is one operation of a transaction.
type Op struct {
	Kind      OpKind
	Path      string
	Data      []byte
	Version   int32 // expected, for check, set and delete
	Ephemeral bool  // for create
	// Session, if not 0, is the session in which the operation was decided: in
	// any other the transaction fails with ErrSessionEnded.
	Session int64
}

// In binds an operation to a session; see [Op.Session].
func (op Op) In(s Session) Op {
	op.Session = s.ID
	return op
}

// checkSession refuses operations that were decided in another session.
func checkSession(ops []Op, current int64) error {
	for _, op := range ops {
		if op.Session != 0 && op.Session != current {
			return fmt.Errorf("change %s: %w", op.Path, ErrSessionEnded)
		}
	}
	return nil
}

// Check makes a transaction depend on a node's version.
func Check(path string, version int32) Op { return Op{Kind: OpCheck, Path: path, Version: version} }

// Create makes a node that stays.
func Create(path string, data []byte) Op { return Op{Kind: OpCreate, Path: path, Data: data} }

// CreateEphemeral makes a node that lives as long as the session.
func CreateEphemeral(path string, data []byte) Op {
	return Op{Kind: OpCreate, Path: path, Data: data, Ephemeral: true}
}

// Set replaces a node's data.
func Set(path string, data []byte, version int32) Op {
	return Op{Kind: OpSet, Path: path, Data: data, Version: version}
}

// Delete removes a node.
func Delete(path string, version int32) Op { return Op{Kind: OpDelete, Path: path, Version: version} }

// TxnError says which operation made a transaction fail. Nothing of it was applied.
type TxnError struct {
	Index int // of the operation in the transaction
	Path  string
	Err   error
}

func (e *TxnError) Error() string {
	return fmt.Sprintf("operation %d on %s: %v", e.Index, e.Path, e.Err)
}

func (e *TxnError) Unwrap() error { return e.Err }
