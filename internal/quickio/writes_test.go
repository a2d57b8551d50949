package quickio

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A write that waits puts the quick ones off, for longer as long as they do not last.
func TestQuickWritesPause(t *testing.T) {
	q := NewWrites(2)
	write := func(at, took time.Duration) bool {
		if !q.begin(at) {
			return false
		}
		q.end(at, at+took)
		return true
	}
	const slow = quickWriteMax + 1
	for _, step := range []struct {
		at, took time.Duration
		quick    bool
	}{
		{0, quickWriteMax, true},
		{time.Second, slow, true},                         // 1 s without
		{2*time.Second + slow - 1, 0, false},              //
		{2*time.Second + slow, slow, true},                // again at once: 2 s
		{4*time.Second + 2*slow - 1, 0, false},            //
		{4*time.Second + 2*slow, 0, true},                 //
		{6*time.Second + 2*slow + 1, slow, true},          // they have lasted as long: 1 s
		{7*time.Second + 3*slow, 0, false},                //
		{7*time.Second + 3*slow + 1, quickWriteMax, true}, //
	} {
		if got := write(step.at, step.took); got != step.quick {
			t.Errorf("at %v: quick %v, want %v", step.at, got, step.quick)
		}
	}
	for at, n := 10*time.Second, 0; n < 20; n++ {
		if !write(at, slow) {
			t.Fatalf("write %d at %v is not quick", n, at)
		}
		at += slow + min(quickPauseMin<<n, quickPauseMax)
	}
	if got := time.Duration(q.pause.Load()); got != quickPauseMax {
		t.Errorf("longest pause %v, want %v", got, quickPauseMax)
	}
}

func TestQuickWritesAtATime(t *testing.T) {
	for _, tc := range []struct{ processors, most int }{{1, 0}, {2, 1}, {3, 1}, {8, 4}} {
		q := NewWrites(tc.processors)
		for n := range tc.most + 1 {
			if got, want := q.begin(0), n < tc.most; got != want {
				t.Errorf("%d processors: write %d quick: %v", tc.processors, n+1, got)
			}
		}
		if tc.most > 0 {
			q.end(0, 0)
			if !q.begin(0) {
				t.Errorf("%d processors: no quick write after the end of one", tc.processors)
			}
		}
	}
}

func TestQuickWritesWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	q := NewWrites(2)
	want := bytes.Repeat([]byte("0123456789"), 1<<20) // more than one piece
	for _, piece := range [][]byte{want[:7], want[7:8], want[8:]} {
		at := int64(len(want) - cap(piece))
		if n, err := q.WriteAt(f, piece, at); n != len(piece) || err != nil {
			t.Fatalf("%d of %d bytes at %d: %v", n, len(piece), at, err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file differs (%d bytes, %v)", len(got), err)
	}
	if q.running.Load() != 0 {
		t.Error("a write has not ended")
	}
	read, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if n, err := q.WriteAt(read, want, 0); n != 0 || err == nil {
		t.Errorf("wrote %d bytes to a file that is open for reading: %v", n, err)
	}
}
