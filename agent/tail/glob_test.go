package tail

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPatternMatch(t *testing.T) {
	for _, tc := range []struct {
		pattern string
		yes, no []string
	}{
		{"/var/log/*.log", []string{"/var/log/a.log"}, []string{"/var/log/a.log.1", "/var/log/x/a.log"}},
		{"/var/log/**", []string{"/var/log/a", "/var/log/x/y/a"}, []string{"/var/lib/a"}},
		{"/var/log/**/*.log", []string{"/var/log/a.log", "/var/log/x/y/a.log"}, []string{"/var/log/a", "/var/a.log"}},
		{"/**/z", []string{"/z", "/a/b/z"}, []string{"/a/b"}},
		{"/a/{b,c{d,e}}.log", []string{"/a/b.log", "/a/cd.log", "/a/ce.log"}, []string{"/a/c.log", "/a/d.log"}},
		{"/a/*", []string{"/a/b"}, []string{"/a/.b"}},
		{"/a/.*", []string{"/a/.b"}, []string{"/a/b"}},
		{"/a/**", []string{"/a/b/c"}, []string{"/a/b/.c", "/a/.b/c"}},
		{"/a/[0-9]?", []string{"/a/1x"}, []string{"/a/x1", "/a/1"}},
	} {
		p, err := ParsePattern(tc.pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range tc.yes {
			if !p.Match(path) {
				t.Errorf("%s does not match %s", tc.pattern, path)
			}
		}
		for _, path := range tc.no {
			if p.Match(path) {
				t.Errorf("%s matches %s", tc.pattern, path)
			}
		}
	}
	for _, bad := range []string{"/a/{b", "/a/[", strings.Repeat("/{a,b}", 11)} {
		if _, err := ParsePattern(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestScan(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"a.log", "b.log", "b.txt", "x/c.log", "x/y/d.log", "x/.hidden/e.log", "skip/f.log"} {
		write(t, filepath.Join(dir, path), path)
	}
	for link, target := range map[string]string{"loop": dir, "x/link.log": filepath.Join(dir, "b.txt"), "hard.log": "", "dangling.log": "/nowhere/at-all"} {
		var err error
		if target == "" {
			err = os.Link(filepath.Join(dir, "a.log"), filepath.Join(dir, link))
		} else {
			err = os.Symlink(target, filepath.Join(dir, link))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ include, exclude, want string }{
		{"*.log", "", "a.log b.log"},
		{"*.log", "b*", "a.log"},
		{"**/*.log", "", "a.log b.log skip/f.log x/c.log x/link.log x/y/d.log"},
		{"**/*.log", "skip/**", "a.log b.log x/c.log x/link.log x/y/d.log"},
		{"x/*/d.log", "", "x/y/d.log"},
		{"{a,b}.log", "", "a.log b.log"},
		{"**", "**/*.txt", "a.log b.log skip/f.log x/c.log x/link.log x/y/d.log"},
	} {
		var exclude []string
		if tc.exclude != "" {
			exclude = []string{filepath.Join(dir, tc.exclude)}
		}
		s, err := NewScanner([]string{filepath.Join(dir, tc.include)}, exclude, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range s.Scan().Files {
			rel, _ := filepath.Rel(dir, f.Path)
			got = append(got, rel)
			if !s.Matches(f.Path) {
				t.Errorf("%s is found and does not match", f.Path)
			}
		}
		slices.Sort(got)
		if g := strings.Join(got, " "); g != tc.want {
			t.Errorf("%s without %q: %s", tc.include, tc.exclude, g)
		}
	}
}

func TestScanTellsWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	s, err := NewScanner([]string{filepath.Join(dir, "none/*.log"), filepath.Join(dir, "named.log")}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Scan(); len(got.Problems) != 2 {
		t.Errorf("problems %v", got.Problems)
	}
	write(t, filepath.Join(dir, "named.log"), "x")
	write(t, filepath.Join(dir, "none/a.log"), "x")
	if got := s.Scan(); len(got.Problems) != 0 || len(got.Files) != 2 {
		t.Errorf("%+v", got)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
