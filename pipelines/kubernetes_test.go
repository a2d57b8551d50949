package pipelines

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestKubernetesSettings(t *testing.T) {
	for _, tc := range []struct {
		yaml string
		want Kubernetes
	}{
		{"{}", Kubernetes{Labels: []KeyGlob{"*"}, Workload: true, Wait: 10 * time.Second, OnUnknown: PodUnknownTake, Keep: 10 * time.Minute, PodsMax: 1000}},
		{`{url: "https://10.0.0.1:6443", token_file: /t, ca_file: /c, node: n1, labels: [], annotations: [team, a/*], workload: false, selector: app=x, on_unknown: hold, keep: 0s, pods_max: 5}`,
			Kubernetes{URL: "https://10.0.0.1:6443", TokenFile: "/t", CAFile: "/c", Node: "n1", Labels: []KeyGlob{}, Annotations: []KeyGlob{"team", "a/*"},
				Selector: &LabelSelector{Text: "app=x"}, Wait: 10 * time.Second, OnUnknown: PodUnknownHold, PodsMax: 5}},
		{"{wait: 0s}", Kubernetes{Labels: []KeyGlob{"*"}, Workload: true, OnUnknown: PodUnknownTake, Keep: 10 * time.Minute, PodsMax: 1000}},
	} {
		pipes, err := Parse("p.yaml", []byte("pipeline: p\ncollect: {file: {include: [a], container: {kubernetes: "+tc.yaml+"}}}\n"))
		if err != nil {
			t.Errorf("%s: %v", tc.yaml, err)
			continue
		}
		diff := cmp.Diff(tc.want, *pipes[0].Collect.File.Container.Kubernetes, cmpopts.IgnoreFields(Kubernetes{}, "Pos"), cmpopts.IgnoreUnexported(LabelSelector{}))
		if diff != "" {
			t.Errorf("%s: %s", tc.yaml, diff)
		}
	}
}

func TestLabelSelectors(t *testing.T) {
	labels := map[string]string{"app": "cart", "tier": "web", "k8s.io/name": "x", "empty": ""}
	get := func(key string) (string, bool) { v, ok := labels[key]; return v, ok }
	for text, want := range map[string]string{ // + chosen, - not chosen, else a part of the error
		"app=cart": "+", "app==cart": "+", "app = cart": "+", "app!=cart": "-", "app != cart": "-", "none!=x": "+", "none=x": "-", "app": "+", "!app": "-", "none": "-", "!none": "+",
		"tier in (web, api)": "+", "tier in(api)": "-", "tier notin (api)": "+", "tier notin (web)": "-", "none notin (a)": "+", "none in (a)": "-",
		"app=cart,tier=web": "+", "app=cart, tier in (a,web) , !none": "+", "app=cart,tier=db": "-", "k8s.io/name=x": "+", "empty=": "+", "empty": "+", "empty in (,a)": "+",
		"=": "no label's key", "app=cart,": "no label's key", "a b": "after a comes", "app=-x": "no label's value", "a in x": "after a comes", "a in (x": "want them in brackets",
		"a in (x) b": "a comma is missing", "!a=b": "a comma is missing", "a/b/c": "no label's key", "/a": "no label's key", "a=" + strings.Repeat("x", 64): "no label's value",
	} {
		s, err := parseLabelSelector(text)
		switch {
		case err != nil:
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %s", text, err, want)
			}
		case s.Matches(get) != (want == "+") || want != "+" && want != "-":
			t.Errorf("%q: %v, want %s", text, s.Matches(get), want)
		}
	}
}

func TestKeyGlobs(t *testing.T) {
	for _, tc := range []struct {
		glob, name string
		want       bool
	}{
		{"*", "a/b", true}, {"*", "", true}, {"a", "a", true}, {"a", "ab", false}, {"a*", "ab/c", true}, {"*c", "ab/c", true}, {"a*c", "ac", true}, {"a*c", "abcd", false},
		{"a*b*c", "a1b2c", true}, {"a*b*c", "a1c2b", false}, {"*a*", "bab", true}, {"*aa", "aaa", true}, {"ab*ba", "aba", false},
	} {
		if got := KeyGlob(tc.glob).Matches(tc.name); got != tc.want {
			t.Errorf("%s of %s: %v", tc.glob, tc.name, got)
		}
	}
}

// What arbitrary text makes of a selector is a selector or an error.
func FuzzLabelSelector(f *testing.F) {
	f.Add("a in (b,c),!d,e!=f")
	f.Fuzz(func(_ *testing.T, text string) {
		if s, err := parseLabelSelector(text); err == nil {
			s.Matches(func(string) (string, bool) { return "", true })
		}
	})
}
