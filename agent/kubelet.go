package agent

import (
	"path/filepath"
	"strings"

	"github.com/sluice-io/sluice/agent/producer"
)

// Headers of containers' lines.
const (
	headerNamespace   = "namespace"
	headerPod         = "pod"
	headerPodUID      = "pod_uid"
	headerContainer   = "container"
	headerContainerID = "container_id"
)

// container is what the path of a container's file tells of it. Fields that it does not tell are empty.
type container struct{ namespace, pod, uid, name, id string }

// containerIDBytes is how long the ID of a container is.
const containerIDBytes = 64

// containerOf reads the path of a container's file, and then where that leads to when it is a symbolic link. The paths are those of the
// kubelet and of Docker:
//
//	/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log, a link to the next
//	/var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log
//	/var/lib/docker/containers/ID/ID-json.log
func containerOf(paths ...string) (c container) {
	for _, path := range paths {
		if path == "" {
			continue
		}
		c.merge(containerOfLink(path))
		c.merge(containerOfPod(path))
		c.merge(containerOfDocker(path))
	}
	return c
}

// merge fills in what is not known yet.
func (c *container) merge(d container) {
	for _, f := range []struct{ to, from *string }{
		{&c.namespace, &d.namespace}, {&c.pod, &d.pod}, {&c.uid, &d.uid}, {&c.name, &d.name}, {&c.id, &d.id},
	} {
		if *f.to == "" {
			*f.to = *f.from
		}
	}
}

func containerOfLink(path string) (c container) {
	base, ok := strings.CutSuffix(filepath.Base(path), ".log")
	parts := strings.Split(base, "_")
	if !ok || len(parts) != 3 {
		return c
	}
	i := strings.LastIndexByte(parts[2], '-')
	if i <= 0 || !isContainerID(parts[2][i+1:]) {
		return c
	}
	return container{pod: parts[0], namespace: parts[1], name: parts[2][:i], id: parts[2][i+1:]}
}

func containerOfPod(path string) (c container) {
	dir := filepath.Dir(path)
	parts := strings.Split(filepath.Base(filepath.Dir(dir)), "_")
	if len(parts) != 3 || filepath.Base(filepath.Dir(filepath.Dir(dir))) != "pods" {
		return c
	}
	return container{namespace: parts[0], pod: parts[1], uid: parts[2], name: filepath.Base(dir)}
}

func containerOfDocker(path string) (c container) {
	id, ok := strings.CutSuffix(filepath.Base(path), "-json.log")
	if !ok || !isContainerID(id) {
		return c
	}
	return container{id: id}
}

func isContainerID(s string) bool {
	return len(s) == containerIDBytes && strings.Trim(s, "0123456789abcdef") == ""
}

// headers are what is known, for records.
func (c container) headers() (h []producer.Header) {
	for _, f := range []struct{ key, value string }{
		{headerNamespace, c.namespace}, {headerPod, c.pod}, {headerPodUID, c.uid}, {headerContainer, c.name}, {headerContainerID, c.id},
	} {
		if f.value != "" {
			h = append(h, header(f.key, f.value))
		}
	}
	return h
}
