package controlplane

import (
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// Resize implements place.Resizer. CPUs grow next to those held, by the order of
// the allocator, and shrink to a part of them. A change that would move CPUs is refused.
// Memory, devices, group and role cannot change.
func (p Policy) Resize(s *place.State, r *place.Request, old *place.Grant) (place.Offer, error) {
	if err := p.refuse(r); err != nil {
		return place.Offer{}, err
	}
	if was := &old.Request; was.Group != r.Group || was.Role != r.Role || !slices.Equal(was.Memory, r.Memory) || !was.SameDevices(r) {
		return place.Offer{}, &place.RejectedError{ID: r.ID, Reason: "memory, devices, group and role cannot change in place"}
	}
	k := newTask(p, s, r, old)
	k.held = old.Held()
	g := &place.Grant{ID: r.ID, Request: *r, Why: k.why, Memory: old.Memory, Devices: old.Devices}
	err := k.cpus(g)
	if p.PinMemory {
		g.Mems = k.t.NodesOf(g.Own.Union(g.Share.Within))
		for _, b := range old.Memory {
			g.Mems, _ = g.Mems.With(b.Node)
		}
	}
	return s.Answer(g, err)
}

// around grows or shrinks the held CPUs to n.
func (k *task) around(free cpuset.Set, n int) (cpuset.Set, error) {
	if !k.bucket.Contains(k.held) {
		return free, &place.RejectedError{ID: k.r.ID, Reason: "its CPUs would move: " + k.held.Minus(k.bucket).String() + " are not for its class and namespace"}
	}
	if n <= k.held.Len() {
		return k.choose(k.held, n)
	}
	if k.p.Allocator == Default {
		return k.extend(free, n)
	}
	all := free.Union(k.held)
	switch {
	case n > all.Len():
		return k.firstLeaves(all, n) // refuses
	case k.p.Allocator == NUMA:
		all = k.deepest(all, n)
	}
	more, err := k.firstLeaves(all.Minus(k.held), n-k.held.Len())
	return more.Union(k.held), err
}

// extend takes the CPUs with the next higher numbers, then the next lower ones.
func (k *task) extend(free cpuset.Set, n int) (cpuset.Set, error) {
	cpus := k.held
	first, _ := cpus.First()
	last, _ := cpus.Last()
	for ; cpus.Len() < n && free.Has(last+1); last++ {
		cpus, _ = cpus.With(last + 1)
	}
	for ; cpus.Len() < n && free.Has(first-1); first-- {
		cpus, _ = cpus.With(first - 1)
	}
	if cpus.Len() < n {
		k.why.Note("CPUs %s are free around %s", cpus.Minus(k.held), k.held)
		return cpus, &place.CPUsError{Asked: n, Available: cpus.Len()}
	}
	return cpus, nil
}
