package testenv

import (
	"os"
	"strings"
	"testing"
	"time"
)

// The files that a build with a movable clock replaces are what they are taken for.
// That it works is tested where it is used, in internal/faults: the build takes minutes.
func TestWallClockOverlay(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, err := wallClockOverlay(root, dir)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		path:                                   "/src/time/time.go",
		dir + "/overlay-time.go":               "runtimeNow()\n\tsec += WallStep.Load()\n",
		dir + "/overlay-wallclock_of_tests.go": "int64(3000)",
	} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q: %v", file, want, err)
		}
	}
	if WallStep != 3000*time.Second {
		t.Errorf("a step of %v", WallStep)
	}
}
