package faults

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

const tornBytesMax = 4096

// tornTail kills a node, damages what lies beyond its recovery points, which no
// sync has covered, and starts it again when the others have gone on without it.
func tornTail(w *world) {
	n := w.leader()
	w.say("kill node %d and tear its tails", n.ID)
	n.Kill()
	w.hold(w.pastSession() + time.Second) // a session ends up to a third of its length late
	w.tear(n)
	w.restart()
}

// powerLoss is what a machine does that loses its power: all that was not
// synced may be gone, and it comes up with another boot ID, here at once.
func (w *world) powerLoss(n *testenv.Node) {
	w.say("power loss of node %d", n.ID)
	n.Kill()
	w.losePower(n)
	w.hold(w.between(0, sessionTimeout/2))
	w.restart()
}

func killAllPowerLoss(nodes int) func(w *world) {
	return func(w *world) {
		for _, n := range w.cluster.Nodes {
			_ = n.Process().Signal(syscall.SIGKILL)
		}
		for _, n := range w.cluster.Nodes {
			<-n.Process().Done()
		}
		for _, i := range w.rng.Perm(len(w.cluster.Nodes))[:nodes] {
			w.say("power loss of node %d", w.cluster.Nodes[i].ID)
			w.losePower(w.cluster.Nodes[i])
		}
		w.outageOver = time.Now()
		w.restart()
	}
}

func (w *world) losePower(n *testenv.Node) {
	w.t.Helper()
	w.tear(n)
	n.Host.NewBootID(w.t)
}

// tear damages the last segment of each partition beyond the recovery point:
// cuts it, overwrites its end, or adds to it.
func (w *world) tear(n *testenv.Node) {
	w.t.Helper()
	data := n.Host.Path(n.DataDir)
	points, err := recoveryPoints(data)
	if err != nil {
		w.t.Fatal(err)
	}
	dirs, err := filepath.Glob(filepath.Join(data, "*-*"))
	if err != nil {
		w.t.Fatal(err)
	}
	torn := 0
	for _, dir := range dirs {
		segments, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		if len(segments) == 0 {
			continue
		}
		last := segments[len(segments)-1] // names sort by base offset
		synced, err := syncedBytes(last, points[filepath.Base(dir)])
		if err == nil {
			var cut int64
			cut, err = w.tearFile(last, synced)
			torn += int(cut)
		}
		if err != nil {
			w.t.Fatalf("tear %s: %v", last, err)
		}
	}
	w.say("%d bytes of %d partitions torn", torn, len(dirs))
}

func (w *world) tearFile(file string, synced int64) (int64, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	unsynced := info.Size() - synced
	if unsynced > 0 {
		keep := synced + w.rng.Int64N(unsynced)
		switch w.rng.IntN(3) {
		case 0:
			return info.Size() - keep, f.Truncate(keep)
		case 1: // blocks that never came to the disk read as zeros
			_, err = f.WriteAt(make([]byte, info.Size()-keep), keep)
			return info.Size() - keep, err
		}
	}
	garbage := make([]byte, 1+w.rng.IntN(tornBytesMax))
	for i := range garbage {
		garbage[i] = byte(w.rng.Uint32())
	}
	_, err = f.WriteAt(garbage, info.Size())
	return int64(len(garbage)), err
}

// recoveryPoints reads Kafka's file of them, by the name of a partition's
// directory; one that is not there has been synced nowhere.
func recoveryPoints(data string) (map[string]int64, error) {
	text, err := os.ReadFile(filepath.Join(data, "recovery-point-offset-checkpoint"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	points := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue // version and count
		}
		offset, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("recovery point %q: %w", line, err)
		}
		points[fields[0]+"-"+fields[1]] = offset
	}
	return points, nil
}

// syncedBytes is where in a segment the batch of that offset begins: the size of
// the file if the segment ends before it.
func syncedBytes(file string, offset int64) (int64, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	at := int64(0)
	for _, b := range batches(content) {
		if b.base >= offset {
			return at, nil
		}
		at += int64(b.size)
	}
	return at, nil
}

// batch is the frame of a record batch in a segment.
type batch struct {
	base int64
	size int
}

// batchFrame is the base offset and the length of what follows.
const batchFrame = 12

func batches(content []byte) (all []batch) {
	for len(content) >= batchFrame {
		b := batch{base: int64(be(content[:8])), size: batchFrame + int(be(content[8:batchFrame]))}
		if b.size <= batchFrame || b.size > len(content) {
			return all
		}
		all = append(all, b)
		content = content[b.size:]
	}
	return all
}

func be(b []byte) (n uint64) {
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

// sameReplicas compares the logs of a topic's replicas on disk, when nothing is
// written any more: batch for batch they are the same bytes.
func (w *world) sameReplicas(topic string) error {
	for partition := range partitions {
		name := fmt.Sprintf("%s-%d", topic, partition)
		sums := map[[sha256.Size]byte][]int32{}
		for _, id := range w.partition(partition).Replicas {
			n := w.cluster.Node(id)
			log, err := wholeLog(filepath.Join(n.Host.Path(n.DataDir), name))
			if err != nil {
				return err
			}
			sum := sha256.Sum256(log)
			sums[sum] = append(sums[sum], n.ID)
		}
		if len(sums) != 1 {
			return fmt.Errorf("the replicas of %s differ: %v", name, sums)
		}
	}
	return nil
}

func wholeLog(dir string) ([]byte, error) {
	segments, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return nil, err
	}
	if len(segments) == 0 {
		return nil, fmt.Errorf("%s has no segment", dir)
	}
	var all []byte
	for _, s := range segments {
		content, err := os.ReadFile(s)
		if err != nil {
			return nil, err
		}
		for _, b := range batches(content) {
			all = append(all, content[:b.size]...)
			content = content[b.size:]
		}
	}
	return all, nil
}
