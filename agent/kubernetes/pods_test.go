package kubernetes

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/kubernetes/apifake"
	"github.com/sluice-io/sluice/internal/testenv"
)

// patience bounds what a test waits for.
const patience = 20 * time.Second

// rig is a Pods that watches a fake API server.
type rig struct {
	t       *testing.T
	server  *apifake.Server
	pods    *Pods
	cfg     Config
	log     testenv.Buffer
	changed chan struct{}
}

func newRig(t *testing.T, secure bool) *rig {
	t.Helper()
	r := &rig{t: t, server: apifake.New(secure), changed: make(chan struct{}, 1)}
	t.Cleanup(r.server.Close)
	r.cfg = Config{URL: r.server.URL, Node: "n1", Keep: time.Hour, BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond}
	return r
}

func (r *rig) watch() {
	r.t.Helper()
	r.pods = New(slog.New(slog.NewTextHandler(&r.log, nil)), r.cfg)
	r.t.Cleanup(r.pods.Join(func() {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}))
}

func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(2*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			r.t.Fatalf("not in %s: %s; %+v, %v\n%s", patience, what, r.pods.Stats(), r.pods.Trouble(), r.log.String())
		case <-tick.C:
		}
	}
}

func (r *rig) knows(uid string) bool { return r.pods.Get(Ref{UID: uid}) != nil }

// label is that of a pod; "" when either is not there.
func (r *rig) label(uid, key string) string {
	if p := r.pods.Get(Ref{UID: uid}); p != nil {
		v, _ := p.Label(key)
		return v
	}
	return ""
}

func pod(i int) apifake.Pod {
	return apifake.Pod{Namespace: "shop", Name: fmt.Sprintf("cart-%d", i), UID: fmt.Sprintf("uid-%d", i), Node: "n1", Labels: map[string]string{"app": "cart", "n": fmt.Sprint(i)}}
}

func TestWhatIsKnownOfAPod(t *testing.T) {
	r := newRig(t, false)
	r.cfg.Annotations = func(key string) bool { return key == "team" }
	cart := apifake.Pod{Namespace: "shop", Name: "cart-7d4b-x2", UID: "u1", Node: "n1", Owner: [2]string{"ReplicaSet", "cart-7d4b"}, Container: "containerd://c1",
		Labels: map[string]string{"app.kubernetes.io/name": "cart", templateHashKey: "7d4b"}, Annotations: map[string]string{"team": "a", "other": "b"}}
	r.server.Set(cart)
	r.server.Set(apifake.Pod{Namespace: "db", Name: "db-0", UID: "u2", Node: "n1", Owner: [2]string{"StatefulSet", "db"}})
	r.server.Set(apifake.Pod{Namespace: "kube-system", Name: "proxy-n1", UID: "u3", Node: "n1", Owner: [2]string{"Node", "n1"}, Annotations: map[string]string{staticPodKey: "hash"}})
	r.server.Set(apifake.Pod{Namespace: "shop", Name: "elsewhere", UID: "u4", Node: "n2"})
	r.watch()
	r.eventually("the pods of the node are known", func() bool { return r.knows("u3") })
	p := r.pods.Get(Ref{UID: "u1"})
	if p.WorkloadKind != "Deployment" || p.Workload != "cart" || p.Node != "n1" || p.Namespace != "shop" || p.Name != cart.Name ||
		!slices.Equal(p.Annotations, []Label{{"team", "a"}}) || r.label("u1", "app.kubernetes.io/name") != "cart" {
		t.Errorf("%+v", p)
	}
	if p := r.pods.Get(Ref{Namespace: "db", Name: "db-0"}); p == nil || p.WorkloadKind != "StatefulSet" || p.Workload != "db" {
		t.Errorf("by its name: %+v", p)
	}
	if p := r.pods.Get(Ref{UID: "hash", Namespace: "kube-system", Name: "proxy-n1"}); p == nil || p.UID != "u3" || p.Workload != "" {
		t.Errorf("a static pod by the kubelet's identity: %+v", p)
	}
	if p := r.pods.Get(Ref{ContainerID: "c1"}); p == nil || p.UID != "u1" {
		t.Errorf("by its container: %+v", p)
	}
	for _, ref := range []Ref{{UID: "u4"}, {UID: "earlier", Namespace: "db", Name: "db-0"}, {}, {ContainerID: "c2"}} {
		if p := r.pods.Get(ref); p != nil {
			t.Errorf("%+v: %+v", ref, p)
		}
	}
	cart.Container, cart.Labels = "containerd://c2", map[string]string{"app": "renamed"}
	r.server.Set(cart)
	r.eventually("changes are told", func() bool { return r.label("u1", "app") == "renamed" && r.pods.Get(Ref{ContainerID: "c2"}) != nil })
	if p := r.pods.Get(Ref{ContainerID: "c1"}); p != nil {
		t.Errorf("by a container that it no longer has: %+v", p)
	}
}

