package agent

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

// judge says whether the input takes a file, and by what or why not.
func (r *files) judge(e *Explanation, s *source) (bool, string) {
	by := r.scanner.IncludedBy(e.Path)
	switch {
	case by == "" && s != nil && s.detached:
		return true, "it was found under another name, and is read to its end"
	case by == "":
		return false, fmt.Sprintf("no include matches it; the nearest is %s", r.scanner.Nearest(e.Path))
	}
	if x := r.scanner.ExcludedBy(e.Path); x != "" {
		return false, "it is excluded by " + x
	}
	if !e.Exists {
		return true, fmt.Sprintf("%s matches the name, but %s", by, e.Absent)
	}
	info, err := tail.Stat(e.Path)
	switch {
	case err != nil:
		return false, fmt.Sprintf("it cannot be looked at: %v", err)
	case info.Dir:
		return false, "it is a directory"
	case !info.Regular:
		return false, "it is not a regular file"
	}
	if why := r.whySkipped(e.Path, info); why != "" {
		return false, why
	}
	if err := readable(e.Path); err != nil {
		return false, fmt.Sprintf("%s matches it, but it cannot be read: %v; give the agent's user read access (group or ACL)", by, err)
	}
	why := by + " matches it"
	if s != nil && s.path != e.Path && s.real != e.Path {
		why = fmt.Sprintf("%s matches it; it is followed as %s, which leads to the same file", by, s.path)
	}
	return true, why + r.nature(e, s, info)
}

// whySkipped says why a file that the patterns match is not taken; "" when it is.
func (r *files) whySkipped(path string, info tail.Info) string {
	if r.own != nil && r.own(path, info) {
		return "it is one of the agent's own files, whose shipping would never end"
	}
	in := r.pipe.Collect.File
	if !r.links.follows() {
		if _, _, ok := r.links.place(path); !ok && in.Symlinks == pipelines.SymlinksNone {
			return "there is a symbolic link on the way to it, and none are followed (collect.file.symlinks: none)"
		} else if !ok {
			return fmt.Sprintf("a symbolic link on the way to it leads out of the roots %q (collect.file.symlinks: within_roots)", r.links.roots)
		}
	}
	return whyLeftOut(in, r.pods, path)
}

// nature is what there is to say of a file that is taken: that it is compressed, or old.
func (r *files) nature(e *Explanation, s *source, info tail.Info) (text string) {
	packed := s != nil && s.file.Compressed() || s == nil && looksCompressed(e.Path)
	if packed {
		text = "; it is compressed, so that it is read once, and positions are those of its content"
	}
	old := r.pipe.Collect.File.IgnoreOlder
	switch {
	case s != nil && s.tooOld:
		text += fmt.Sprintf("; it had not changed for %s when it was first seen, so that only what is appended is sent (ignore_older)", old)
	case s == nil && old > 0 && time.Since(time.Unix(0, info.ModTime)) > old:
		text += fmt.Sprintf("; unless it has a position it is too old, and only what is appended is sent (ignore_older: %s)", old)
	}
	return text
}

// compressions are how compressed files begin.
var compressions = [][]byte{{0x1f, 0x8b}, {0x28, 0xb5, 0x2f, 0xfd}}

// looksCompressed looks at a file's beginning.
func looksCompressed(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close() // only read from
	head := make([]byte, 4)
	n, _ := io.ReadFull(f, head) // what is shorter is not compressed
	for _, c := range compressions {
		if bytes.HasPrefix(head[:n], c) {
			return true
		}
	}
	return false
}

// fate is what there is to say of a file that has a position.
func (r *files) fate(e *Explanation, s *source, t *track) string {
	switch {
	case e.Exists || s != nil && !s.detached:
		return ""
	case s != nil:
		return "; it is gone, and what it held is read through its open descriptor"
	case r.cfg.PositionsKeep > 0:
		return fmt.Sprintf("; it is gone, and its position is kept until %s (--positions-keep)", t.seen.Add(r.cfg.PositionsKeep).UTC().Format(time.RFC3339))
	}
	return "; it is gone"
}

// waitsOfItsOwn are what keeps one file from being read, whatever its pipeline could. It needs stepping.
func (r *files) waitsOfItsOwn(s *source) (out []string) {
	if r.waitsForPod(s) {
		ref, limit := s.pod.ref, "without limit (on_unknown: hold)"
		if r.pods.settings.OnUnknown == pipelines.PodUnknownTake {
			limit = fmt.Sprintf("until %s at most", s.pod.since.Add(r.pods.settings.Wait).UTC().Format(time.RFC3339))
		}
		text := fmt.Sprintf("the API server to tell of pod %s/%s, %s", ref.Namespace, ref.Name, limit)
		if err := r.pods.Trouble(); err != nil {
			text += fmt.Sprintf(": %v", err)
		}
		out = append(out, text)
	}
	if !s.file.Compressed() {
		return out
	}
	switch {
	case r.unpacking != nil && r.unpacking != s:
		out = append(out, fmt.Sprintf("its turn among the compressed files, which are read one at a time: now %s", r.unpacking.path))
	case r.cfg.Now().Sub(time.Unix(0, s.file.Seen().ModTime)) < r.cfg.RotateGrace:
		out = append(out, fmt.Sprintf("%s without a change, after which a compressed file is whole", r.cfg.RotateGrace))
	}
	return out
}
