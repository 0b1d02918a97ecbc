package kubelet

import (
	"cmp"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// pod is a place.Pod with the topology manager's arithmetic.
//
// With a request of its own (KEP-5526), a whole number of CPUs, the pod gets
// these CPUs as a whole. Containers with CPUs of their own get them out of those,
// the others share the rest, which is a pool of the name podPool returns.
type pod place.Pod

// podPool returns the name of the pool that a pod's containers share.
func podPool(pod string) string { return "pod/" + pod }

// demand returns how many exclusive CPUs the containers of a pod need at a time; 0 if
// they need none, or if the pod is not Guaranteed.
func (d *pod) demand() int {
	if d.Milli > 0 {
		return ownCPUs(&place.Request{Milli: d.Milli, LimitMilli: d.LimitMilli})
	}
	for i := range d.Containers {
		if !guaranteed(&d.Containers[i]) {
			return 0
		}
	}
	return int(d.peak(func(r *place.Request) int64 { return int64(ownCPUs(r)) }))
}

// peak returns the most that the containers need of something at a time: an
// init container runs beside the sidecars before it, apps beside all sidecars.
func (d *pod) peak(of func(*place.Request) int64) int64 {
	var sidecars, apps, most int64
	for i := range d.Containers {
		n := of(&d.Containers[i])
		switch d.Containers[i].Role {
		case place.Init:
			most = max(most, sidecars+n)
		case place.Sidecar:
			sidecars += n
		default:
			apps += n
		}
	}
	return max(most, sidecars+apps)
}

// validate reports whether each container of a pod with a request of its own has
// a CPU: a *place.RejectedError names the container without one, a
// *place.CPUsError says that the containers want more than the pod.
func (d *pod) validate() error {
	n := d.demand()
	if d.Milli == 0 || n == 0 {
		return nil
	}
	own := func(r *place.Request) int64 { return int64(ownCPUs(r)) }
	if peak := int(d.peak(own)); peak > n {
		return &place.CPUsError{Asked: peak, Available: n}
	}
	sidecars, owned := 0, 0
	for i := range d.Containers {
		if r := &d.Containers[i]; r.Role != place.Init {
			owned += ownCPUs(r)
		}
	}
	for i := range d.Containers {
		r := &d.Containers[i]
		left := n - owned
		if r.Role == place.Init {
			left = n - sidecars
		}
		if ownCPUs(r) == 0 && left <= 0 {
			return &place.RejectedError{ID: r.ID, Reason: "no CPU of the pod is left to share"}
		}
		if r.Role == place.Sidecar {
			sidecars += ownCPUs(r)
		}
	}
	return nil
}

// milli returns the CPU time that the pod asks for at a time.
func (d *pod) milli() int {
	if d.Milli > 0 {
		return d.Milli
	}
	return int(d.peak(func(r *place.Request) int64 { return int64(r.Milli) }))
}

// PodScope implements place.PodPlacer: the topology manager's scope is the pod.
func (p Policy) PodScope() bool { return p.TopologyManagerScope == ScopePod }

// PlacePod implements place.PodPlacer. An init container whose CPUs are partly
// of the pod's pool shares that pool.
func (p Policy) PlacePod(s *place.State, asked place.Pod) (*place.State, *place.Why, error) {
	pod := pod(asked)
	if err := cmp.Or(p.Validate(), pod.validate()); err != nil {
		return nil, nil, err
	}
	whole := p.podTask(s, &pod)
	if err := whole.fit(pod.milli()); err != nil {
		return nil, whole.why, err
	}
	mask, err := whole.admit()
	if err != nil {
		return nil, whole.why, err
	}
	var sets []cpuset.Set
	var pool cpuset.Set
	if pod.Milli > 0 && whole.cpus > 0 {
		if sets, pool, err = whole.podSets(&pod, mask); err != nil {
			return nil, whole.why, err
		}
	}
	for i := range pod.Containers {
		k := p.task(s, &pod.Containers[i])
		o := s.Offer()
		if i == 0 {
			k.why, k.take.why = whole.why, whole.why // the pod's decisions are recorded once
			if !pool.IsEmpty() {
				o.Pools = []place.Pool{{Name: podPool(pod.ID), CPUs: pool, Kind: "pod"}}
			}
		}
		switch {
		case sets != nil:
			o.Grant = &place.Grant{ID: k.r.ID, Request: *k.r, Why: k.why, Own: sets[i].Minus(pool)}
			if sets[i].Overlaps(pool) {
				o.Grant.Share = place.Share{Pool: podPool(pod.ID), Milli: k.r.Milli}
			}
			err = k.rest(o.Grant, mask)
		default:
			if pod.Milli > 0 {
				k.cpus = 0 // CPUs of its own come with those of the pod
			}
			o.Grant, err = k.grant(mask)
		}
		if err == nil {
			s, err = s.Commit(o)
		}
		if err != nil {
			return nil, k.why, err
		}
	}
	return s, nil, nil
}

// podTask is the task of a pod as if it were one workload.
func (p Policy) podTask(s *place.State, pod *pod) *task {
	r := &place.Request{ID: pod.ID, Group: pod.ID, Milli: pod.demand() * 1000}
	r.LimitMilli = r.Milli
	for i := range pod.Containers {
		c := &pod.Containers[i]
		if i == 0 {
			r.Nodes, r.NodesRequired, r.Explain = c.Nodes, c.NodesRequired, c.Explain
		}
		for _, a := range c.Memory {
			if bytesOf(r, a.Resource) == 0 {
				a.Bytes = pod.peak(func(r *place.Request) int64 { return bytesOf(r, a.Resource) })
				r.Memory = append(r.Memory, a)
			}
		}
		for _, d := range c.Devices {
			if countOf(r, d.Kind) == 0 {
				n := pod.peak(func(r *place.Request) int64 { return countOf(r, d.Kind) })
				r.Devices = append(r.Devices, place.DeviceRequest{Kind: d.Kind, Count: int(n)})
			}
		}
	}
	return p.task(s, r)
}

func bytesOf(r *place.Request, resource string) (bytes int64) {
	for _, a := range r.Memory {
		if a.Resource == resource {
			bytes += a.Bytes
		}
	}
	return bytes
}

func countOf(r *place.Request, kind string) (count int64) {
	for i := range r.Devices {
		if r.Devices[i].Kind == kind {
			count += int64(wanted(&r.Devices[i]))
		}
	}
	return count
}

// podSets takes the pod's CPUs and divides them: the set of each container, and
// the pool of those that share.
func (k *task) podSets(pod *pod, mask place.Hint) (sets []cpuset.Set, pool cpuset.Set, err error) {
	all, err := k.exclusive(mask)
	if err != nil {
		return nil, pool, err
	}
	sets = make([]cpuset.Set, len(pod.Containers))
	var sidecars, apps cpuset.Set
	for i := range pod.Containers {
		r := &pod.Containers[i]
		n := ownCPUs(r)
		from := all.Minus(sidecars).Minus(apps)
		if n == 0 {
			if r.Role == place.Init {
				sets[i] = from
			}
			continue
		}
		if sets[i], err = k.take.take(from, n); err != nil {
			return nil, pool, err
		}
		if k.p.FullPCPUsOnly && k.t.Whole(machine.Core, sets[i]) != sets[i] {
			threads, _ := k.t.ThreadsPerCore()
			return nil, pool, &place.SMTError{Asked: n, PerCore: threads, Available: k.t.Whole(machine.Core, from).Len(), Setting: "full-pcpus-only"}
		}
		switch r.Role {
		case place.Sidecar:
			sidecars = sidecars.Union(sets[i])
		case place.App:
			apps = apps.Union(sets[i])
		}
	}
	pool = all.Minus(sidecars).Minus(apps)
	for i := range sets {
		if sets[i].IsEmpty() {
			sets[i] = pool
		}
	}
	return sets, pool, nil
}

// Release implements place.Releaser: a pod's pool ends with its last container.
func (p Policy) Release(s *place.State, g *place.Grant) (place.Offer, error) {
	o := s.Offer()
	pool, ok := s.Pool(podPool(g.Request.Group))
	if !ok || g.Request.Group == "" {
		return o, nil
	}
	if members := slices.Collect(s.Members(g.Request.Group)); len(members) == 1 {
		o.Pools = []place.Pool{{Name: pool.Name}}
	}
	return o, nil
}

// Resize implements place.Resizer for shared workloads. A workload
// with exclusive CPUs, memory or devices cannot change them in place; one without
// cannot get any.
func (p Policy) Resize(s *place.State, r *place.Request, old *place.Grant) (place.Offer, error) {
	k := p.task(s, r)
	if err := k.fit(r.Milli); err != nil {
		return place.Offer{Why: k.why}, err
	}
	same := func(a, b place.DeviceRequest) bool { return a.Kind == b.Kind && wanted(&a) == wanted(&b) }
	memory := (len(old.Memory) > 0 || len(k.need) > 0) && !slices.Equal(r.Memory, old.Request.Memory)
	if old.Own.Len() != k.cpus || memory || !slices.EqualFunc(r.Devices, old.Request.Devices, same) ||
		r.Group != old.Request.Group || r.Role != old.Request.Role {
		return place.Offer{}, &place.RejectedError{ID: r.ID, Reason: "what a workload has for its own cannot change in place"}
	}
	g := *old
	g.Request, g.Why = *r, k.why
	if old.Own.IsEmpty() {
		g.Share.Milli = r.Milli
	}
	return s.Answer(&g, nil)
}