// Requests are what the protocol wants: one node, a cheap list first, bookmarks, and a watch that goes on where it was.
func TestRequests(t *testing.T) {
	r := newRig(t, false)
	r.server.Set(pod(1))
	r.watch()
	r.eventually("it is known", func() bool { return r.knows("uid-1") && r.pods.Trouble() == nil })
	r.server.Bookmark()
	r.server.Set(pod(2))
	r.eventually("the second", func() bool { return r.knows("uid-2") })
	r.server.Cut()
	r.server.Set(pod(3))
	r.eventually("the third, after a cut", func() bool { return r.knows("uid-3") })
	requests := r.server.Requests()
	for i, want := range []string{"limit=250&resourceVersion=0", "allowWatchBookmarks=true&.*resourceVersion=1001&timeoutSeconds=[0-9]+&watch=1", "resourceVersion=1003&"} {
		if i >= len(requests) || !strings.Contains(requests[i], "fieldSelector=spec.nodeName%3Dn1") || !matches(want, requests[i]) {
			t.Errorf("request %d of %q, want %s", i, requests, want)
		}
	}
	if s := r.pods.Stats(); s.Lists != 1 || s.Gone != 0 || s.Live != 3 || !s.Watching {
		t.Errorf("%+v", s)
	}
}

func TestPagesOfAList(t *testing.T) {
	r := newRig(t, false)
	for i := range 25 {
		r.server.Set(pod(i))
	}
	r.server.Page(10)
	r.watch()
	r.eventually("all pages", func() bool { return r.pods.Stats().Live == 25 && r.pods.Trouble() == nil })
	if n := strings.Count(strings.Join(r.server.Requests(), "\n"), "continue="); n != 2 {
		t.Errorf("%d more pages: %q", n, r.server.Requests())
	}
}

// 410 as a status and as an event: the pods are listed anew, and what went meanwhile is noticed.
func TestGone(t *testing.T) {
	for _, asEvent := range []bool{false, true} {
		r := newRig(t, false)
		r.server.Set(pod(1))
		r.server.Set(pod(2))
		r.watch()
		r.eventually("they are known", func() bool { return r.pods.Stats().Live == 2 && r.pods.Trouble() == nil })
		r.server.Stall() // while this is away, all changes and the history is forgotten
		r.server.Cut()
		r.server.Delete("shop", "cart-1")
		r.server.Set(pod(3))
		r.server.Forget(asEvent)
		r.server.Resume()
		r.eventually("all is as it is", func() bool { s := r.pods.Stats(); return s.Live == 2 && r.knows("uid-3") && s.Gone >= 1 })
		if !r.knows("uid-1") {
			t.Error("the pod that went is not remembered")
		}
		if got := r.server.Requests(); !slices.ContainsFunc(got, func(q string) bool { return !strings.Contains(q, "watch") && !strings.Contains(q, "resourceVersion") }) {
			t.Errorf("the second list may come from a cache: %q", got)
		}
	}
}

// The next page of a list is gone: it begins anew.
func TestGoneWithinAList(t *testing.T) {
	r := newRig(t, false)
	for i := range 25 {
		r.server.Set(pod(i))
	}
	r.server.Page(10)
	r.cfg.BackoffMin = time.Millisecond
	forgot := sync.OnceFunc(func() { r.server.Forget(false) })
	proxy := passing(t, r.server.URL, func(req *http.Request) {
		if req.URL.Query().Has("continue") {
			forgot()
		}
	})
	r.cfg.URL = proxy
	r.watch()
	r.eventually("all", func() bool { return r.pods.Stats().Live == 25 && r.pods.Trouble() == nil })
	if s := r.pods.Stats(); s.Lists < 2 || s.Failures < 1 {
		t.Errorf("%+v", s)
	}
}

