package testenv

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// goClientsDir is a module of its own, so that what the tests' clients need
// stays out of the product's go.mod.
const goClientsDir = "internal/compat/goclients"

// goClientsPart stands for the Go modules of that module. They live in the go
// command's cache; the part's directory only says that they were fetched once.
var goClientsPart = Part{
	Name:    "goclients",
	Version: "sarama-1.61.1-kafka-go-0.4.51",
	From:    "go",
	toRun:   []string{"go"},
	check:   downloadGoClients,
	fetch:   func(context.Context, string, string) error { return nil },
}

func downloadGoClients(ctx context.Context) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	return runIn(ctx, filepath.Join(root, goClientsDir), "go", "mod", "download")
}

var goClients = binary{dir: goClientsDir, pkg: "."}

// GoClients returns the path of the program that drives a broker through
// sarama and segmentio/kafka-go. It is built once per test binary.
func GoClients(t testing.TB) string {
	t.Helper()
	need(t, goClientsPart)
	path, err := goClients.path()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

const franzGoPackage = "github.com/twmb/franz-go/pkg/kgo"

var franzGoTests = binary{pkg: franzGoPackage, test: true}

// FranzGoTests returns the path of the public tests of franz-go's client, at
// the version of go.mod, and the directory to run them in, which they read but
// do not write. They are built once per test binary.
func FranzGoTests(t testing.TB) (path, dir string) {
	t.Helper()
	notShort(t)
	path, err := franzGoTests.path()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", franzGoPackage).Output()
	if err != nil {
		t.Fatalf("find %s: %v", franzGoPackage, err)
	}
	return path, strings.TrimSpace(string(out))
}

// PartVersion returns the pinned version of a part, by its name.
func PartVersion(name string) string {
	for _, p := range Parts() {
		if p.Name == name {
			return p.Version
		}
	}
	panic(fmt.Sprintf("no part %q", name))
}
