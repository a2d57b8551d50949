package agent

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/kubernetes"
	"github.com/sluice-io/sluice/agent/kubernetes/apifake"
)

// podsRig is a rig with an API server.
func podsRig(t *testing.T, settings, rest string) (*rig, *apifake.Server) {
	t.Helper()
	api := apifake.New(false)
	t.Cleanup(api.Close)
	r := newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/pods/*/*/*.log*\"], container: {"+settings+"}}\n  labels: {site: shop}\ntopic: {name: lines, partitions: 1}\n"+rest)
	r.yaml = strings.ReplaceAll(r.yaml, "API", "url: '"+api.URL+"', node: n1")
	r.cfg.Kubernetes = kubernetes.Config{BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond}
	return r, api
}

// log writes a line into a pod's log, of which namespace, name, identity and container are told by the directory.
func (r *rig) podLog(dir, text string) {
	r.t.Helper()
	if err := os.MkdirAll(r.path("pods/"+dir), 0o700); err != nil {
		r.t.Fatal(err)
	}
	r.write("pods/"+dir+"/0.log", cri(1, "stdout", "F", text))
}

// headersOf are those of the record with a value.
func (r *rig) headersOf(value string) map[string]string {
	r.t.Helper()
	var out map[string]string
	r.eventually("the line "+value, func() bool {
		i := slices.IndexFunc(r.store.all(), func(x stored) bool { return x.value == value })
		if i >= 0 {
			out = r.store.all()[i].headers
		}
		return i >= 0
	})
	return out
}

func (r *rig) mustHave(value string, want map[string]string) {
	r.t.Helper()
	h := r.headersOf(value)
	for k, v := range want {
		if got, ok := h[k]; got != v || ok != (v != "") {
			r.t.Errorf("%s: header %s is %q, want %q", value, k, got, v)
		}
	}
}

func cart(labels ...string) apifake.Pod {
	p := apifake.Pod{Namespace: "shop", Name: "cart-7d4b-x", UID: "9f1c", Node: "n1", Owner: [2]string{"ReplicaSet", "cart-7d4b"}, Labels: map[string]string{"pod-template-hash": "7d4b"},
		Annotations: map[string]string{"team": "blue", "other": "x"}, Container: "docker://" + strings.Repeat("ab", 32)}
	for i := 0; i < len(labels); i += 2 {
		p.Labels[labels[i]] = labels[i+1]
	}
	return p
}

const cartDir = "shop_cart-7d4b-x_9f1c/app"

func TestLabelsOfPods(t *testing.T) {
	t.Parallel()
	r, api := podsRig(t, "kubernetes: {API, labels: [app.*, tier], annotations: [team]}", "")
	api.Set(cart("app.kubernetes.io/name", "cart", "tier", "web"))
	r.podLog(cartDir, "one")
	r.start()
	r.mustHave("one", map[string]string{"namespace": "shop", "pod": "cart-7d4b-x", "pod_uid": "9f1c", "container": "app", "node": "n1", "workload_kind": "Deployment",
		"workload": "cart", "label.app.kubernetes.io/name": "cart", "label.tier": "web", "annotation.team": "blue", "annotation.other": "", "label.pod-template-hash": "", "site": "shop"})
	api.Set(cart("tier", "api")) // lines that are read from now on
	r.eventually("the change is known", func() bool {
		p := r.agent.list()[0].input.(*files).pods.Get(kubernetes.Ref{UID: "9f1c"})
		v, _ := p.Label("tier")
		return v == "api"
	})
	r.podLog(cartDir, "two")
	r.mustHave("two", map[string]string{"label.tier": "api", "label.app.kubernetes.io/name": ""})
	api.Delete("shop", "cart-7d4b-x") // its files are read to their end
	r.podLog(cartDir, "three")
	r.mustHave("three", map[string]string{"label.tier": "api"})
	if a := r.account(); a.UnlabelledLines != 0 {
		t.Errorf("account %+v", a)
	}
	api.Forget(true)
	api.Cut()
	r.eventually("the metrics move", func() bool {
		m := gathered(t, r.agent)
		return m["kubernetes_pods"] == 1 && m["kubernetes_watching"] == 1 && m["kubernetes_lists_total"] >= 2 && m["kubernetes_watches_total"] >= 3 &&
			m["kubernetes_gone_total"] >= 1 && m["kubernetes_failures_total"] >= 1
	})
}

