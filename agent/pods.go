package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/sluice-io/sluice/agent/kubernetes"
	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

// Headers of containers' lines that the API server tells.
const (
	headerNode         = "node"
	headerWorkloadKind = "workload_kind"
	headerWorkload     = "workload"
	headerLabel        = "label."      // and the label's key
	headerAnnotation   = "annotation." // and the annotation's key
)

// podWatches are the watches of pods that an agent has: pipelines that want the same share one.
type podWatches struct {
	log *slog.Logger
	cfg kubernetes.Config // what no pipeline says

	mu   sync.Mutex
	pods map[string]*kubernetes.Pods // guarded by mu: by what they watch
}

func newPodWatches(log *slog.Logger, cfg kubernetes.Config) *podWatches {
	return &podWatches{log: log, cfg: cfg, pods: map[string]*kubernetes.Pods{}}
}

// of returns the watch that a pipeline wants. Those that nobody has any more are let go.
func (w *podWatches) of(k *pipelines.Kubernetes) *kubernetes.Pods {
	key := fmt.Sprintf("%q", []any{k.URL, k.TokenFile, k.CAFile, k.Node, k.Annotations, k.Keep.String(), fmt.Sprint(k.PodsMax)})
	w.mu.Lock()
	defer w.mu.Unlock()
	for other, p := range w.pods {
		if other != key && p.Left() {
			delete(w.pods, other)
		}
	}
	if w.pods[key] == nil {
		cfg := w.cfg
		cfg.URL, cfg.TokenFile, cfg.CAFile, cfg.Node, cfg.Keep, cfg.PodsMax = k.URL, k.TokenFile, k.CAFile, k.Node, k.Keep, k.PodsMax
		if len(k.Annotations) > 0 {
			cfg.Annotations = func(key string) bool { return pipelines.MatchesAny(k.Annotations, key) }
		}
		w.pods[key] = kubernetes.New(w.log, cfg)
	}
	return w.pods[key]
}

// pods is what a file input makes of the pods that the API server tells of. A nil one is of an input that does not ask. It belongs to the
// runner's loop, but for what says otherwise.
type pods struct {
	*kubernetes.Pods
	settings   *pipelines.Kubernetes
	namespaces *pipelines.NamespaceFilter
	seen       uint64           // changes that were looked at
	waiting    map[*source]bool // sources whose pod is not known yet
}

func newPods(in *pipelines.FileInput, watches *podWatches) *pods {
	if in.Container == nil || in.Container.Kubernetes == nil {
		return nil
	}
	return &pods{Pods: watches.of(in.Container.Kubernetes), settings: in.Container.Kubernetes, namespaces: &in.Container.Namespaces, waiting: map[*source]bool{}}
}

// sourcePod is what is known of a source's pod.
type sourcePod struct {
	ref   kubernetes.Ref  // what the path tells
	pod   *kubernetes.Pod // the last that was told; nil while it is not known
	since time.Time       // when the lines began to wait for it; zero: they do not
	over  bool            // they have waited long enough
}

// ref is how the API server is asked for a container's pod.
func (c container) ref() kubernetes.Ref {
	return kubernetes.Ref{UID: c.uid, Namespace: c.namespace, Name: c.pod, ContainerID: c.id}
}

// podVerdict is what is to be done with the lines of a file as far as its pod goes.
type podVerdict int8

const (
	podTake  podVerdict = iota
	podWait             // it is not known yet
	podLeave            // it is not chosen
)

// mayRead says whether lines of a source may be read as far as its pod goes. One that has to wait is looked at when that is over.
func (r *files) mayRead(s *source, now time.Time) bool {
	p := r.pods
	if p == nil || s.pod.ref == (kubernetes.Ref{}) {
		return true
	}
	if pod := p.Get(s.pod.ref); pod != nil && pod != s.pod.pod {
		s.pod.since = time.Time{}
		r.label(s)
		r.heal(place{kind: "pod"}, "the API server tells of the pods again")
	}
	switch p.verdict(&s.pod, now) {
	case podLeave:
		delete(p.waiting, s)
		r.scanWanted = true // which lets go of it
		return false
	case podWait:
		p.waiting[s] = true
		if s.pod.since.IsZero() {
			s.pod.since = now
		}
		if p.settings.OnUnknown == pipelines.PodUnknownTake {
			r.timed.set(s, s.pod.since.Add(p.settings.Wait))
		}
		return false
	}
	delete(p.waiting, s)
	if s.pod.pod == nil && !s.pod.over {
		s.pod.over = true
		r.say(place{kind: "pod"}, "the API server has not told of a pod in time (container.kubernetes.wait); its lines go on without labels, counted",
			fmt.Errorf("pod %s of namespace %s: %w", cmp.Or(s.pod.ref.Name, s.pod.ref.UID, s.pod.ref.ContainerID), s.pod.ref.Namespace, cmp.Or(p.Trouble(), errNoSuchPod)))
	}
	return true
}

type podError string

// Error implements error.
func (e podError) Error() string { return string(e) }

// errNoSuchPod is why a pod is not known though the API server answers.
var errNoSuchPod error = podError("it tells of no such pod on this node")

