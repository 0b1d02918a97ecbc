package kubelet

import (
	"errors"
	"fmt"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
)

type containerText struct {
	Name, Kind string
	CPUs       *float64
	Limit      *float64
}

type podCase struct {
	header
	Kind              string
	Machine           string
	Reserved, Default cpuset.Set
	Pod               *struct {
		CPUs  float64
		Limit *float64
	}
	Hint       *hintText
	Options    []string
	Containers []containerText
	Want       struct {
		Containers                        map[string]cpuset.Set
		Default                           *cpuset.Set
		Valid                             *bool
		CPUs                              *int
		Error                             string
		Requested, CPUsPerCore, Available int
	}
}

func (c *podCase) pod(nodes cpuset.Set) place.Pod {
	d := place.Pod{ID: "pod"}
	if c.Pod != nil {
		d.Milli, d.LimitMilli = milli(c.Pod.CPUs), milli(c.Pod.CPUs)
		if c.Pod.Limit != nil {
			d.LimitMilli = milli(*c.Pod.Limit)
		}
	}
	for _, text := range c.Containers {
		r := place.Request{ID: text.Name, Role: role(text.Kind), Nodes: nodes}
		if text.CPUs != nil {
			r.Milli, r.LimitMilli = milli(*text.CPUs), milli(*text.CPUs)
		}
		if text.Limit != nil {
			r.LimitMilli = milli(*text.Limit)
		}
		d.Containers = append(d.Containers, r)
	}
	return d
}

func TestPodCases(t *testing.T) {
	t.Parallel()
	suite(t, "kubelet-podscope", nil, func(t *testing.T, f *placetest.Folder, c *podCase) string {
		switch c.Kind {
		case "allocate":
			return c.allocate(t, topology(t, f, c.Machine))
		case "validate":
			d := pod(c.pod(cpuset.Set{}))
			if err := d.validate(); (err == nil) != *c.Want.Valid {
				return fmt.Sprintf("error %v, want valid: %v", err, *c.Want.Valid)
			}
			return ""
		case "demand":
			d := pod(c.pod(cpuset.Set{}))
			if got := d.demand(); got != *c.Want.CPUs {
				return fmt.Sprintf("demand %d, want %d", got, *c.Want.CPUs)
			}
			return ""
		}
		return "unknown kind " + c.Kind
	})
}

func (c *podCase) allocate(t *testing.T, topo *place.Topology) string {
	s := stateOf(t, topo, c.Reserved, c.Default, nil)
	var nodes cpuset.Set
	if c.Hint != nil {
		if h := c.Hint.hint(t, topo); !h.Any {
			nodes = (&task{t: topo}).ids(h.Nodes)
		}
	}
	p := withOptions(t, c.Options)
	p.TopologyManagerScope = ScopePod
	next, _, err := place.PlacePod(p, s, c.pod(nodes))
	var empty *place.RejectedError
	if c.Want.Error == "empty-pod-shared-pool" && errors.As(err, &empty) {
		return ""
	}
	w := allocateWant{Error: c.Want.Error, Requested: c.Want.Requested, CPUsPerCore: c.Want.CPUsPerCore, Available: c.Want.Available}
	if wrong := wrongError(err, &w); wrong != "" || err != nil {
		return wrong
	}
	if err := next.Audit(); err != nil {
		return err.Error()
	}
	for name, want := range c.Want.Containers {
		if got, _ := next.CPUs(name); got != want {
			return fmt.Sprintf("%s: got %s, want %s", name, got, want)
		}
	}
	if len(c.Want.Containers) == 0 {
		for g := range next.Grants() {
			if !g.Own.IsEmpty() {
				return fmt.Sprintf("%s: got %s for its own, want none", g.ID, g.Own)
			}
		}
	}
	if c.Want.Default != nil && next.Sharable() != *c.Want.Default {
		return fmt.Sprintf("default %s, want %s", next.Sharable(), c.Want.Default)
	}
	return released(p, s, next)
}

// released gives back all grants and compares with the start.
func released(p Policy, start, s *place.State) string {
	for s.Len() > 0 {
		for g := range s.Grants() {
			o, err := place.Release(p, s, g.ID)
			if err == nil {
				s, err = s.Commit(o)
			}
			if err != nil {
				return err.Error()
			}
			break
		}
	}
	return s.Difference(start)
}
