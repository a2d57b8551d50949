package tail

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestUnwatchedHints(t *testing.T) {
	h := Unwatched()
	h.Changed("/a")
	h.Changed("/a")
	h.Changed("/b")
	<-h.Ready()
	paths, scan := h.Take()
	slices.Sort(paths)
	if !slices.Equal(paths, []string{"/a", "/b"}) || scan {
		t.Errorf("took %q, scan %v", paths, scan)
	}
	for i := range hintsMax + 1 {
		h.Changed(fmt.Sprintf("/%d", i))
	}
	if paths, scan := h.Take(); len(paths) > hintsMax || !scan {
		t.Errorf("%d paths, scan %v: too many must become a scan", len(paths), scan)
	}
	h.Renamed()
	if _, scan := h.Take(); !scan {
		t.Error("no scan after a rename")
	}
	if h.Complete() {
		t.Error("says that it watches")
	}
	h.Close()
}

// Closing does not wait for events, nor for the pause between them.
func TestCloseWithinAStorm(t *testing.T) {
	dir := t.TempDir()
	h, err := NewHints()
	if err != nil {
		t.Skip(err)
	}
	info, err := Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Watch([]Dir{{Path: dir, ID: info.ID}}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "a.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 20 * hintBurst {
		if _, err := f.WriteString("x\n"); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.After(10 * time.Second)
	for found := false; !found; {
		select {
		case <-h.Ready():
			paths, _ := h.Take()
			found = slices.Contains(paths, f.Name())
		case <-deadline:
			t.Fatal("the change was not told")
		}
	}
	closed := make(chan struct{})
	go func() { h.Close(); close(closed) }()
	select {
	case <-closed:
	case <-deadline:
		t.Fatal("Close does not return")
	}
}
