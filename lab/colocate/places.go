package colocate

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// Placed is where the services of a mode are, as the policy answered.
type Placed struct {
	Mode string `json:"mode"`
	// Services are in order; none where the policy refused one of them, for Refused.
	Services []Place `json:"services,omitempty"`
	Refused  string  `json:"refused,omitempty"`
}

// Place is where one service is.
type Place struct {
	CPUs cpuset.Set `json:"cpus"`          // that it may run on
	Idle cpuset.Set `json:"idle,omitzero"` // siblings that stay idle beside them
	Mems cpuset.Set `json:"mems,omitzero"` // memory nodes; empty is any
	Own  bool       `json:"own,omitempty"` // the CPUs are its own
}

// reserved are the CPUs that nobody else may use, idle siblings included.
func (p Placed) reserved() (all cpuset.Set) {
	for _, s := range p.Services {
		if s.Own {
			all = all.Union(s.CPUs).Union(s.Idle)
		}
	}
	return all
}

// idle are those of them that stay idle.
func (p Placed) idle() (all cpuset.Set) {
	for _, s := range p.Services {
		all = all.Union(s.Idle)
	}
	return all
}

// site is the CPUs that are given out, and the policy that does it.
type site struct {
	topology *place.Topology
	policy   place.Policy
	shared   cpuset.Set
}

func (s Spec) site(m *machine.Machine, shared cpuset.Set) (site, error) {
	policy, err := policies.New(s.Policy, s.Options)
	if err != nil {
		return site{}, err
	}
	t, err := place.NewTopology(m)
	return site{t, policy, shared}, err
}

// place asks the policy for the services of a mode, one after the other. There is no floor:
// whoever else is on the host stays where it is.
func (at site) place(m Mode, services, each int) (p Placed, err error) {
	p.Mode = m.Name
	state, err := place.Start(at.policy, at.topology, place.Config{Allowed: at.shared, NoFloor: true})
	if err != nil {
		return p, err
	}
	for n := range services {
		r := &place.Request{ID: name(n), Class: m.Class, Bind: m.Bind, Exclusivity: m.Exclusive}
		if m.owns() {
			r.Milli = 1000 * each
		}
		offer, err := place.Place(at.policy, state, r)
		next := state
		if err == nil {
			next, err = state.Commit(offer)
		}
		var refusal place.Refusal
		if errors.As(err, &refusal) {
			p.Refused = fmt.Sprintf("service %d of %d, with %d CPUs each: %v", n+1, services, each, state.Blame(r, err))
			return p, nil
		}
		if err != nil {
			return p, err
		}
		state = next
	}
	for n := range services {
		g, _ := state.Grant(name(n))
		p.Services = append(p.Services, Place{CPUs: state.Effective(g), Idle: g.Fence, Mems: g.Mems, Own: !g.Own.IsEmpty()})
	}
	return p, nil
}

// name is that of a service in a placement.
func name(n int) string { return fmt.Sprintf("s%02d", n+1) }

// placeAll places the services of all modes; ok says whether no mode was refused.
func (at site) placeAll(modes []Mode, services, each int) (all []Placed, ok bool, err error) {
	ok = true
	for _, m := range modes {
		p, err := at.place(m, services, each)
		if err != nil {
			return nil, false, fmt.Errorf("place %s: %w", m.Name, err)
		}
		all, ok = append(all, p), ok && p.Refused == ""
	}
	return all, ok, nil
}

// What was published: ten services with four CPUs each.
const publishedServices, publishedCPUs = 10, 4

// scale settles how many services there are with how many CPUs each, where the spec leaves
// that open, and says how it came to that. Of what the CPUs hold in all modes it takes, in
// this order: ten services with as many CPUs each as they hold, four at most and at least a
// core's threads, so that the modes differ; fewer services with a core's threads each;
// services with fewer CPUs. Where they hold no two services, there are two nevertheless, and
// the modes that refuse them are skipped.
func (s Spec) scale(at site) (all []Placed, services, each int, how string, err error) {
	threads, _ := at.topology.ThreadsPerCore()
	type size struct{ services, each int }
	var sizes []size
	threads = min(max(threads, 1), publishedCPUs)
	for each := publishedCPUs; each >= threads; each-- {
		sizes = append(sizes, size{publishedServices, each})
	}
	for each := threads; each >= 1; each-- {
		for n := publishedServices; n >= 2; n-- {
			sizes = append(sizes, size{n, each})
		}
	}
	for i := range sizes { // what is asked for stays
		if s.Services > 0 {
			sizes[i].services = s.Services
		}
		if s.CPUsEach > 0 {
			sizes[i].each = s.CPUsEach
		}
	}
	sizes = slices.Compact(sizes)
	for _, try := range sizes {
		placed, ok, err := at.placeAll(s.Modes, try.services, try.each)
		if err != nil {
			return nil, 0, 0, "", err
		}
		if all, services, each = placed, try.services, try.each; ok {
			return all, services, each, s.how(at, services, each, true), nil
		}
	}
	return all, services, each, s.how(at, services, each, false), nil // the last is the smallest
}

// how says how a size came about.
func (s Spec) how(at site, services, each int, fits bool) string {
	size := fmt.Sprintf("%d services with %s each", services, cpus(each))
	switch {
	case s.Services > 0 && s.CPUsEach > 0:
		return size + ", as asked for"
	case !fits:
		return size + fmt.Sprintf(": CPUs %s do not hold even that in every mode", at.shared)
	case services == publishedServices && each == publishedCPUs:
		return size + ", as published"
	}
	return size + fmt.Sprintf(": as much of the published %d with %s each as CPUs %s hold in every mode", publishedServices, cpus(publishedCPUs), at.shared)
}

func cpus(n int) string {
	if n == 1 {
		return "1 CPU"
	}
	return fmt.Sprintf("%d CPUs", n)
}

// settings are those of the servers of a mode: a kernel.NotSupportedError where the policy
// refused it, or where it is the same as an earlier one.
func (x *Experiment) settings(n int) (lab.Settings, error) {
	m, p := x.Experiment.Modes[n], x.Placed[n]
	if p.Refused != "" {
		return nil, &kernel.NotSupportedError{Feature: "mode " + m.Name, Reason: p.Refused, Remedy: "fewer services, or more CPUs (--set services=2, --set cpus=0-15)"}
	}
	if same := x.sameAs(n); same >= 0 {
		return nil, &kernel.NotSupportedError{
			Feature: "mode " + m.Name, Reason: fmt.Sprintf("every service has the CPUs that it has in %s: here they are the same thing", x.Experiment.Modes[same].Name),
			Remedy: "run where cores have two threads, with more CPUs",
		}
	}
	s := lab.Settings{}
	for i, at := range p.Services {
		l := cgroup.Limits{CPUs: at.CPUs, Mems: at.Mems}
		if m.Limit {
			l.Period = limitPeriod
			l.Quota = time.Duration(x.CPUsEach) * limitPeriod
		}
		s[lab.Server(i+1)] = l
	}
	return s, nil
}

// sameAs is the earlier mode in which every service has the same CPUs and limit, -1 if there
// is none. A mode that is to be measured twice is none.
func (x *Experiment) sameAs(n int) int {
	e := x.Experiment
	if n == 1 && e.again() {
		return -1
	}
	return slices.IndexFunc(x.Placed[:n], func(p Placed) bool {
		i := slices.IndexFunc(e.Modes, func(m Mode) bool { return m.Name == p.Mode })
		return p.Refused == "" && e.Modes[i].Limit == e.Modes[n].Limit && slices.Equal(p.Services, x.Placed[n].Services)
	})
}
