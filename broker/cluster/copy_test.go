package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// aloneStore is the embedded store of a broker that was alone, with so many topics.
func aloneStore(t *testing.T, topics int) *Embedded {
	t.Helper()
	s := openStore(t, t.TempDir())
	m := join(t, newCourt(t), s, registrationOf(1))
	if _, _, err := m.AllocateProducerIDs(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range topics {
		name := fmt.Sprintf("topic-%d", i)
		topic := &Topic{Name: name, ID: TopicID{1, byte(i)}, Partitions: []Partition{{Leader: 1, Replicas: []int32{1}, ISR: []int32{1}}}}
		txn(t, s, createTopicOps(topic, 1)...)
	}
	return s
}

// content is a tree without what is of a session and without versions.
func content(t *testing.T, s Store) string {
	t.Helper()
	var out strings.Builder
	for _, path := range rootPaths {
		for line := range strings.Lines(listing(t, s, path)) {
			if !strings.HasPrefix(line, brokerIDsPath+"/") {
				out.WriteString(line[:strings.LastIndex(line, " v")] + "\n")
			}
		}
	}
	return out.String()
}

// endingStore fails after some transactions.
type endingStore struct {
	Store
	left int
}

var errEnding = errors.New("cut")

func (s *endingStore) Txn(ctx context.Context, ops ...Op) error {
	if s.left == 0 {
		return errEnding
	}
	s.left--
	return s.Store.Txn(ctx, ops...)
}

func TestCopyTree(t *testing.T) {
	from := aloneStore(t, 300) // 1,500 nodes, which take several transactions
	want := content(t, from)
	cuts := 0
	for cut := 0; ; cut++ {
		to := NewMemory().Open()
		err := CopyTree(t.Context(), from, &endingStore{to, cut})
		if err == nil {
			break
		}
		cuts++
		if _, idErr := ReadClusterID(t.Context(), to); !errors.Is(err, errEnding) || !errors.Is(idErr, ErrNoNode) {
			t.Errorf("cut short after %d: %v; the cluster's id: %v", cut, err, idErr)
		}
		for range 2 { // goes on, and has nothing to do then
			if err := CopyTree(t.Context(), from, to); err != nil {
				t.Fatalf("after a cut at %d: %v", cut, err)
			}
		}
		if got := content(t, to); got != want {
			t.Fatalf("after a cut at %d:\n%s\nwant\n%s", cut, got, want)
		}
		if _, err := to.Children(t.Context(), controllerPath); !errors.Is(err, ErrNoNode) {
			t.Errorf("the office was copied: %v", err)
		}
	}
	if cuts < 3 {
		t.Errorf("%d transactions", cuts)
	}
}

func TestCopyTreeOverwritesNothing(t *testing.T) {
	from := aloneStore(t, 1)
	for name, there := range map[string][]Op{
		"another cluster": {Create(clusterPath, nil), Create(clusterIDPath, []byte(`{"version":"1","id":"other"}`))},
		"another topic":   {Create(brokersPath, nil), Create(topicsPath, nil), Create(topicPath("theirs"), []byte("x"))},
		"another content": {Create(controllerEpochPath, []byte("17"))},
	} {
		to := NewMemory().Open()
		txn(t, to, there...)
		before := listing(t, to, "/")
		if err := CopyTree(t.Context(), from, to); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("%s: %v", name, err)
		}
		if after := listing(t, to, "/"); after != before {
			t.Errorf("%s: from\n%s to\n%s", name, before, after)
		}
	}
	if err := CopyTree(t.Context(), NewMemory().Open(), NewMemory().Open()); !errors.Is(err, ErrNoNode) {
		t.Errorf("from nothing: %v", err)
	}
}
