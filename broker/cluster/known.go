package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// known is which brokers the controllers have dealt with so far, and in which
// epochs. It is stored after what followed from it, so that a controller that
// comes later knows which brokers came, left or were reborn since, and deals
// with each of that once: one that came back with lost records is taken out of
// the in-sync replicas at its coming, and not again at every election of a
// controller.
type known struct {
	absent bool // there is no node yet
	epochs map[int32]int64
}

type knownNodeJSON struct {
	Version int              `json:"version"`
	Epochs  map[string]int64 `json:"epochs"` // by broker
}

func parseKnownNode(data []byte) (known, error) {
	var n knownNodeJSON
	if err := parseNode("known brokers", data, &n); err != nil {
		return known{}, err
	}
	k := known{epochs: make(map[int32]int64, len(n.Epochs))}
	for name, epoch := range n.Epochs {
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			return known{}, fmt.Errorf("read known brokers %q: %w", data, err)
		}
		k.epochs[int32(id)] = epoch
	}
	return k, nil
}

func (k known) node() []byte {
	n := knownNodeJSON{Version: 1, Epochs: make(map[string]int64, len(k.epochs))}
	for id, epoch := range k.epochs {
		n.Epochs[strconv.Itoa(int(id))] = epoch
	}
	return mustJSON(n)
}

// live are the known brokers, as far as they are known.
func (k known) live() []Broker {
	var out []Broker
	for id, epoch := range k.epochs {
		out = append(out, Broker{ID: id, Epoch: epoch})
	}
	slices.SortFunc(out, func(a, b Broker) int { return int(a.ID) - int(b.ID) })
	return out
}

// with returns what is known when these brokers are live.
func (k known) with(live []Broker) known {
	out := known{absent: k.absent, epochs: make(map[int32]int64, len(live))}
	for _, b := range live {
		out.epochs[b.ID] = b.Epoch
	}
	return out
}

// ops store k in the place of was.
func (k *known) ops(was known) []Op {
	data := k.node()
	switch {
	case was.absent:
		k.absent = false
		return []Op{Create(knownBrokersPath, data)}
	case bytes.Equal(data, was.node()):
		return nil
	}
	return []Op{Set(knownBrokersPath, data, AnyVersion)}
}

// ReportDisk notes for the controller that a disk of a broker has failed or is
// back: it then asks the broker which partitions it serves. The broker's epoch
// keeps apart the notes of its lives; several of one life are one note.
func ReportDisk(ctx context.Context, store Store, broker int32, epoch int64) error {
	path := fmt.Sprintf("%s/log_dir_event_%d_%d", diskEventsPath, broker, epoch)
	event := mustJSON(diskEventNode{Version: 1, Broker: broker, Event: 1})
	err := store.Txn(ctx, Create(path, event))
	if err != nil && !errors.Is(err, ErrNodeExists) {
		return fmt.Errorf("tell the controller of a disk: %w", err)
	}
	return nil
}

// diskEventNode is Kafka's note of a failed log directory.
type diskEventNode struct {
	Version int   `json:"version"`
	Broker  int32 `json:"broker"`
	Event   int   `json:"event"`
}

func parseDiskEvent(name string) (broker int32, err error) {
	parts := strings.Split(name, "_")
	if len(parts) != 5 {
		return -1, fmt.Errorf("read note of a disk %q", name)
	}
	id, err := strconv.ParseInt(parts[3], 10, 32)
	if err != nil {
		return -1, fmt.Errorf("read note of a disk %q: %w", name, err)
	}
	return int32(id), nil
}