// A renewed token, a certificate of its own, a server that is slow, down, or refuses.
func TestTroubles(t *testing.T) {
	r := newRig(t, true)
	dir := t.TempDir()
	r.cfg.TokenFile, r.cfg.CAFile = filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	r.cfg.RequestTimeout = 300 * time.Millisecond
	write := func(path string, text []byte) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	says := func(what string) {
		t.Helper()
		r.eventually("it says "+what, func() bool { err := r.pods.Trouble(); return err != nil && strings.Contains(err.Error(), what) })
	}
	fine := func(i int) {
		t.Helper()
		r.server.Set(pod(i))
		r.eventually("all is well", func() bool { return r.knows(fmt.Sprintf("uid-%d", i)) && r.pods.Trouble() == nil })
	}
	r.server.Require("first")
	r.watch()
	says("ca_file")
	write(r.cfg.CAFile, []byte("no certificate"))
	says("holds no certificate")
	write(r.cfg.CAFile, r.server.Certificate())
	says("token_file")
	write(r.cfg.TokenFile, []byte("first\n"))
	fine(1)

	r.server.Require("second")
	r.server.Cut()
	says("401 Unauthorized")
	write(r.cfg.TokenFile, []byte("second"))
	fine(2)

	r.server.Refuse(http.StatusForbidden)
	r.server.Cut()
	says("list and watch on pods")
	if !r.knows("uid-1") {
		t.Error("what was known is forgotten while the server refuses")
	}
	r.server.Refuse(0)
	fine(3)

	r.server.Stall()
	r.server.Cut()
	says("imeout")
	r.server.Resume()
	fine(4)
	if n := strings.Count(r.log.String(), "401 Unauthorized"); n != 1 {
		t.Errorf("said %d times\n%s", n, r.log.String())
	}
}

// A bookmark moves the place from which a watch goes on, so that it is not gone though none of the node's pods changed.
func TestBookmark(t *testing.T) {
	r := newRig(t, false)
	r.server.Set(pod(1))
	r.watch()
	r.eventually("it is known", func() bool { return r.knows("uid-1") && r.pods.Trouble() == nil })
	r.server.Forget(false)
	r.server.Bookmark()
	r.server.Set(pod(2)) // behind the bookmark
	r.eventually("the second", func() bool { return r.knows("uid-2") })
	r.server.Cut()
	r.server.Set(pod(3))
	r.eventually("the third", func() bool { return r.knows("uid-3") })
	if s := r.pods.Stats(); s.Gone != 0 || s.Lists != 1 {
		t.Errorf("%+v", s)
	}
}

func TestPodsAreRememberedForAWhile(t *testing.T) {
	r := newRig(t, false)
	var now atomic.Int64
	begun := time.Now()
	r.cfg.Now = func() time.Time { return begun.Add(time.Duration(now.Load())) }
	r.cfg.Keep, r.cfg.PodsMax = time.Minute, 3
	r.server.Set(pod(1))
	r.watch()
	r.eventually("it is known", func() bool { return r.knows("uid-1") })
	r.server.Delete("shop", "cart-1")
	r.eventually("it is gone", func() bool { return r.pods.Stats().Live == 0 })
	if !r.knows("uid-1") {
		t.Error("it is not remembered")
	}
	again := pod(1)
	again.UID = "uid-1b" // of a stateful set: the same name
	r.server.Set(again)
	r.eventually("the second of the name", func() bool { return r.knows("uid-1b") })
	if p := r.pods.Get(Ref{Namespace: "shop", Name: "cart-1"}); p.UID != "uid-1b" || !r.knows("uid-1") {
		t.Errorf("by name: %+v", p)
	}
	r.server.Set(pod(2))
	r.eventually("the third", func() bool { return r.knows("uid-2") })
	r.server.Set(pod(3)) // one that is gone makes room
	r.eventually("the fourth", func() bool { return r.knows("uid-3") })
	if r.knows("uid-1") {
		t.Error("more pods are remembered than may be")
	}
	r.server.Set(pod(4))
	r.eventually("there is no room for a fifth", func() bool { return r.pods.Stats().Refused > 0 })
	r.server.Delete("shop", "cart-2")
	r.eventually("it is gone too", func() bool { return r.pods.Stats().Live == 2 })
	now.Store(int64(2 * time.Minute))
	r.server.Bookmark()
	r.eventually("it is forgotten", func() bool { return !r.knows("uid-2") })
}

