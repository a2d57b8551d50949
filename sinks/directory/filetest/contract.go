package filetest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/sinks/directory"
)

// Contract is what every file system has to do.
func Contract(t *testing.T, f directory.FS) {
	write := func(name, text string) {
		t.Helper()
		file, err := f.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(file, text); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		t.Helper()
		r, err := f.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	want := func(what string, err, target error) {
		t.Helper()
		if !errors.Is(err, target) {
			t.Errorf("%s: %v, want %v", what, err, target)
		}
	}
	large := string(bytes.Repeat([]byte("0123456789"), 300_000))
	write("a/b/one", large)
	if read("a/b/one") != large {
		t.Error("a file is not what was written")
	}
	write("empty", "")
	if read("empty") != "" {
		t.Error("an empty file is not empty")
	}
	_, err := f.Create("a/b/one")
	want("create a file that is there", err, fs.ErrExist)
	_, err = f.Open("a/none")
	want("open what is not there", err, fs.ErrNotExist)
	_, err = f.List("none")
	want("list what is not there", err, fs.ErrNotExist)
	want("remove what is not there", f.Remove("a/none"), fs.ErrNotExist)
	want("rename what is not there", f.Rename("a/none", "x"), fs.ErrNotExist)

	write("two", "2")
	want("rename over a file", f.Rename("two", "a/b/one"), nil)
	if read("a/b/one") != "2" {
		t.Error("a rename did not replace")
	}
	want("rename into new directories", f.Rename("a/b/one", "c/d/e/one"), nil)
	if read("c/d/e/one") != "2" {
		t.Error("a rename lost the content")
	}

	write("entry1/x", "first")
	write("entry2/x", "second")
	want("publish a directory", f.Rename("entry1", "c/published"), nil)
	want("publish another under its name", f.Rename("entry2", "c/published"), fs.ErrExist)
	if read("c/published/x") != "first" || read("entry2/x") != "second" {
		t.Error("a refused rename changed something")
	}
	entries, err := f.List("c")
	slices.SortFunc(entries, func(a, b directory.Entry) int { return strings.Compare(a.Name, b.Name) })
	if err != nil || !slices.Equal(entries, []directory.Entry{{Name: "d", Dir: true}, {Name: "published", Dir: true}}) {
		t.Errorf("%v, %v", entries, err)
	}
	want("remove a tree", f.Remove("c"), nil)
	_, err = f.List("c")
	want("list what was removed", err, fs.ErrNotExist)
}
