package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/broker"
	"github.com/sluice-io/sluice/pipelines"
)

// The documents may name only what exists: commands and flags of this binary, targets of the Makefile, pipelines and broker
// configurations that parse.

func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*/*.md", "deploy/*/*.md", "bench/*.md"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			docs[strings.TrimPrefix(file, "../../")] = string(text)
		}
	}
	if len(docs) < 4 {
		t.Fatalf("only %d documents found", len(docs))
	}
	return docs
}

var (
	codeBlock = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```")
	inline    = regexp.MustCompile("`([^`\n]+)`")
)

func TestDocumentedCommandsExist(t *testing.T) {
	seen := 0
	for doc, text := range documents(t) {
		for _, line := range commandLines(text) {
			seen++
			if err := checkCommand(line); err != nil {
				t.Errorf("%s: `%s`: %v", doc, line, err)
			}
		}
	}
	if seen < 10 {
		t.Fatalf("only %d commands found: is the search broken?", seen)
	}
}

// commandLines are the sluice command lines of a document, without the program.
func commandLines(text string) (out []string) {
	add := func(line string) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "$ "))
		for _, program := range []string{"sluice ", "bin/sluice ", "./bin/sluice "} {
			if rest, ok := strings.CutPrefix(line, program); ok {
				rest, _, _ = strings.Cut(rest, " #")
				rest, _, _ = strings.Cut(rest, " &")
				out = append(out, strings.TrimSpace(rest))
			}
		}
	}
	for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
		if lang := block[1]; lang == "sh" || lang == "console" || lang == "" {
			for line := range strings.Lines(strings.ReplaceAll(block[2], "\\\n", " ")) {
				add(line)
			}
		}
	}
	for _, word := range inline.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		add(word[1])
	}
	return out
}

func checkCommand(line string) error {
	cmd, args, err := newRoot().Find(strings.Fields(line))
	if err != nil {
		return err
	}
	cmd.DisableFlagParsing = false
	cmd.Args = cobra.ArbitraryArgs
	return cmd.ParseFlags(args)
}

func TestDocumentedTargetsExist(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	target := regexp.MustCompile("(?m)(?:`|^)make ([a-z][a-z-]*)")
	for doc, text := range documents(t) {
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
				t.Errorf("%s: `make %s` is not a target of the Makefile", doc, m[1])
			}
		}
	}
}

func TestDocumentedYAMLParses(t *testing.T) {
	for doc, text := range documents(t) {
		for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
			if block[1] != "yaml" {
				continue
			}
			var err error
			switch {
			case strings.HasPrefix(block[2], "pipeline:"):
				_, err = pipelines.Parse(doc, []byte(block[2]))
			case strings.Contains(doc, "broker"):
				_, err = broker.ParseConfig(doc, []byte(block[2]))
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", doc, err, block[2])
			}
		}
	}
}
