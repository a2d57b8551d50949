package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var kcatPart = Part{
	Name:    "kcat",
	Version: "1.7.1",
	From:    "apt-get",
	toFetch: []string{"apt-get", "dpkg-deb"},
	fetch:   fetchKcat,
}

func fetchKcat(ctx context.Context, dir, version string) error {
	err := fetchDebian(ctx, dir, "kcat="+version+"*", "librdkafka1=2.0.2*", "libyajl2=2.1.0*",
		"libsasl2-2", "libdb5.3", "liblz4-1")
	if err != nil {
		return err
	}
	// The wrapper finds its place by itself: the directory is renamed.
	const wrapper = `#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$(echo "$here"/usr/lib/*-linux-gnu) exec "$here/usr/bin/kcat" "$@"
`
	file := filepath.Join(dir, "kcat")
	if err := os.WriteFile(file, []byte(wrapper), 0o755); err != nil {
		return err
	}
	if err := runIn(ctx, dir, file, "-V"); err != nil {
		return fmt.Errorf("try what was fetched: %w", err)
	}
	return nil
}

// Kcat returns the path of kcat, a command-line client on librdkafka 2.0.
func Kcat(t testing.TB) string {
	t.Helper()
	return filepath.Join(need(t, kcatPart), "kcat")
}