// Labels choose the topic, and become fields, as what the path tells does.
func TestLabelsInExpressions(t *testing.T) {
	t.Parallel()
	r, api := podsRig(t, "json: true, kubernetes: {API, workload: false}",
		"process:\n  - set: {team: 'headers[\"label.team\"]', where: 'headers.namespace'}\n")
	r.yaml = strings.Replace(r.yaml, "partitions: 1}", "partitions: 1, name_from: '\"logs-\" + headers[\"label.team\"]'}", 1)
	api.Set(cart("team", "blue"))
	r.podLog(cartDir, `{"n":1}`)
	r.start()
	r.wants(`{"n":1,"site":"shop","team":"blue","where":"shop"}`)
	if x := r.store.all()[0]; x.topic != "logs-blue" || x.headers["workload"] != "" || x.headers["label.team"] != "blue" {
		t.Errorf("%+v", x)
	}
}

// Lines of a pod that is not known wait, and go on by themselves when it is, or when the time is over.
func TestLinesOfPodsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	r, api := podsRig(t, "kubernetes: {API, wait: 1h}", "")
	r.podLog(cartDir, "one")
	r.podLog("shop_other_77/app", "other")
	r.start()
	r.eventually("the files are followed", func() bool { return r.account().FilesFollowed == 2 })
	r.eventually("it is explained", func() bool {
		e, err := r.agent.Explain(r.path("pods/" + cartDir + "/0.log"))
		return err == nil && strings.Contains(fmt.Sprint(e.Inputs[0].Waits), "the API server to tell of pod shop/cart-7d4b-x, until ")
	})
	if r.store.count() != 0 {
		t.Errorf("stored %q", r.store.values())
	}
	api.Set(cart("tier", "web"))
	r.mustHave("one", map[string]string{"label.tier": "web"})
	r.halt()

	r.yaml = strings.Replace(r.yaml, "wait: 1h", "wait: 100ms", 1)
	r.start()
	r.mustHave("other", map[string]string{"namespace": "shop", "pod": "other", "node": ""})
	if a := r.account(); a.UnlabelledLines != 1 || a.Acked.Lines != 1 {
		t.Errorf("account %+v", a)
	}
	if m := gathered(t, r.agent); m["unlabelled_lines_total"] != 1 {
		t.Errorf("metrics: %v", m["unlabelled_lines_total"])
	}
	api.Set(apifake.Pod{Namespace: "shop", Name: "other", UID: "77", Node: "n1", Labels: map[string]string{"late": "yes"}})
	r.eventually("it is known at last", func() bool {
		return r.agent.list()[0].input.(*files).pods.Get(kubernetes.Ref{UID: "77"}) != nil
	})
	r.podLog("shop_other_77/app", "later")
	r.mustHave("later", map[string]string{"label.late": "yes"})
}

// An API server that is down neither stops nor loses lines, unless that is asked for, and its return is noticed.
func TestAPIServerIsDown(t *testing.T) {
	t.Parallel()
	for _, hold := range []bool{false, true} {
		settings := "kubernetes: {API, wait: 50ms}"
		if hold {
			settings = "kubernetes: {API, on_unknown: hold}"
		}
		r, api := podsRig(t, settings, "")
		api.Refuse(http.StatusServiceUnavailable)
		api.Set(cart("tier", "web"))
		r.podLog(cartDir, "one")
		r.start()
		r.eventually("it is said", func() bool { return strings.Contains(r.log.String(), "503 Service Unavailable") })
		if err := r.agent.Ready(); !hold && err != nil {
			r.eventually("ready without it", func() bool { return r.agent.Ready() == nil })
		}
		if hold {
			r.eventually("it waits", func() bool {
				e, err := r.agent.Explain(r.path("pods/" + cartDir + "/0.log"))
				return err == nil && strings.Contains(fmt.Sprint(e.Inputs[0].Waits), "without limit") && strings.Contains(fmt.Sprint(e.Inputs[0].Waits), "503")
			})
			r.remove("pods/" + cartDir + "/0.log") // it is held, and nothing of it is lost
			r.steady("nothing is sent", 500*time.Millisecond, func() bool { return r.store.count() == 0 })
		} else {
			r.mustHave("one", map[string]string{"label.tier": "", "namespace": "shop"})
		}
		api.Refuse(0)
		if hold {
			r.mustHave("one", map[string]string{"label.tier": "web"})
		} else {
			r.eventually("it tells again", func() bool { return r.agent.list()[0].input.(*files).pods.Trouble() == nil })
			r.podLog(cartDir, "two")
			r.mustHave("two", map[string]string{"label.tier": "web"})
		}
		r.halt()
	}
}

