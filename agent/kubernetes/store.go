package kubernetes

import (
	"slices"
	"time"
)

// store is what is known of the pods. It decides only: it reads no clock and asks nobody. Not safe for concurrent use.
type store struct {
	podsMax     int
	keep        time.Duration
	annotations func(key string) bool

	pods    map[string]*kept  // by identity
	names   map[string]string // identity of the pod that has a namespace and a name, the latest
	aliases map[string]string // identity of the pod that has another one
	refused int64             // pods that were not taken in because there were too many
	live    int               // pods that are not deleted
}

// kept is a pod that is remembered.
type kept struct {
	pod     *Pod
	aliases []string
	deleted time.Time // zero: it is there
}

func newStore(cfg Config) *store {
	return &store{podsMax: cfg.PodsMax, keep: cfg.Keep, annotations: cfg.Annotations, pods: map[string]*kept{}, names: map[string]string{}, aliases: map[string]string{}}
}

// set takes in a pod as it is now, and says whether something of it is new.
func (s *store) set(o *object, now time.Time) bool {
	p, aliases := podOf(o, s.annotations), aliasesOf(o)
	k := s.pods[p.UID]
	switch {
	case p.UID == "":
		return false
	case k == nil && !s.makeRoom(now):
		s.refused++
		return false
	case k == nil:
		k = &kept{deleted: now}
		s.pods[p.UID] = k
	}
	back := !k.deleted.IsZero()
	if back {
		k.deleted = time.Time{}
		s.live++
	}
	changed := k.pod == nil || !k.pod.equal(p)
	if changed {
		k.pod = p
	}
	for _, a := range k.aliases {
		delete(s.aliases, a)
	}
	changed = changed || !slices.Equal(aliases, k.aliases)
	k.aliases = aliases
	for _, a := range aliases {
		s.aliases[a] = p.UID
	}
	s.names[nameOf(p.Namespace, p.Name)] = p.UID
	return changed || back
}

func nameOf(namespace, name string) string { return namespace + "/" + name }

// remove notes that a pod is gone.
func (s *store) remove(uid string, now time.Time) {
	if k := s.pods[uid]; k != nil && k.deleted.IsZero() {
		k.deleted = now
		s.live--
	}
}

// removeOthers notes that all pods are gone but these.
func (s *store) removeOthers(there map[string]bool, now time.Time) {
	for uid := range s.pods {
		if !there[uid] {
			s.remove(uid, now)
		}
	}
}

// expire forgets the pods that have been gone for long.
func (s *store) expire(now time.Time) {
	for uid, k := range s.pods {
		if !k.deleted.IsZero() && now.Sub(k.deleted) >= s.keep {
			s.forget(uid)
		}
	}
}

// makeRoom sees to it that another pod may be taken in: one that is gone makes room for one that is there.
func (s *store) makeRoom(now time.Time) bool {
	if len(s.pods) < s.podsMax {
		return true
	}
	s.expire(now)
	for len(s.pods) >= s.podsMax && len(s.pods) > s.live {
		oldest := ""
		for uid, k := range s.pods {
			if !k.deleted.IsZero() && (oldest == "" || k.deleted.Before(s.pods[oldest].deleted)) {
				oldest = uid
			}
		}
		s.forget(oldest)
	}
	return len(s.pods) < s.podsMax
}

func (s *store) forget(uid string) {
	k := s.pods[uid]
	delete(s.pods, uid)
	for _, a := range k.aliases {
		if s.aliases[a] == uid {
			delete(s.aliases, a)
		}
	}
	if name := nameOf(k.pod.Namespace, k.pod.Name); s.names[name] == uid {
		delete(s.names, name)
	}
}

// get finds a pod; nil when it is not known.
func (s *store) get(ref Ref) *Pod {
	uid := ref.UID
	if s.pods[uid] == nil {
		uid = s.aliases[ref.UID]
	}
	if uid == "" && ref.UID == "" && ref.Name != "" { // with another identity it would be an earlier pod of the same name, or a later one
		uid = s.names[nameOf(ref.Namespace, ref.Name)]
	}
	if uid == "" && ref.UID == "" && ref.Name == "" {
		uid = s.aliases[ref.ContainerID]
	}
	if k := s.pods[uid]; k != nil {
		return k.pod
	}
	return nil
}
