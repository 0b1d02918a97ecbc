package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

// A place can outlast its container: the places of a pod that was placed as a whole are the pod's until its
// sandbox stops, and the CPUs of an init container are kept for the pod's other containers until all of them
// run. A workload that has its place and no container is reserved.

// named is the workload of a container that the runtime has.
type named struct {
	id, pod string // the pod's UID
	of      identity
	group   string
	held    bool // the place stays when the container ends
	classes map[agent.ClassKind]string
	limited bool // in what it sends or receives
	joined  bool // it has what they have in its control group
	// unstarted is true from when it gave its CPUs up, as nobody started it, until it has them again.
	unstarted bool
}

func (p *Plugin) info(pod *api.PodSandbox) *PodInfo {
	if p.opt.Pods == nil {
		return nil
	}
	info, ok := p.opt.Pods.Pod(pod.GetUid())
	if !ok {
		return nil
	}
	return info
}

// noteReserved notes that a workload of a pod is reserved.
func (p *Plugin) noteReserved(id, pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved[id] = pod
}

func (p *Plugin) isReserved(id, pod string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	of, ok := p.reserved[id]
	return ok && of == pod
}

// bind gives a reserved workload the container that it was reserved for.
func (p *Plugin) bind(ctx context.Context, pod *api.PodSandbox, c *api.Container, a *asked) (agent.Workload, error) {
	if a.whole {
		a.spec.Annotations[scopeKey] = podwords.PodScope.String()
	}
	var lost []refused
	w, err := p.node.Get(ctx, a.spec.Request.ID)
	if err == nil {
		if err = p.elsewhere(ctx, pod, c, a, &w); err != nil {
			return w, err
		}
		a.keepClasses(&w)
		w, lost, err = p.arrive(ctx, &w, a.spec, a.strict)
	}
	if err == nil || isGone(err) {
		p.mu.Lock()
		delete(p.reserved, a.spec.Request.ID)
		p.mu.Unlock()
	}
	if err != nil {
		return w, err
	}
	p.emitLost(pod, c, lost)
	a.keepClasses(&w)
	if !w.Spec.SameAs(&a.spec) && w.Spec.Annotations[fallbackKey] == "" && !a.whole {
		return p.node.Resize(ctx, a.spec) // an init container that was started again after a resize
	}
	return w, nil
}

// elsewhere reports a container whose place is not on the NUMA nodes that it asks for: its pod got the place
// before the container's devices were known. Where these nodes are a condition it returns an error.
func (p *Plugin) elsewhere(ctx context.Context, pod *api.PodSandbox, c *api.Container, a *asked, w *agent.Workload) error {
	wants, has := &a.spec.Request, &w.Spec.Request
	if !a.whole || wants.Nodes.IsEmpty() || wants.Nodes == has.Nodes && (has.NodesRequired || !wants.NodesRequired) {
		return nil
	}
	s, err := p.node.State(ctx)
	if err != nil {
		return err
	}
	if own := w.Grant.Own; !own.IsEmpty() && s.Topology().CPUsOf(wants.Nodes).Contains(own) {
		return nil
	}
	const source = agent.SourcePrefix + "nodes"
	word, _, _ := strings.Cut(a.spec.Annotations[source], ":")
	delete(a.spec.Annotations, source)
	problem := podwords.Problem{Word: word, Value: wants.Nodes.String(), Kind: podwords.NotFollowed, Err: errElsewhere}
	err = p.problems(pod, c, &podwords.Reading{Problems: []podwords.Problem{problem}})
	if err == nil && (a.strict || wants.NodesRequired) {
		return &RefusedError{&problem}
	}
	return err
}

var errElsewhere = errors.New("its pod was placed as a whole before the container's devices and mounts were known, and its place is on other NUMA nodes")

func isGone(err error) bool {
	var gone *place.NotHeldError
	return errors.As(err, &gone)
}

// placeWhole places all containers of a pod that the API server knows, before the first of them starts. ok is
// false if they are to be placed one by one.
func (p *Plugin) placeWhole(ctx context.Context, pod *api.PodSandbox, c *api.Container, a *asked) (ok bool, err error) {
	info := p.info(pod)
	if !a.whole || info.Container(c.GetName()) == nil || p.hasPlace(pod.GetUid()) {
		return false, nil
	}
	var specs []agent.Spec
	var containers []*api.Container
	required, strict := a.required, a.strict
	for i := range info.Containers {
		one, container := *a, c
		if name := info.Containers[i].Name; name != c.GetName() {
			// Until it comes, its group is a name that no group has.
			container = &api.Container{Id: pod.GetUid() + "/" + name, Name: name, PodSandboxId: c.GetPodSandboxId()}
			if one, err = p.spec(pod, container, cpuset.Set{}); err != nil {
				return false, err
			}
		}
		required, strict = required || one.required, strict || one.strict
		one.spec.Annotations = maps.Clone(one.spec.Annotations)
		one.spec.Annotations[scopeKey] = podwords.PodScope.String()
		delete(one.spec.Annotations, containerKey)
		specs, containers = append(specs, one.spec), append(containers, container)
	}
	whole := place.Pod{ID: pod.GetUid(), Milli: info.Milli, LimitMilli: info.LimitMilli}
	lost, err := tryWithoutClasses(specs, strict, func() error {
		change, err := p.node.ReservePod(ctx, whole, specs)
		if err != nil {
			return err
		}
		if err = change.Enforce(ctx); err != nil {
			return errors.Join(err, change.Abort())
		}
		return change.Commit()
	})
	switch {
	case errors.Is(err, errTooLate):
		return false, err
	case err != nil && required:
		return false, &RefusedError{err}
	case err != nil:
		p.emit(about(Fallback, pod, nil, "its containers are placed one by one: %v", err))
		return false, nil
	}
	for i := range lost {
		p.emitLost(pod, containers[lost[i].of], lost[i:i+1])
	}
	for i := range specs {
		p.noteReserved(specs[i].Request.ID, pod.GetUid())
	}
	return true, nil
}

