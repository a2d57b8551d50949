package main

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
)

// forgetStart unmaps the pages of the program's file. The start uses many that are not used again, and the
// kernel maps those around them, too: up to 40 MB in all. What is needed again is mapped again, from the
// page cache.
func forgetStart(log *slog.Logger) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		log.Debug("the start's pages stay mapped", "error", err)
		return
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		log.Debug("the start's pages stay mapped", "error", err)
		return
	}
	defer maps.Close()
	var from, to uintptr
	for in := bufio.NewScanner(maps); in.Scan(); {
		line := in.Text()
		var begin, end uintptr
		var perms string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &begin, &end, &perms); n == 3 {
			from, to = begin, end
			if !strings.HasPrefix(perms, "r-") || !strings.HasSuffix(line, " "+program) {
				to = from
			}
			continue
		}
		// Pages that are no longer the file's, such as those that a linker has filled in, would be lost.
		if value, ok := strings.CutPrefix(line, "Anonymous:"); ok && to > from && strings.Fields(value)[0] == "0" {
			if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, from, to-from, syscall.MADV_DONTNEED); errno != 0 {
				log.Debug("the start's pages stay mapped", "error", errno)
			}
		}
	}
}
