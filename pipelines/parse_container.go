package pipelines

import (
	"fmt"
	"path"

	"github.com/goccy/go-yaml/ast"
)

// Container says that the files are those that a container runtime writes.
type Container struct {
	Pos    Pos
	Format ContainerFormat // default auto
	JSON   bool            // a line that is a JSON object is an event, others are raw
	// Namespaces are those whose files are followed: globs of names. Files that tell none are left out where Include is set.
	Namespaces NamespaceFilter
	// Kubernetes is what the API server is asked; nil: it is not.
	Kubernetes *Kubernetes
}

// ContainerFormat is the form of lines in containers' files.
type ContainerFormat string

// The forms.
const (
	ContainerAuto   ContainerFormat = "auto"   // docker where a line begins with {, else cri
	ContainerCRI    ContainerFormat = "cri"    // containerd's and CRI-O's: TIME STREAM TAGS TEXT
	ContainerDocker ContainerFormat = "docker" // Docker's json-file driver
)

// NamespaceFilter chooses Kubernetes namespaces.
type NamespaceFilter struct {
	Include []string // empty: all
	Exclude []string
}

// Takes says whether a namespace is chosen; "" is one that is not known.
func (f *NamespaceFilter) Takes(name string) bool {
	in := func(patterns []string) bool {
		for _, p := range patterns {
			if ok, _ := path.Match(p, name); ok && name != "" {
				return true
			}
		}
		return false
	}
	return (len(f.Include) == 0 || in(f.Include)) && !in(f.Exclude)
}

func (r *yamlReader) container(e entry, what string) *Container {
	c := &Container{Pos: e.pos, Format: ContainerAuto}
	if r.object(e.value, what,
		known{"format", func(e entry) {
			c.Format = ContainerFormat(r.oneOf(e.value, what+".format", string(ContainerAuto), string(ContainerCRI), string(ContainerDocker)))
		}},
		known{"json", func(e entry) { c.JSON = r.boolean(e.value, what+".json") }},
		known{"namespaces", func(e entry) { c.Namespaces = r.namespaces(e, what+".namespaces") }},
		known{"kubernetes", func(e entry) { c.Kubernetes = r.kubernetes(e, what+".kubernetes") }},
	) == nil {
		return nil
	}
	return c
}

func (r *yamlReader) namespaces(e entry, what string) (f NamespaceFilter) {
	r.object(e.value, what,
		known{"include", func(e entry) { f.Include = r.nameGlobs(e.value, what+".include") }},
		known{"exclude", func(e entry) { f.Exclude = r.nameGlobs(e.value, what+".exclude") }},
	)
	return f
}

// nameGlobs reads patterns of names.
func (r *yamlReader) nameGlobs(n ast.Node, what string) []string {
	patterns := r.texts(n, what)
	for i, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			r.errorOn(n, "%s: %q is not a pattern: a [ or a \\ without its end", fmt.Sprintf("%s[%d]", what, i), p)
		}
	}
	return patterns
}
