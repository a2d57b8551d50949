package main

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
)

// What the start mapped of the program is given back, and the program goes on.
func TestForgetStart(t *testing.T) {
	mapped := func() int {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "RssFile:")
		kb, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			t.Fatal(err)
		}
		return kb
	}
	before := mapped()
	forgetStart(slog.New(slog.DiscardHandler))
	after := mapped()
	if after > before-1024 {
		t.Errorf("%d KiB of files mapped before, %d after", before, after)
	}
	newRoot()
}
