//go:build unix

package dirlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Take(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	hasty, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Take(hasty, path, 0o600)
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.Holder != fmt.Sprint(os.Getpid()) {
		t.Fatalf("a second holder: %v", err)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := Take(hasty, path, 0o600)
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	if err := again.Release(); err != nil {
		t.Fatal(err)
	}
}

// A holder that was killed lets go a moment later: whoever starts in that moment waits.
func TestWaitsForAHolderThatEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Take(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	time.AfterFunc(3*waitRetry, func() { released <- first.Release() })
	second, err := Take(context.Background(), path, 0o600) // while the first is there
	if err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	if err := second.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestDirectoryThatIsNotThere(t *testing.T) {
	_, err := Take(t.Context(), filepath.Join(t.TempDir(), "none", "lock"), 0o600)
	var write *WriteError
	if !errors.As(err, &write) {
		t.Errorf("%v", err)
	}
}
