package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// Without inotify watches, or without inotify at all, files are found by looking: said once, nothing lost.
func TestOutOfWatches(t *testing.T) {
	for limit, said := range map[string]string{"max_inotify_watches": "some directories give no change events", "max_inotify_instances": "no change events: directories are looked at"} {
		t.Run(limit, func(t *testing.T) {
			if out, err := exec.CommandContext(t.Context(), "unshare", "-U", "-r", "true").CombinedOutput(); err != nil {
				t.Skipf("no user namespace: %v: %s", err, out)
			}
			dir := t.TempDir()
			h := newHost(t, "file: {include: ["+dir+"/*/*.log]}")
			h.broker.up()
			file := writeFile(t, "p.yaml", "pipeline: polled\ncollect:\n  file: {include: ["+dir+"/*/*.log], scan_interval: 100ms}\ntopic: {name: lines}\n")
			script := fmt.Sprintf("echo 0 > /proc/sys/user/%s; exec %s agent %s --brokers %s --metrics '' --state %s", limit, testenv.Sluice(t), file, h.addr, filepath.Join(h.dir, "own"))
			p := testenv.Start(t, testenv.Command{Name: "agent", Path: "/usr/bin/unshare", Args: []string{"-U", "-r", "sh", "-c", script}})
			const files = 30
			for i := range files {
				sub := filepath.Join(dir, fmt.Sprint(i))
				if err := os.Mkdir(sub, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(sub, "x.log"), fmt.Appendf(nil, "%d\n", i), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			h.settled(files)
			h.mustHoldOnce(files, func(line string) (i int, err error) {
				_, err = fmt.Sscan(line, &i)
				return i, err
			})
			if n := strings.Count(p.Output(), said); n < 1 || n > files {
				t.Errorf("said %d times:\n%s", n, p.Output())
			}
		})
	}
}
