package quickio

import (
	"errors"
	"syscall"
)

// NoRoom says that a write failed for want of room only, on the disk or in a quota, which passes.
func NoRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
