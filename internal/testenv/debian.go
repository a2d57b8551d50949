package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// fetchDebian unpacks Debian packages, given as NAME=VERSION*, into dir. It
// installs nothing and needs no root: the lists of packages are the system's,
// or if those lack the packages, fresh ones in a directory of its own.
func fetchDebian(ctx context.Context, dir string, packages ...string) error {
	download := append([]string{"download"}, packages...)
	if err := apt(ctx, dir, "", download...); err != nil {
		own := filepath.Join(dir, ".apt")
		if err := apt(ctx, dir, own, "update"); err != nil {
			return err
		}
		if err := apt(ctx, dir, own, download...); err != nil {
			return err
		}
		if err := os.RemoveAll(own); err != nil {
			return err
		}
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) != len(packages) {
		return fmt.Errorf("apt-get left %d packages of %d (%s)", len(debs), len(packages), strings.Join(packages, " "))
	}
	for _, deb := range debs {
		if err := runIn(ctx, dir, "dpkg-deb", "-x", deb, dir); err != nil {
			return err
		}
		if err := os.Remove(deb); err != nil {
			return err
		}
	}
	return nil
}

// apt runs apt-get with its lists in the directory state, if that is not empty.
func apt(ctx context.Context, dir, state string, args ...string) error {
	// As root apt would switch to a user who cannot write here.
	options := []string{"-qq", "-o", "APT::Sandbox::User="}
	if state != "" {
		for _, d := range []string{"lists/partial", "cache/archives/partial"} {
			if err := os.MkdirAll(filepath.Join(state, d), 0o755); err != nil {
				return err
			}
		}
		options = append(options, "-o", "Dir::State::Lists="+filepath.Join(state, "lists"), "-o", "Dir::Cache="+filepath.Join(state, "cache"))
	}
	return runIn(ctx, dir, "apt-get", append(options, args...)...)
}
