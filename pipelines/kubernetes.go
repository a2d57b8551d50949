package pipelines

import (
	"fmt"
	"net/url"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Kubernetes has the agent ask the API server for the pods of its node.
type Kubernetes struct {
	Pos Pos
	// URL of the API server; "": the cluster that the agent runs in as a pod. Then TokenFile and CAFile are those of its service account
	// unless they are given; with a URL they are none.
	URL       string
	TokenFile string // read again at each request
	CAFile    string // PEM
	Node      string // whose pods; "": NODE_NAME of the environment, else the host's name

	Labels      []KeyGlob      // keys of labels that become headers; default all
	Annotations []KeyGlob      // keys of annotations that become headers; default none
	Workload    bool           // default true: headers workload_kind and workload
	Selector    *LabelSelector // pods whose files are read; nil: all

	Wait      time.Duration // for how long lines of a pod that is not known wait; default 10 s
	OnUnknown PodUnknown    // what becomes of them then; default take
	Keep      time.Duration // how long a pod is remembered that was deleted; default 10 min
	PodsMax   int           // pods that are remembered; default 1,000
}

// PodUnknown says what becomes of lines whose pod the API server has not told of in time.
type PodUnknown string

// The choices.
const (
	PodUnknownTake PodUnknown = "take" // they go on without what it would have told, counted
	PodUnknownHold PodUnknown = "hold" // they wait in their files until it does
)

// Limits and defaults of Kubernetes.
const (
	podWaitDefault = 10 * time.Second
	podWaitHigh    = time.Hour
	podKeepDefault = 10 * time.Minute
	podKeepHigh    = 24 * time.Hour
	podsDefault    = 1000
	podsHigh       = 100_000
)

func (r *yamlReader) kubernetes(e entry, what string) *Kubernetes {
	k := &Kubernetes{Pos: e.pos, Labels: []KeyGlob{"*"}, Workload: true, Wait: podWaitDefault, OnUnknown: PodUnknownTake, Keep: podKeepDefault, PodsMax: podsDefault}
	found := r.object(e.value, what,
		known{"url", func(e entry) { k.URL = r.apiServer(e.value, what+".url") }},
		known{"token_file", func(e entry) { k.TokenFile = r.text(e.value, what+".token_file") }},
		known{"ca_file", func(e entry) { k.CAFile = r.text(e.value, what+".ca_file") }},
		known{"node", func(e entry) { k.Node = r.text(e.value, what+".node") }},
		known{"labels", func(e entry) { k.Labels = r.keyGlobs(e.value, what+".labels") }},
		known{"annotations", func(e entry) { k.Annotations = r.keyGlobs(e.value, what+".annotations") }},
		known{"workload", func(e entry) { k.Workload = r.boolean(e.value, what+".workload") }},
		known{"selector", func(e entry) { k.Selector = r.labelSelector(e.value, what+".selector") }},
		known{"wait", func(e entry) { k.Wait = r.duration(e.value, what+".wait", 0, podWaitHigh) }},
		known{"on_unknown", func(e entry) {
			k.OnUnknown = PodUnknown(r.oneOf(e.value, what+".on_unknown", string(PodUnknownTake), string(PodUnknownHold)))
		}},
		known{"keep", func(e entry) { k.Keep = r.duration(e.value, what+".keep", 0, podKeepHigh) }},
		known{"pods_max", func(e entry) { k.PodsMax = int(r.integer(e.value, what+".pods_max", 1, podsHigh)) }},
	)
	if found == nil {
		return nil
	}
	if pos, ok := found["wait"]; ok && k.OnUnknown == PodUnknownHold {
		r.errorAt(pos, "%s.wait: with on_unknown: hold lines wait without limit", what)
	}
	return k
}

// apiServer reads the URL of an API server.
func (r *yamlReader) apiServer(n ast.Node, what string) string {
	text := r.text(n, what)
	u, err := url.Parse(text)
	switch {
	case text == "":
		return ""
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		r.errorOn(n, "%s: want https://HOST:PORT, not %q", what, text)
	}
	return text
}

// keyGlobs reads patterns of keys; an empty list is none.
func (r *yamlReader) keyGlobs(n ast.Node, what string) []KeyGlob {
	items, _ := r.list(n, what)
	out := []KeyGlob{}
	for i, item := range items {
		out = append(out, KeyGlob(r.text(item, fmt.Sprintf("%s[%d]", what, i))))
	}
	return out
}

func (r *yamlReader) labelSelector(n ast.Node, what string) *LabelSelector {
	text := r.text(n, what)
	if text == "" {
		return nil
	}
	s, err := parseLabelSelector(text)
	if err != nil {
		r.errorOn(n, "%s: %v; as in app=cart,tier in (web, api),!canary", what, err)
	}
	return s
}