// verdict says what is to be done with the lines of a source.
func (p *pods) verdict(x *sourcePod, now time.Time) podVerdict {
	switch {
	case x.pod != nil && !p.chooses(x.pod):
		return podLeave
	case x.pod != nil, x.over:
		return podTake
	case p.settings.OnUnknown == pipelines.PodUnknownTake && (p.settings.Wait == 0 || !x.since.IsZero() && now.Sub(x.since) >= p.settings.Wait):
		return podTake
	}
	return podWait
}

// chooses says whether a pod's files are wanted. It is safe for concurrent use.
func (p *pods) chooses(pod *kubernetes.Pod) bool {
	return p.namespaces.Takes(pod.Namespace) && (p.settings.Selector == nil || p.settings.Selector.Matches(pod.Label))
}

// waitsForPod says that a source waits for its pod to be known.
func (r *files) waitsForPod(s *source) bool { return r.pods != nil && r.pods.waiting[s] }

// leftOut says that a source's pod is known and not chosen.
func (r *files) leftOut(s *source) bool {
	if r.pods == nil {
		return false
	}
	pod := s.pod.pod
	if now := r.pods.Get(s.pod.ref); now != nil {
		pod = now
	}
	return pod != nil && !r.pods.chooses(pod)
}

// lookAtPods has those read on that waited for a change of the pods.
func (r *files) lookAtPods() {
	p := r.pods
	if p == nil || p.Changes() == p.seen {
		return
	}
	p.seen = p.Changes()
	for s := range p.waiting {
		r.enqueue(s)
	}
	if p.settings.Selector != nil || len(p.namespaces.Include)+len(p.namespaces.Exclude) > 0 {
		r.scanWanted = true
	}
}

// forgetPod is called when a source is followed no more.
func (r *files) forgetPod(s *source) {
	if r.pods != nil {
		delete(r.pods.waiting, s)
	}
}

// withoutLabels says that lines of a source go on without what the API server would have told.
func (r *files) withoutLabels(s *source) bool { return r.pods != nil && s.pod.over && s.pod.pod == nil }

// metaOf are the headers of a container's lines: what its path tells, and what the API server does.
func (r *files) metaOf(s *source) []producer.Header {
	c := containerOf(s.path, s.real)
	if r.pods == nil {
		return c.headers()
	}
	s.pod.ref = c.ref()
	if pod := r.pods.Get(s.pod.ref); pod != nil {
		s.pod.pod = pod
	}
	if s.pod.pod == nil {
		return c.headers()
	}
	return r.pods.headers(c, s.pod.pod)
}

// headers are what is known of a container and its pod.
func (p *pods) headers(c container, pod *kubernetes.Pod) []producer.Header {
	c.merge(container{namespace: pod.Namespace, pod: pod.Name, uid: pod.UID})
	h := c.headers()
	if pod.Node != "" {
		h = append(h, header(headerNode, pod.Node))
	}
	if p.settings.Workload && pod.Workload != "" {
		h = append(h, header(headerWorkloadKind, pod.WorkloadKind), header(headerWorkload, pod.Workload))
	}
	for _, l := range pod.Labels {
		if pipelines.MatchesAny(p.settings.Labels, l.Key) {
			h = append(h, header(headerLabel+l.Key, l.Value))
		}
	}
	for _, l := range pod.Annotations {
		h = append(h, header(headerAnnotation+l.Key, l.Value))
	}
	return h
}

// containerAt reads the path of a container's file, and where it leads to if that is needed to know.
func containerAt(path string, needed func(container) bool) container {
	c := containerOf(path)
	if needed(c) {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			c = containerOf(path, real)
		}
	}
	return c
}

// skipPods leaves out the files of namespaces and pods that are not chosen, on top of what skip leaves out. What it returns is safe for
// concurrent use.
func skipPods(in *pipelines.FileInput, p *pods, skip func(string, tail.Info) bool) func(string, tail.Info) bool {
	if in.Container == nil || p == nil && len(in.Container.Namespaces.Include)+len(in.Container.Namespaces.Exclude) == 0 {
		return skip
	}
	return func(path string, info tail.Info) bool {
		return skip != nil && skip(path, info) || whyLeftOut(in, p, path) != ""
	}
}

// whyLeftOut says why a file is not chosen by its namespace or its pod; "" when it is. A file whose pod is not known is.
func whyLeftOut(in *pipelines.FileInput, p *pods, path string) string {
	if in.Container == nil {
		return ""
	}
	namespaces := &in.Container.Namespaces
	c := containerAt(path, func(c container) bool { return c.namespace == "" || p != nil && c.uid == "" })
	var pod *kubernetes.Pod
	if p != nil {
		pod = p.Get(c.ref())
	}
	switch {
	case pod != nil && c.namespace == "":
		c.namespace = pod.Namespace
	case c.namespace == "" && p != nil && c.id != "": // the API server will tell
		return ""
	}
	switch {
	case !namespaces.Takes(c.namespace) && c.namespace == "":
		return "its path tells no namespace, and only files of some are chosen (container.namespaces)"
	case !namespaces.Takes(c.namespace):
		return fmt.Sprintf("its namespace %s is not chosen (container.namespaces)", c.namespace)
	case pod != nil && !p.chooses(pod):
		return fmt.Sprintf("the labels of its pod %s/%s are not chosen (container.kubernetes.selector: %s)", pod.Namespace, pod.Name, p.settings.Selector.Text)
	}
	return ""
}
