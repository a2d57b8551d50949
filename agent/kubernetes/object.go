package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// object is what is read of a pod.
type object struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Containers     []containerStatus `json:"containerStatuses"`
		InitContainers []containerStatus `json:"initContainerStatuses"`
		Ephemeral      []containerStatus `json:"ephemeralContainerStatuses"`
	} `json:"status"`
}

type metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	UID             string            `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	Owners          []owner           `json:"ownerReferences"`
}

type owner struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Controller bool   `json:"controller"`
}

type containerStatus struct {
	ContainerID string `json:"containerID"` // RUNTIME://ID
}

// failure is a Status: what the API server says when it does not do what it is asked.
type failure struct {
	Code       int    `json:"code"`
	Reason     string `json:"reason"`
	Message    string `json:"message"`
	retryAfter time.Duration
}

// Error implements error.
func (f *failure) Error() string {
	text := fmt.Sprintf("the API server answers %d %s: %s", f.Code, cmp.Or(f.Reason, "without a reason"), f.Message)
	switch f.Code {
	case codeUnauthorized:
		return text + "; it does not take the token (kubernetes.token_file)"
	case codeForbidden:
		return text + "; the service account needs the verbs list and watch on pods (deploy/kubernetes/agent.yaml has them)"
	}
	return text
}

const (
	codeUnauthorized = 401
	codeForbidden    = 403
	codeGone         = 410
)

// staticPodKey is the annotation by which the API server's picture of a static pod names the identity that the kubelet has for it, which is
// that in the paths of its logs.
const staticPodKey = "kubernetes.io/config.mirror"

// templateHashKey is the label that a deployment's pods have: the end of their replica set's name.
const templateHashKey = "pod-template-hash"

// Label is a label or an annotation.
type Label struct{ Key, Value string }

// Pod is what is known of a pod. It is never changed.
type Pod struct {
	UID, Namespace, Name, Node string
	// WorkloadKind and Workload are what made the pod: Deployment, StatefulSet, DaemonSet, Job and so on; "" for a pod that nothing made.
	WorkloadKind, Workload string
	Labels, Annotations    []Label // in order of key
}

// Label returns the value of a label.
func (p *Pod) Label(key string) (value string, ok bool) {
	i, ok := slices.BinarySearchFunc(p.Labels, key, func(l Label, key string) int { return cmp.Compare(l.Key, key) })
	if !ok {
		return "", false
	}
	return p.Labels[i].Value, true
}

func (p *Pod) equal(q *Pod) bool {
	a, b := *p, *q
	a.Labels, a.Annotations, b.Labels, b.Annotations = nil, nil, nil, nil
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name && a.Node == b.Node && a.WorkloadKind == b.WorkloadKind && a.Workload == b.Workload &&
		slices.Equal(p.Labels, q.Labels) && slices.Equal(p.Annotations, q.Annotations)
}

// podOf takes what is kept of an object.
func podOf(o *object, annotations func(key string) bool) *Pod {
	m := &o.Metadata
	p := &Pod{UID: m.UID, Namespace: m.Namespace, Name: m.Name, Node: o.Spec.NodeName}
	p.WorkloadKind, p.Workload = workloadOf(m)
	room := podBytesMax
	p.Labels = labelsOf(m.Labels, &room, func(string) bool { return true })
	if annotations != nil {
		p.Annotations = labelsOf(m.Annotations, &room, annotations)
	}
	return p
}

// podBytesMax bounds what is kept of a pod's labels and annotations; those that come first by key are.
const podBytesMax = 64 << 10

func labelsOf(from map[string]string, room *int, wanted func(key string) bool) (out []Label) {
	for _, key := range slices.Sorted(maps.Keys(from)) {
		if value := from[key]; wanted(key) && len(key)+len(value) <= *room {
			*room -= len(key) + len(value)
			out = append(out, Label{strings.Clone(key), strings.Clone(value)})
		}
	}
	return out
}

// workloadOf is what made a pod. A replica set that a deployment made has the deployment's name and the hash of its pods' template.
func workloadOf(m *metadata) (kind, name string) {
	i := slices.IndexFunc(m.Owners, func(o owner) bool { return o.Controller && o.Kind != "Node" })
	if i < 0 {
		return "", ""
	}
	o := m.Owners[i]
	if hash := m.Labels[templateHashKey]; o.Kind == "ReplicaSet" && hash != "" {
		if deployment, ok := strings.CutSuffix(o.Name, "-"+hash); ok {
			return "Deployment", deployment
		}
	}
	return o.Kind, o.Name
}

// aliasesOf are other identities by which a pod's files may name it: that of a static pod, and those of its containers.
func aliasesOf(o *object) (out []string) {
	if hash := o.Metadata.Annotations[staticPodKey]; hash != "" {
		out = append(out, hash)
	}
	for _, list := range [][]containerStatus{o.Status.Containers, o.Status.InitContainers, o.Status.Ephemeral} {
		for _, c := range list {
			if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && len(out) < aliasesMax {
				out = append(out, strings.Clone(id))
			}
		}
	}
	return out
}

// aliasesMax bounds the aliases of a pod.
const aliasesMax = 100
