package nri

import (
	"context"
	"maps"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
)

// groupStart is a container that the runtime was asked to start in the resctrl group of its cache class, and
// that has not started.
type groupStart struct {
	container, group string
	ended            bool // it has ended and never started: the runtime may have refused the group
	reported         bool // that was reported
}

// startKey names what a groupStart is of: a container of a pod, whose id is another one after each restart.
type startKey struct{ pod, name string }

func startKeyOf(pod *api.PodSandbox, c *api.Container) startKey {
	return startKey{pod.GetId(), c.GetName()}
}

// groupStarts are all of those, and what this connection has shown of its runtime.
type groupStarts struct {
	of      map[startKey]groupStart
	works   bool // a container has started in its group
	refused bool // the first one never started: no other is asked for
}

// reset forgets what a former connection has shown: its runtime may have been another one.
func (g *groupStarts) reset() { g.works, g.refused = false, false }

// waits reports whether a container is still to start in its group: one of that id, "" for any.
func (g *groupStarts) waits(container string) bool {
	for _, s := range g.of {
		if !s.ended && (container == "" || s.container == container) {
			return true
		}
	}
	return false
}

// startGroup is the resctrl group in which the runtime is to start a container, "" for none. It is the group of
// the container's cache class, which the node has made before: so the first instruction has the class however
// late the runtime reports the start, and so has a process that is executed in the container later.
//
// The runtime must take a group that exists as it is. runc does (1.3.0 to 1.5.2) where it is given a closID and
// no schemata: it puts the first process into the group, never writes the group's schemata, and leaves the
// group when the container ends; processes that are executed later go into the group if it still exists
// (Manager.Apply, Set and Destroy of libcontainer/intelrdt, setnsProcess.start). Which program containerd runs
// for a pod without a handler is not known: it is taken for runc, and CacheAfterStart is for operators that
// chose another one. Runtimes with an NRI before 0.11 ignore the field.
//
// A runtime that refuses the group fails to start the container. So on each connection one container shows
// whether the runtime takes groups: until it has started, no other is asked for, and if it never starts, none
// is. Once one has started, a container that was to start in its group and never started has the next ones of
// its name in the pod go without. Containers that go without are moved into their group after their start.
func (p *Plugin) startGroup(ctx context.Context, pod *api.PodSandbox, c *api.Container) (group string) {
	handler := pod.GetRuntimeHandler()
	p.mu.Lock()
	of := p.ids[c.GetId()]
	ok := of.classes[agent.CacheClass] != "" && !p.opt.CacheAfterStart && p.runtime == "containerd" && (handler == "" || handler == "runc")
	p.mu.Unlock()
	if !ok {
		return ""
	}
	err := p.within(ctx, func(ctx context.Context) (err error) {
		group, err = p.node.CacheGroup(ctx, of.id)
		return err
	})
	if err != nil || group == "" { // it is moved there
		return ""
	}
	key := startKeyOf(pod, c)
	p.mu.Lock()
	last, was := p.groupStarts.of[key]
	p.mu.Unlock()
	if was && last.container != c.GetId() {
		p.neverStarted(pod, c, last)
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.groupStarts.refused || !p.groupStarts.works && p.groupStarts.waits("") {
		return ""
	}
	p.groupStarts.of[key] = groupStart{container: c.GetId(), group: group}
	return group
}

// neverStarted notes that a container which was to start in its group never started, and reports it once.
func (p *Plugin) neverStarted(pod *api.PodSandbox, c *api.Container, s groupStart) {
	p.mu.Lock()
	first, reported := !p.groupStarts.works && !s.ended, s.reported || p.groupStarts.refused
	p.groupStarts.refused = p.groupStarts.refused || first
	s.ended, s.reported = true, true
	p.groupStarts.of[startKeyOf(pod, c)] = s
	p.mu.Unlock()
	if reported {
		return
	}
	who, next := "a container of its name", "Those of its name in this pod are moved into the group after their start"
	if first {
		who, next = "it", "Until the runtime connects again, containers are moved into their groups after their start"
	}
	p.emit(about(string(agent.Failed), pod, c, "%s was to start in %s, the group of its cache class, and never started: the runtime may have refused the group. %s", who, s.group, next))
}

// startedInGroup notes that a container has started, in its group if it was to.
func (p *Plugin) startedInGroup(pod *api.PodSandbox, c *api.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if key := startKeyOf(pod, c); p.groupStarts.of[key].container == c.GetId() {
		delete(p.groupStarts.of, key)
		p.groupStarts.works = true
	}
}

// endedUnstarted notes that a container has ended, which may never have started. Where another container has
// started in its group, that is reported with the next one of this name: a pod may be deleted before its start.
func (p *Plugin) endedUnstarted(pod *api.PodSandbox, c *api.Container) {
	key := startKeyOf(pod, c)
	p.mu.Lock()
	s := p.groupStarts.of[key]
	is, works := s.container == c.GetId() && !s.ended, p.groupStarts.works
	if is && works {
		s.ended = true
		p.groupStarts.of[key] = s
	}
	p.mu.Unlock()
	if is && !works {
		p.neverStarted(pod, c, s)
	}
}

// forgetGroupStarts forgets the containers of a pod that is removed: those that are still to start never will.
func (p *Plugin) forgetGroupStarts(pod *api.PodSandbox) {
	p.mu.Lock()
	all := maps.Clone(p.groupStarts.of)
	p.mu.Unlock()
	for key, s := range all {
		if key.pod == pod.GetId() && !s.ended {
			p.endedUnstarted(pod, &api.Container{Id: s.container, Name: key.name})
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.groupStarts.of, func(key startKey, _ groupStart) bool { return key.pod == pod.GetId() })
}

// startsInGroup reports whether a container is still to start in the group of its cache class: the runtime has
// the group's name, and fails to start the container if the group is not there.
func (p *Plugin) startsInGroup(container string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.groupStarts.waits(container)
}

// alignGroupStarts brings the containers that are still to start in line with those that the runtime has. It
// forgets those that started or ended while no plugin was connected: they show nothing of this runtime. And it
// notes those that a former plugin asked for: the runtime has the name of their group.
func (p *Plugin) alignGroupStarts(pods map[string]*api.PodSandbox, containers []*api.Container) {
	unstarted := map[string]*api.Container{}
	for _, c := range containers {
		if s := c.GetState(); s != api.ContainerState_CONTAINER_STOPPED && s != api.ContainerState_CONTAINER_RUNNING && !p.opt.Busy(groupName(c)) {
			unstarted[c.GetId()] = c
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.groupStarts.of, func(key startKey, s groupStart) bool {
		return pods[key.pod] == nil || !s.ended && unstarted[s.container] == nil
	})
	for _, c := range containers {
		pod, group := pods[c.GetPodSandboxId()], c.GetLinux().GetRdt().GetClosId().GetValue()
		key := startKeyOf(pod, c)
		if _, known := p.groupStarts.of[key]; !known && pod != nil && unstarted[c.GetId()] != nil && agent.IsCacheGroup(group) {
			p.groupStarts.of[key] = groupStart{container: c.GetId(), group: group}
		}
	}
}

// keepGroup gives a container that was not started time of the shared pool in place of its CPUs, and leaves it
// its classes: so the group in which it is to start stays. If it starts, it gets its CPUs back (restoreRequest).
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
	_, err = tryWithoutClasses(specs, false, func() (err error) { // what it cannot have so it asks for again once it starts
		w, err = p.node.Resize(ctx, specs[0])
		return err
	})
	if err != nil {
		return err
	}
	p.attach(ctx, container, &w)
	return nil
}

// restoreRequest places a container that has started with what its pod asks for, if it gave that up before
// (keepGroup). ok is false if it gave nothing up.
func (p *Plugin) restoreRequest(ctx context.Context, pod *api.PodSandbox, c *api.Container) (ok bool, err error) {
	if !p.gaveUp(c.GetId()) {
		return false, nil
	}
	a, err := p.spec(pod, c, cpuset.Set{})
	if err != nil {
		return true, err
	}
	var w agent.Workload
	specs := []agent.Spec{a.spec}
	lost, err := tryWithoutClasses(specs, false, func() (err error) { // it runs: too late to refuse it
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
	p.emitLost(pod, c, lost)
	p.attach(ctx, c.GetId(), &w)
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
