package pipelines

import (
	"io/fs"
	"path/filepath"
	"testing"
)

// TestExamples parses every pipeline under examples/ and runs its tests.
func TestExamples(t *testing.T) {
	count := 0
	err := filepath.WalkDir("../examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		count++
		t.Run(path, func(t *testing.T) { checkExample(t, path) })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if count < 2 {
		t.Fatalf("found %d pipelines under examples", count)
	}
}

func checkExample(t *testing.T, path string) {
	pipes, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pipes {
		if len(p.Tests) == 0 {
			t.Errorf("pipeline %s has no tests", p.Name)
		}
		for _, r := range RunTests(p) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		}
		for _, s := range p.Sinks {
			if _, err := s.NewColumns(); err != nil {
				t.Error(err)
			}
		}
	}
}
