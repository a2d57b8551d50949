package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/sluice-io/sluice/internal/dirlock"
)

// lockName is the file in the state directory that an agent holds locked.
const lockName = "lock"

// lockDir takes the state directory for this process. The lock ends with the process, however it ends.
func lockDir(ctx context.Context, dir string) (*dirlock.Lock, error) {
	lock, err := dirlock.Take(ctx, filepath.Join(dir, lockName), 0o600)
	var inUse *dirlock.InUseError
	if errors.As(err, &inUse) {
		return nil, fmt.Errorf("state directory %s is in use by another agent (pid %s): stop it, or give this one its own --state directory: %w", dir, orUnknown(inUse.Holder), err)
	}
	if err != nil {
		return nil, fmt.Errorf("lock state directory %s: %w", dir, err)
	}
	return lock, nil
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
