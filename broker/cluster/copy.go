package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// CopyTree copies the state of a cluster from one store to another, for a broker
// that was alone and is to be one of several. Nodes of sessions are left out.
//
// Nothing is overwritten: a store that has another cluster, or nodes that from
// lacks or has with other contents, is refused. The cluster's id is copied last,
// so that a store without one has not got all; a copy that was cut short is
// completed by copying again.
func CopyTree(ctx context.Context, from, to Store) error {
	id, err := ReadClusterID(ctx, from)
	if err != nil {
		return fmt.Errorf("copy cluster: %w", err)
	}
	there, err := ReadClusterID(ctx, to)
	switch {
	case err == nil && there == id:
		return nil // copied before
	case err == nil:
		return fmt.Errorf("copy cluster %s: there is cluster %s already", id, there)
	case !errors.Is(err, ErrNoNode):
		return fmt.Errorf("copy cluster: %w", err)
	}
	var ops []Op
	for _, path := range rootPaths {
		if err := copyBelow(ctx, from, to, path, &ops); err != nil {
			return fmt.Errorf("copy cluster: %w", err)
		}
	}
	last := slices.IndexFunc(ops, func(op Op) bool { return op.Path == clusterIDPath })
	ops = append(slices.Delete(slices.Clone(ops), last, last+1), ops[last])
	for len(ops) > 0 {
		n := txnLen(ops)
		if err := to.Txn(ctx, ops[:n]...); err != nil {
			return fmt.Errorf("copy cluster: %w", err)
		}
		ops = ops[n:]
	}
	return nil
}

// rootPaths are the nodes below which a cluster keeps what is not of a session.
var rootPaths = []string{clusterPath, brokersPath, configPath, adminPath, controllerEpochPath, producerIDsPath}

// copyBelow appends what is needed to copy a node and all below it, parents
// first. Which registrations the controllers have dealt with is not copied:
// their numbers are those of the store that they were made in.
func copyBelow(ctx context.Context, from, to Store, path string, ops *[]Op) error {
	data, stat, err := from.Get(ctx, path)
	if errors.Is(err, ErrNoNode) || err == nil && stat.Owner != 0 || path == knownBrokersPath {
		return nil
	}
	if err != nil {
		return err
	}
	children, err := from.Children(ctx, path)
	if err != nil {
		return err
	}
	there, _, err := to.Get(ctx, path)
	switch {
	case errors.Is(err, ErrNoNode):
		*ops = append(*ops, Create(path, data))
	case err != nil:
		return err
	case !bytes.Equal(there, data):
		return fmt.Errorf("there is a node %s already, with other contents", path)
	default:
		if err := onlyThese(ctx, to, path, children); err != nil {
			return err
		}
	}
	for _, child := range children {
		if err := copyBelow(ctx, from, to, strings.TrimSuffix(path, "/")+"/"+child, ops); err != nil {
			return err
		}
	}
	return nil
}

// onlyThese refuses a node that has other children.
func onlyThese(ctx context.Context, to Store, path string, children []string) error {
	there, err := to.Children(ctx, path)
	if err != nil {
		return err
	}
	for _, child := range there {
		if _, found := slices.BinarySearch(children, child); !found {
			return fmt.Errorf("there is a node %s/%s already, which the cluster does not have", path, child)
		}
	}
	return nil
}