// hasPlace reports whether a container of a pod has a place.
func (p *Plugin) hasPlace(pod string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, of := range p.reserved {
		if of == pod {
			return true
		}
	}
	for _, n := range p.ids {
		if n.pod == pod {
			return true
		}
	}
	return false
}

// initsDone releases the places of a pod's init containers once all its other containers have theirs.
func (p *Plugin) initsDone(ctx context.Context, pod *api.PodSandbox) {
	info := p.info(pod)
	if info == nil {
		return
	}
	lacks := map[string]bool{} // names of containers
	for i := range info.Containers {
		if c := &info.Containers[i]; c.Role != place.Init {
			lacks[c.Name] = true
		}
	}
	p.mu.Lock()
	for _, n := range p.ids {
		if n.pod == pod.GetUid() {
			delete(lacks, n.of.container)
		}
	}
	p.mu.Unlock()
	if len(lacks) == 0 {
		p.releaseReserved(ctx, p.reservedOf(pod.GetUid()))
	}
}

// reservedOf are the reserved workloads of a pod.
func (p *Plugin) reservedOf(uid string) (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, of := range p.reserved {
		if of == uid {
			ids = append(ids, id)
		}
	}
	return ids
}

// reserving are the UIDs of the pods that have reserved workloads.
func (p *Plugin) reserving() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	uids := map[string]bool{}
	for _, uid := range p.reserved {
		uids[uid] = true
	}
	return uids
}

// releasePod releases what containers of a stopped sandbox have that were never started or are gone and, if the
// pod has no other sandbox, what is reserved for the pod. Errors become events.
func (p *Plugin) releasePod(ctx context.Context, pod *api.PodSandbox) {
	p.table.removeSandbox(pod)
	_ = p.within(ctx, func(ctx context.Context) error {
		for _, s := range p.table.abandoned(0) {
			if s.of.sandbox == pod.GetId() && !p.opt.Busy(s.group) {
				if _, err := p.release(ctx, s.id); err != nil {
					p.emit(s.of.event(string(agent.Failed), fmt.Sprintf("its CPUs are not given back yet: %v", err)))
				}
			}
		}
		uid := pod.GetUid()
		if p.table.lives(uid) {
			return nil
		}
		p.releaseReserved(ctx, p.reservedOf(uid))
		return nil
	})
}

// releaseReserved releases reserved workloads whose containers will not come. Errors become events.
func (p *Plugin) releaseReserved(ctx context.Context, waiting []string) {
	if len(waiting) == 0 {
		return
	}
	slices.Sort(waiting)
	_ = p.within(ctx, func(ctx context.Context) error {
		for _, id := range waiting {
			if err := p.node.Release(ctx, id, agent.Keep); err != nil && !isGone(err) {
				p.emitFor(id, string(agent.Failed), fmt.Sprintf("its CPUs are not given back yet: %v", err))
				continue
			}
			p.mu.Lock()
			delete(p.reserved, id)
			p.mu.Unlock()
		}
		return nil
	})
}

// forgetPod is releasePod of a sandbox that is gone, of which nothing stays.
func (p *Plugin) forgetPod(ctx context.Context, pod *api.PodSandbox) {
	p.releasePod(ctx, pod)
	p.forgetGroupStarts(pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.reported, pod.GetId())
}

// endSandboxes forgets the sandboxes that have ended and for whose pods something is reserved: containerd tells of
// the end of none that it had before it was started anew. Only one that was seen with processes can end.
func (p *Plugin) endSandboxes(ctx context.Context) {
	waiting := p.reserving()
	for _, s := range p.table.allSandboxes() {
		group, ok := groupOf(s.pod.GetLinux().GetCgroupsPath())
		waits := waiting[s.pod.GetUid()]
		if !ok || s.seen && !waits {
			continue
		}
		if gone := p.table.noteSandbox(s.pod.GetId(), p.opt.Busy(group)); waits && gone >= p.opt.Unstarted {
			p.forgetPod(ctx, s.pod)
		}
	}
}

// StopPodSandbox releases what a pod keeps beyond its containers. Its answer cannot hold updates: they are sent
// afterwards.
func (p *Plugin) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	p.table.enter()
	defer p.table.leave()
	p.releasePod(ctx, pod)
	return nil
}
