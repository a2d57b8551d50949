package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// journaldPart is the machine's own systemd: it cannot be fetched.
var journaldPart = Part{Name: "systemd-journald", toRun: []string{"journalctl"}}

// journaldPath is where the daemon lies on every distribution that has it.
const journaldPath = "/usr/lib/systemd/systemd-journald"

// Journald starts a systemd-journald with a journal of its own, and returns its namespace, for journalctl, and the socket that takes entries.
// It takes root, and the journal is removed in the end.
func Journald(t testing.TB) (namespace, socket string) {
	t.Helper()
	notShort(t)
	if err := journaldHere(); err != nil {
		noteSkipped(t, journaldPart, err)
		t.Skipf("systemd-journald cannot be run: %v", err)
	}
	namespace = fmt.Sprintf("sluice%d", os.Getpid())
	dir := "/run/systemd/journal." + namespace
	socket = filepath.Join(dir, "socket")
	t.Cleanup(func() { removeJournal(t, namespace) }) // when the daemon has ended
	Start(t, Command{Name: "journald", Path: journaldPath, Args: []string{namespace}, Ready: func(context.Context) error {
		_, err := os.Stat(socket)
		return err
	}})
	return namespace, socket
}

func journaldHere() error {
	if err := haveCommands(journaldPart.toRun); err != nil {
		return err
	}
	if _, err := os.Stat(journaldPath); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("it takes root")
	}
	return nil
}

func removeJournal(t testing.TB, namespace string) {
	for _, pattern := range []string{"/run/systemd/journal." + namespace, "/run/log/journal/*." + namespace, "/var/log/journal/*." + namespace} {
		dirs, err := filepath.Glob(pattern)
		for _, dir := range dirs {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		if err != nil {
			t.Error(err)
		}
	}
}
