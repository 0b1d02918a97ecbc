package nri

import (
	"time"

	"github.com/containerd/nri/pkg/api"
)

// sandbox is one of a pod that the runtime has.
type sandbox struct {
	pod       *api.PodSandbox
	seen      bool      // its group has had processes, where this plugin can read it
	goneSince time.Time // when the group was first seen without any; zero if it has some
}

// addSandbox notes a sandbox of a pod, removeSandbox that it has stopped: the pod may have a new one by
// then.
func (t *table) addSandbox(pod *api.PodSandbox) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sandboxes[pod.GetId()]
	if s == nil {
		s = &sandbox{}
		t.sandboxes[pod.GetId()] = s
	}
	s.pod = pod
}

func (t *table) removeSandbox(pod *api.PodSandbox) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sandboxes, pod.GetId())
}

// allSandboxes are copies of the sandboxes.
func (t *table) allSandboxes() (all []sandbox) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.sandboxes {
		all = append(all, *s)
	}
	return all
}

// noteSandbox notes whether the group of a sandbox has processes, and returns for how long it has had none.
func (t *table) noteSandbox(id string, busy bool) (gone time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch s := t.sandboxes[id]; {
	case s == nil:
	case busy:
		s.seen, s.goneSince = true, time.Time{}
	case s.seen && s.goneSince.IsZero():
		s.goneSince = time.Now()
	case s.seen:
		gone = time.Since(s.goneSince)
	}
	return gone
}

// lives reports whether a pod has a sandbox; living is called with mu.
func (t *table) lives(uid string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.living(uid)
}

func (t *table) living(uid string) bool {
	for _, s := range t.sandboxes {
		if s.pod.GetUid() == uid {
			return true
		}
	}
	return false
}