// Files of pods that a selector does not choose are not read, from when that is known, and are when the labels change.
func TestSelectedPods(t *testing.T) {
	t.Parallel()
	r, api := podsRig(t, "namespaces: {exclude: [kube-*]}, kubernetes: {API, wait: 1h, selector: 'tier in (web, api),!canary'}", "")
	pod := func(ns, name, uid string, labels map[string]string) {
		api.Set(apifake.Pod{Namespace: ns, Name: name, UID: uid, Node: "n1", Labels: labels})
	}
	pod("shop", "a", "1", map[string]string{"tier": "web"})
	pod("shop", "b", "2", map[string]string{"tier": "db"})
	pod("shop", "c", "3", map[string]string{"tier": "api", "canary": "yes"})
	pod("kube-system", "d", "4", map[string]string{"tier": "web"})
	for _, dir := range []string{"shop_a_1/c", "shop_b_2/c", "shop_c_3/c", "kube-system_d_4/c", "shop_e_5/c"} {
		r.podLog(dir, dir)
	}
	r.start()
	r.wants("shop_a_1/c")
	r.eventually("only that of a and the one that is not known are followed", func() bool { return r.account().FilesFollowed == 2 && r.account().FilesOpen == 2 })
	pod("shop", "e", "5", nil)
	r.eventually("it is let go", func() bool { return r.account().FilesFollowed == 1 && r.account().FilesOpen == 1 })
	for name, why := range map[string]string{
		"shop_b_2": "the labels of its pod shop/b are not chosen (container.kubernetes.selector: tier in (web, api),!canary)", "kube-system_d_4": "its namespace kube-system is not chosen",
	} {
		e, err := r.agent.Explain(r.path("pods/" + name + "/c/0.log"))
		if err != nil || e.Inputs[0].Takes || !strings.Contains(e.Inputs[0].Why, why) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
	pod("shop", "c", "3", map[string]string{"tier": "api"})
	r.wants("shop_a_1/c", "shop_c_3/c")
	pod("shop", "a", "1", map[string]string{"tier": "db"}) // while it is read
	r.eventually("it is let go too", func() bool { return r.account().FilesFollowed == 1 })
	r.podLog("shop_a_1/c", "left out")
	r.podLog("shop_c_3/c", "more")
	r.wants("shop_a_1/c", "shop_c_3/c", "more")
	if a := r.account(); a.Rotations != 0 {
		t.Errorf("files that are left out count as rotated: %+v", a)
	}
}

// Docker's own paths tell a container only: the API server tells whose it is.
func TestPodsOfDockersFiles(t *testing.T) {
	t.Parallel()
	r, api := podsRig(t, "namespaces: {include: [shop]}, kubernetes: {API, wait: 1h}", "")
	r.yaml = strings.Replace(r.yaml, "pods/*/*/*.log*", "containers/*/*.log", 1)
	id, other := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	for _, x := range []string{id, other} {
		if err := os.MkdirAll(r.path("containers/"+x), 0o700); err != nil {
			t.Fatal(err)
		}
		r.write("containers/"+x+"/"+x+"-json.log", dockerLine(t, 1, "stdout", x[:2]+"\n"))
	}
	r.start()
	api.Set(apifake.Pod{Namespace: "kube-system", Name: "dns", UID: "d", Node: "n1", Container: "docker://" + other})
	api.Set(cart("tier", "web"))
	r.mustHave("ab", map[string]string{"namespace": "shop", "pod": "cart-7d4b-x", "pod_uid": "9f1c", "label.tier": "web"})
	r.eventually("that of the other namespace is let go", func() bool { return r.account().FilesFollowed == 1 })
	r.wants("ab")
}

// Over a reload that changes what is asked, lines come once, those that waited too.
func TestReloadOfPods(t *testing.T) {
	t.Parallel()
	r, api := podsRig(t, "kubernetes: {API, wait: 1h}", "")
	api.Set(cart("tier", "web"))
	r.podLog(cartDir, "one")
	r.podLog("shop_other_77/app", "other")
	r.start()
	r.mustHave("one", map[string]string{"label.tier": "web"})
	r.yaml = strings.Replace(r.yaml, "wait: 1h", "wait: 50ms, annotations: [team]", 1)
	if err := r.agent.Reload(r.pipes()); err != nil {
		t.Fatal(err)
	}
	r.store.mu.Lock()
	r.store.closed = false // it is that of the successor too
	r.store.mu.Unlock()
	r.store.letGo()
	r.eventually("it is asked again", func() bool { return r.agent.list()[0].input.(*files).pods.Trouble() == nil })
	r.podLog(cartDir, "two")
	r.mustHave("two", map[string]string{"annotation.team": "blue"})
	r.wants("one", "two", "other")
}
