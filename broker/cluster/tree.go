package cluster

import (
	"fmt"
	"maps"
	"strings"
)

// tree is the content of an embedded store. Not safe for concurrent use.
type tree struct {
	zxid    int64 // of the last transaction
	session int64 // the newest
	nodes   map[string]*node
}

type node struct {
	data     []byte
	stat     Stat
	children map[string]struct{}
}

func newTree() *tree {
	return &tree{nodes: map[string]*node{"/": {}}}
}

// undoLog remembers how to take back what was applied, and which watches it concerns.
type undoLog struct {
	steps   []func()
	changed []watchKey
}

func (u *undoLog) add(step func(), changed ...watchKey) {
	u.steps = append(u.steps, step)
	u.changed = append(u.changed, changed...)
}

func (u *undoLog) rollback() {
	for i := len(u.steps) - 1; i >= 0; i-- {
		u.steps[i]()
	}
}

// apply applies ops in order. On an error, what came before is to be undone.
func (t *tree) apply(ops []Op, zxid, session int64, undo *undoLog) error {
	for i, op := range ops {
		if err := t.applyOp(op, zxid, session, undo); err != nil {
			return &TxnError{Index: i, Path: op.Path, Err: err}
		}
	}
	return nil
}

func (t *tree) applyOp(op Op, zxid, session int64, undo *undoLog) error {
	switch op.Kind {
	case OpCheck:
		_, err := t.expect(op)
		return err
	case OpCreate:
		return t.create(op, zxid, session, undo)
	case OpSet:
		return t.set(op, undo)
	case OpDelete:
		return t.delete(op, undo)
	case opSession:
		t.beginSession(int64(op.Version), undo)
		return nil
	}
	return fmt.Errorf("unknown operation %d", op.Kind)
}

// expect finds the node of an operation in the version that it expects.
func (t *tree) expect(op Op) (*node, error) {
	n, ok := t.nodes[op.Path]
	if !ok {
		return nil, ErrNoNode
	}
	if op.Version != AnyVersion && op.Version != n.stat.Version {
		return nil, fmt.Errorf("%w: it is %d, not %d", ErrBadVersion, n.stat.Version, op.Version)
	}
	return n, nil
}

func (t *tree) create(op Op, zxid, session int64, undo *undoLog) error {
	parentPath, name, err := splitPath(op.Path)
	if err != nil {
		return err
	}
	if _, ok := t.nodes[op.Path]; ok {
		return ErrNodeExists
	}
	parent, ok := t.nodes[parentPath]
	if !ok {
		return ErrNoNode
	}
	if parent.stat.Owner != 0 {
		return ErrEphemeralParent
	}
	n := &node{data: op.Data, stat: Stat{Created: zxid}}
	if op.Ephemeral {
		n.stat.Owner = session
	}
	t.attach(op.Path, parent, name, n)
	undo.add(func() { t.detach(op.Path, parent, name) },
		watchKey{op.Path, WatchData}, watchKey{parentPath, WatchChildren})
	return nil
}

func (t *tree) attach(path string, parent *node, name string, n *node) {
	t.nodes[path] = n
	if parent.children == nil {
		parent.children = map[string]struct{}{}
	}
	parent.children[name] = struct{}{}
}

func (t *tree) detach(path string, parent *node, name string) {
	delete(t.nodes, path)
	delete(parent.children, name)
	if len(parent.children) == 0 {
		parent.children = nil
	}
}

func (t *tree) set(op Op, undo *undoLog) error {
	n, err := t.expect(op)
	if err != nil {
		return err
	}
	data, version := n.data, n.stat.Version
	n.data, n.stat.Version = op.Data, version+1
	undo.add(func() { n.data, n.stat.Version = data, version }, watchKey{op.Path, WatchData})
	return nil
}

func (t *tree) delete(op Op, undo *undoLog) error {
	n, err := t.expect(op)
	if err != nil {
		return err
	}
	if len(n.children) > 0 {
		return ErrNotEmpty
	}
	t.remove(op.Path, n, undo)
	return nil
}

func (t *tree) remove(path string, n *node, undo *undoLog) {
	parentPath, name, err := splitPath(path)
	if err != nil {
		return // the root stays
	}
	parent := t.nodes[parentPath]
	t.detach(path, parent, name)
	undo.add(func() { t.attach(path, parent, name, n) },
		watchKey{path, WatchData}, watchKey{path, WatchChildren}, watchKey{parentPath, WatchChildren})
}

// beginSession removes the ephemeral nodes of all earlier sessions.
func (t *tree) beginSession(id int64, undo *undoLog) {
	old := t.session
	t.session = id
	undo.add(func() { t.session = old })
	for path, n := range maps.Clone(t.nodes) {
		if n.stat.Owner != 0 && n.stat.Owner != id {
			t.remove(path, n, undo)
		}
	}
}

// endSession removes the ephemeral nodes of one session.
func (t *tree) endSession(id int64, undo *undoLog) {
	for path, n := range maps.Clone(t.nodes) {
		if n.stat.Owner == id {
			t.remove(path, n, undo)
		}
	}
}

// replay applies a stored transaction, which succeeded once and so must now.
func (t *tree) replay(payload []byte) error {
	zxid, session, ops, err := decodeTxn(payload)
	if err != nil {
		return err
	}
	if zxid != t.zxid+1 {
		return fmt.Errorf("transaction %d follows %d", zxid, t.zxid)
	}
	if err := t.apply(ops, zxid, session, &undoLog{}); err != nil {
		return fmt.Errorf("transaction %d cannot be applied again: %w", zxid, err)
	}
	t.zxid = zxid
	return nil
}

// splitPath splits a node's path into its parent's and its own name.
func splitPath(path string) (parent, name string, err error) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 || path[0] != '/' || i == len(path)-1 || strings.Contains(path, "//") {
		return "", "", fmt.Errorf("bad path %q", path)
	}
	if i == 0 {
		return "/", path[1:], nil
	}
	return path[:i], path[i+1:], nil
}