func TestBoundsOfAPod(t *testing.T) {
	r := newRig(t, false)
	r.cfg.Annotations = func(string) bool { return true }
	big := pod(1)
	big.Annotations = map[string]string{"a": "small", "b": strings.Repeat("x", podBytesMax), "c": "small too"}
	r.server.Set(big)
	r.watch()
	r.eventually("it is known", func() bool { return r.knows("uid-1") })
	if p := r.pods.Get(Ref{UID: "uid-1"}); !slices.Equal(p.Annotations, []Label{{"a", "small"}, {"c", "small too"}}) {
		t.Errorf("%d annotations", len(p.Annotations))
	}
	in := &metered{r: strings.NewReader(strings.Repeat("x", 100)), left: 10}
	if text, err := io.ReadAll(in); len(text) != 10 || err == nil {
		t.Errorf("%d bytes of an event without end, %v", len(text), err)
	}
}

// Whoever leaves last ends the watch, and who joins again has what was known.
func TestJoinAndLeave(t *testing.T) {
	r := newRig(t, false)
	r.server.Set(pod(1))
	r.pods = New(slog.New(slog.DiscardHandler), r.cfg)
	leave := r.pods.Join(func() {})
	other := r.pods.Join(func() {})
	r.eventually("it is known", func() bool { return r.knows("uid-1") && r.pods.Trouble() == nil })
	leave()
	leave() // once is enough
	r.server.Set(pod(2))
	r.eventually("the other still watches", func() bool { return r.knows("uid-2") })
	other()
	if r.pods.Trouble() == nil {
		t.Error("nobody watches, and all is well")
	}
	defer r.pods.Join(func() {})()
	if !r.knows("uid-1") {
		t.Error("what was known is forgotten")
	}
	r.eventually("it is watched again", func() bool { return r.pods.Trouble() == nil })
}

// Whatever happens on the way, in the end the pods are those of the server.
func TestRandomTroubles(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newRig(t, false)
	r.cfg.Keep, r.cfg.RequestTimeout = time.Nanosecond, 200*time.Millisecond
	r.server.Page(7)
	r.watch()
	there := map[string]string{}
	for step := range 1500 {
		i := rng.IntN(40)
		p := pod(i)
		switch k := rng.IntN(100); {
		case k < 60:
			p.Labels["step"] = fmt.Sprint(step)
			there[p.UID] = p.Labels["step"]
			r.server.Set(p)
		case k < 85:
			delete(there, p.UID)
			r.server.Delete(p.Namespace, p.Name)
		case k < 88:
			r.server.Cut()
		case k < 90:
			r.server.Forget(rng.IntN(2) == 0)
		case k < 94:
			r.server.Bookmark()
		case k < 96:
			r.server.Refuse([]int{0, 500, 429, 401}[rng.IntN(4)])
		default:
			r.server.Refuse(0)
		}
	}
	r.server.Refuse(0)
	r.eventually("the pods are those of the server", func() bool {
		if r.pods.Stats().Live != len(there) {
			return false
		}
		for uid, step := range there {
			if r.label(uid, "step") != step {
				return false
			}
		}
		return true
	})
}

func TestInCluster(t *testing.T) {
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "NODE_NAME": "n7"}
	get := func(name string) string { return env[name] }
	c, err := Config{}.resolved(get)
	if err != nil || c.URL != "https://[fd00::1]:443" || c.Node != "n7" || c.TokenFile != serviceAccountDir+"/token" || c.CAFile != serviceAccountDir+"/ca.crt" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := (Config{URL: "http://127.0.0.1:8001", Node: "n"}).resolved(get); err != nil || c.TokenFile != "" || c.CAFile != "" || c.Node != "n" {
		t.Errorf("%+v, %v", c, err)
	}
	delete(env, "KUBERNETES_SERVICE_PORT")
	if _, err := (Config{}).resolved(get); err == nil || !strings.Contains(err.Error(), "kubernetes.url") {
		t.Errorf("outside of a cluster: %v", err)
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{min: 3 * time.Second, max: 30 * time.Second}
	for _, want := range []time.Duration{3, 6, 12, 24, 30, 30} {
		want *= time.Second
		if got := b.next(nil); got < want*2/3 || got > want*4/3+1 {
			t.Errorf("a pause of %s around %s", got, want)
		}
	}
	if got := b.next(&failure{Code: 429, retryAfter: time.Minute}); got != time.Minute {
		t.Errorf("%s, though the server asks for a minute", got)
	}
	b.reset()
	if got := b.next(nil); got > 4*time.Second+1 {
		t.Errorf("%s after a reset", got)
	}
}
