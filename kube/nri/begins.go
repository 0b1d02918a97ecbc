package nri

import (
	"context"
	"maps"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
)

// beginning is a container that was to begin in the group of its cache class, and has not begun.
type beginning struct {
	container, group string
	ended            bool // it never will: the runtime may have refused it
	told             bool
}

// beginnings are those, by pod id and name, and what a connection has shown of its runtime.
type beginnings struct {
	of      map[string]map[string]beginning
	works   bool // one has begun so
	refused bool // the first never did: no other is asked for
}

// anew is for another connection: its runtime may be another one.
func (b *beginnings) anew() { b.works, b.refused = false, false }

// asked reports whether one has been asked for and is still to begin.
func (b *beginnings) asked() bool {
	for _, pod := range b.of {
		for _, one := range pod {
			if !one.ended {
				return true
			}
		}
	}
	return false
}

// put notes one.
func (b *beginnings) put(pod, name string, one beginning) {
	if b.of[pod] == nil {
		b.of[pod] = map[string]beginning{}
	}
	b.of[pod][name] = one
}

// beginsIn is the group of resctrl in which the runtime is to start a container, "" for none: that of
// the cache class which it has of Berth, made before the answer. So its first instruction has the
// class however late the runtime tells of its start, and what is executed in it later.
//
// It takes a runtime that uses a group that is there as it is. runc does (1.3.0 to 1.5.2), told a
// closID and no schemata: it writes the first process to the group, never its schemata, and leaves the
// group when the container ends; what is executed in the container later goes into it if it is there
// still (Manager.Apply, Set and Destroy of libcontainer/intelrdt, setnsProcess.start). Which program
// containerd runs for pods without a handler is not told: it is taken for runc, and CacheAfterStart is for
// operators that chose another.
// Runtimes with an NRI before 0.11 do not know the field, and ignore it.
//
// A runtime that refuses it fails to start the container. So on each connection one container shows
// whether it works: until it has begun no other is asked for, and none is after it never began. Once it
// works, a container that was to begin so and never began has the next ones of its name in the pod go
// without. Those that go without are put into the group once they are there, as all are elsewhere.
func (p *Plugin) beginsIn(ctx context.Context, pod *api.PodSandbox, c *api.Container) (group string) {
	id, ok := p.workload(c.GetId())
	handler := pod.GetRuntimeHandler()
	p.mu.Lock()
	ok = ok && !p.opt.CacheAfterStart && p.runtime == "containerd" && (handler == "" || handler == "runc")
	p.mu.Unlock()
	if !ok {
		return ""
	}
	err := p.within(ctx, func(ctx context.Context) (err error) {
		group, err = p.node.CacheGroup(ctx, id)
		return err
	})
	if err != nil || group == "" { // it is moved there
		return ""
	}
	p.mu.Lock()
	last, was := p.begins.of[pod.GetId()][c.GetName()]
	p.mu.Unlock()
	if was && last.container != c.GetId() {
		p.neverBegan(pod, c, last)
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begins.refused || !p.begins.works && p.begins.asked() {
		return ""
	}
	p.begins.put(pod.GetId(), c.GetName(), beginning{container: c.GetId(), group: group})
	return group
}

// neverBegan notes that the runtime never started what beginsIn is about, and tells it once.
func (p *Plugin) neverBegan(pod *api.PodSandbox, c *api.Container, one beginning) {
	p.mu.Lock()
	first, told := !p.begins.works && !one.ended, one.told || p.begins.refused
	p.begins.refused = p.begins.refused || first
	one.ended, one.told = true, true
	p.begins.put(pod.GetId(), c.GetName(), one)
	p.mu.Unlock()
	switch {
	case told:
	case first:
		p.tell(about(string(agent.Failed), pod, c, "it was to begin in %s, the group of its cache class, and never began: the runtime may have refused that. "+
			"Until the runtime connects again, containers are put into their groups once they are there", one.group))
	default:
		p.tell(about(string(agent.Failed), pod, c, "a container of its name was to begin in %s, the group of its cache class, and never began: the runtime may have refused that. "+
			"Those of its name in this pod are put into the group once they are there", one.group))
	}
}

// began notes that the runtime has started what beginsIn is about.
func (p *Plugin) began(pod *api.PodSandbox, c *api.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of := p.begins.of[pod.GetId()]; of[c.GetName()].container == c.GetId() {
		delete(of, c.GetName())
		p.begins.works = true
	}
}

// endsUnbegun is for a container that has ended: maybe it never began. Where it works otherwise that is
// told with the next one of its name: a pod may be deleted before its start.
func (p *Plugin) endsUnbegun(pod *api.PodSandbox, c *api.Container) {
	p.mu.Lock()
	one := p.begins.of[pod.GetId()][c.GetName()]
	is, works := one.container == c.GetId() && !one.ended, p.begins.works
	if is && works {
		one.ended = true
		p.begins.put(pod.GetId(), c.GetName(), one)
	}
	p.mu.Unlock()
	if is && !works {
		p.neverBegan(pod, c, one)
	}
}

// forgetBegins is for a pod that is removed. What of it never began has shown that.
func (p *Plugin) forgetBegins(pod *api.PodSandbox) {
	p.mu.Lock()
	of := maps.Clone(p.begins.of[pod.GetId()])
	p.mu.Unlock()
	for name, one := range of {
		if !one.ended {
			p.endsUnbegun(pod, &api.Container{Id: one.container, Name: name})
		}
	}
	p.mu.Lock()
	delete(p.begins.of, pod.GetId())
	p.mu.Unlock()
}

// toBegin reports whether a container is still to begin in the group of its cache class: the runtime
// has its name, and fails to start the container if the group is not there.
func (p *Plugin) toBegin(container string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pod := range p.begins.of {
		for _, one := range pod {
			if one.container == container && !one.ended {
				return true
			}
		}
	}
	return false
}

// alignBegins brings what is still to begin in line with what the runtime has: what began or ended while
// no connection told of it, and pods that are gone, are forgotten, and what a former plugin asked for is
// noted. They show nothing of this runtime.
func (p *Plugin) alignBegins(pods map[string]*api.PodSandbox, containers []*api.Container) {
	waits := map[string]*api.Container{} // created and not started
	for _, c := range containers {
		if s := c.GetState(); s != api.ContainerState_CONTAINER_STOPPED && s != api.ContainerState_CONTAINER_RUNNING && !p.opt.Busy(groupName(c)) {
			waits[c.GetId()] = c
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for pod, of := range p.begins.of {
		if pods[pod] == nil {
			delete(p.begins.of, pod)
			continue
		}
		for name, one := range of {
			if !one.ended && waits[one.container] == nil {
				delete(of, name)
			}
		}
	}
	for _, c := range waits { // those that a former plugin asked for: the runtime has the name of the group
		group, pod := c.GetLinux().GetRdt().GetClosId().GetValue(), c.GetPodSandboxId()
		if _, known := p.begins.of[pod][c.GetName()]; !known && pods[pod] != nil && agent.IsCacheGroup(group) {
			p.begins.put(pod, c.GetName(), beginning{container: c.GetId(), group: group})
		}
	}
}

// keepGroup has a container that was not started have time of the shared pool, and its classes: so the
// group in which it is to begin stays. What it had it gets back if it starts (regain).
func (p *Plugin) keepGroup(ctx context.Context, container string) error {
	p.mu.Lock()
	n := p.ids[container]
	p.mu.Unlock()
	switch {
	case n.unstarted:
		return nil
	case n.held && p.table.lives(n.pod): // its pod keeps the place, and so the group
		_, err := p.giveBack(ctx, container, true)
		return err
	}
	w, err := p.node.Get(ctx, n.id)
	if err != nil {
		return err
	}
	specs := []agent.Spec{(&asked{spec: w.Spec}).notStarted()}
	_, err = without(specs, false, func() (err error) { // what it cannot have so it asks for again once it starts
		w, err = p.node.Resize(ctx, specs[0])
		return err
	})
	if err != nil {
		return err
	}
	p.settle(ctx, container, &w)
	return nil
}

// regain gives a container that has started what its pod asks for, if it gave that up before (keepGroup).
// ok is false if it had nothing to give up.
func (p *Plugin) regain(ctx context.Context, pod *api.PodSandbox, c *api.Container) (ok bool, err error) {
	if !p.gaveUp(c.GetId()) {
		return false, nil
	}
	a, err := p.spec(pod, c, cpuset.Set{})
	if err != nil {
		return true, err
	}
	var w agent.Workload
	specs := []agent.Spec{a.spec}
	lost, err := without(specs, false, func() (err error) { // it runs: too late to refuse it
		w, err = p.node.Resize(ctx, specs[0])
		return err
	})
	if isGone(err) { // it is placed anew
		p.forget(c.GetId())
		return false, nil
	}
	if err != nil {
		return true, err
	}
	p.tellLost(pod, c, lost)
	p.settle(ctx, c.GetId(), &w)
	return true, nil
}

// gaveUp reports whether a container has given up what its pod asks for until it starts.
func (p *Plugin) gaveUp(container string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ids[container].unstarted
}

// unstarted reports whether a workload's container had not started when its place was decided last.
func unstarted(w *agent.Workload) bool { return w.Spec.Annotations[unstartedKey] != "" }
