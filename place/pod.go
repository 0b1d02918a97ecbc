package place

import (
	"fmt"
	"slices"
)

// Pod is several workloads that are placed together or not at all.
type Pod struct {
	// ID is the group of the containers.
	ID string
	// Milli and LimitMilli are the pod's own request, in thousandths of a CPU;
	// 0 is none.
	Milli, LimitMilli int
	// Containers are in the order of their start. Their Group is ID.
	Containers []Request
}

// PodPlacer is a Policy that can place a pod as a whole.
type PodPlacer interface {
	// PodScope reports whether the policy does so, as it is configured.
	PodScope() bool
	// PlacePod returns the state with all containers placed. Errors are those of
	// Place; why explains them, if the containers' requests ask for it.
	PlacePod(s *State, pod Pod) (next *State, why *Why, err error)
}

// total is a request for what all containers of the pod ask for, at once.
func (p *Pod) total() *Request {
	all := Request{ID: p.ID, Group: p.ID}
	for i := range p.Containers {
		all.Milli += p.Containers[i].Milli
	}
	return &all
}

// PlacePod returns the state with all containers of a pod placed: as a whole by
// a PodPlacer with pod scope, else one after another. With an error nothing is
// placed; then why explains the refusal, if the containers' requests ask for it.
func PlacePod(p Policy, s *State, pod Pod) (next *State, why *Why, err error) {
	pod.Containers = slices.Clone(pod.Containers)
	for i := range pod.Containers {
		r := &pod.Containers[i]
		r.Group = pod.ID
		if err := s.mayPlace(r); err != nil {
			return nil, nil, fmt.Errorf("container %s: %w", r.ID, err)
		}
	}
	if placer, ok := p.(PodPlacer); ok && placer.PodScope() {
		next, why, err := placer.PlacePod(s, pod)
		if err != nil {
			err = s.Blame(pod.total(), err)
		}
		return next, why, err
	}
	for i := range pod.Containers {
		r := &pod.Containers[i]
		o, err := Place(p, s, r)
		if err == nil {
			s, err = s.Commit(o)
		}
		if err != nil {
			return nil, o.Why, fmt.Errorf("container %s: %w", r.ID, s.Blame(r, err))
		}
	}
	return s, nil, nil
}
