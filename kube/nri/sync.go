package nri

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
)

// watched is how long after an adoption the kernel's CPUs are compared often.
const watched = 2 * time.Second

// Synchronize adopts the containers that the runtime has. Containers with a record get what it says, the
// others keep the CPUs that they run on where that is legal. Before that, the places of containers that are
// gone are released.
func (p *Plugin) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	connection := p.table.connect()
	defer p.table.leave()
	began := time.Now()
	byID := make(map[string]*api.PodSandbox, len(pods))
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	p.trackAll(byID, containers)
	p.alignGroupStarts(byID, containers)
	err := p.within(ctx, func(ctx context.Context) error { return p.adopt(ctx, byID, containers) })
	if err != nil {
		p.emit(Event{Kind: string(agent.Failed), Text: "adopt what runs: " + err.Error()})
	}
	updates, _, err := p.table.answer(connection, "", p.online)
	p.emit(Event{Kind: Connected, Text: plural(len(containers), "container") + " adopted in " + time.Since(began).Round(time.Millisecond).String()})
	// An update that the former plugin, or the lost connection, had begun may still come.
	for in := watched / 20; in <= watched; in += watched / 10 {
		p.verifyIn(in)
	}
	return updates, err
}

// trackAll makes the table have the containers that the runtime has, and no others, and forgets pods that are
// gone.
func (p *Plugin) trackAll(pods map[string]*api.PodSandbox, containers []*api.Container) {
	p.mu.Lock()
	maps.DeleteFunc(p.reported, func(pod string, _ map[string]bool) bool { return pods[pod] == nil })
	clear(p.retries) // adopt places those that are still there
	p.mu.Unlock()
	there, used := make(map[string]bool, len(containers)), make(map[string]bool, len(pods))
	for _, c := range containers {
		if s := c.GetState(); s == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		pod := pods[c.GetPodSandboxId()]
		has, err := inForce(c)
		if err != nil {
			p.emit(about(string(agent.Failed), pod, c, "%v", err))
		}
		there[c.GetId()], used[c.GetPodSandboxId()] = true, true
		p.table.add(pod, c, has, false)
		// A runtime that was killed amid an update lists what it meant to write: the kernel's CPUs count. A
		// container that is created may have a process that has not begun, to which it applies no update.
		group, state := groupName(c), c.GetState()
		is, _ := p.opt.Effective(group)
		if state == api.ContainerState_CONTAINER_RUNNING || state != api.ContainerState_CONTAINER_CREATED && p.opt.Busy(group) {
			p.table.started(c.GetId(), is)
		} else {
			p.table.starting(c.GetId(), is, p.online) // maybe
		}
	}
	p.keepRunning(containers, there)
	live := make(map[string]*sandbox, len(pods))
	for id, pod := range pods {
		if used[id] || !p.hasEnded(pod) { // the runtime lists sandboxes that have ended and are not removed
			live[id] = &sandbox{pod: pod}
		}
	}
	p.table.keepOnly(there, live)
}

// hasEnded reports whether a sandbox has no process, where its group is known.
func (p *Plugin) hasEnded(pod *api.PodSandbox) bool {
	group, ok := groupOf(pod.GetLinux().GetCgroupsPath())
	return ok && !p.opt.Busy(group)
}

// keepRunning adds to there the containers that the runtime does not list and that have processes: containerd
// lists none whose state it could not find out in time. They keep their places.
func (p *Plugin) keepRunning(listed []*api.Container, there map[string]bool) {
	p.mu.Lock()
	known := maps.Clone(p.ids) // of the records, where the plugin has started anew
	p.mu.Unlock()
	groups := p.table.groupsByID()
	for id, n := range known {
		groups[id] = n.group
	}
	for _, c := range listed {
		delete(groups, c.GetId())
	}
	for _, id := range slices.Sorted(maps.Keys(groups)) {
		group := groups[id]
		if id == "" || !p.opt.Busy(group) { // a place that waits for its container has no id
			continue
		}
		is, _ := p.opt.Effective(group)
		if n := known[id]; !p.table.has(id) {
			pod := &api.PodSandbox{Namespace: n.of.namespace, Name: n.of.pod, Uid: n.pod}
			p.table.add(pod, &api.Container{Id: id, Name: n.of.container, Linux: &api.LinuxContainer{CgroupsPath: n.group}}, resources{cpus: is}, false)
		}
		p.table.started(id, is)
		there[id] = true
	}
}

// adopt places all containers in one transition. Those that cannot be placed have the shared pool; after an
// error all do.
func (p *Plugin) adopt(ctx context.Context, pods map[string]*api.PodSandbox, containers []*api.Container) (err error) {
	var came []asked
	defer func() {
		if err != nil {
			for i := range came {
				p.forget(came[i].container())
			}
		}
		for _, c := range containers {
			id, pod := c.GetId(), pods[c.GetPodSandboxId()]
			_, has := p.workload(id)
			started := p.gaveUp(id) && p.table.runs(id) // while no plugin ran
			if pod != nil && (started || err != nil && !has && p.table.has(id)) {
				p.retryLater(pod, c)
			}
		}
	}()
	if _, err := p.node.Reconcile(ctx); err != nil { // the places of those that are gone
		return err
	}
	held, err := p.node.List(ctx)
	if err != nil {
		return err
	}
	p.loadRecords(ctx, held)
	came = p.newcomers(ctx, pods, containers)
	wishes, specs, named := map[string]*asked{}, []agent.Spec{}, []string{}
	for i := range came {
		a := &came[i]
		wishes[a.spec.Request.ID], specs, named = a, append(specs, a.spec), append(named, a.container())
	}
	refused, err := p.adoptClassed(ctx, specs)
	if err != nil {
		return err
	}
	specs = specs[:0]
	for _, r := range refused {
		a := wishes[r.ID]
		p.emit(p.table.identity(a.container()).event(Fallback, "time of the shared pool instead of what it asks for: "+r.Err.Error()))
		specs = append(specs, a.shared())
	}
	if refused, err = p.adoptClassed(ctx, specs); err != nil {
		return err
	}
	p.nameAll(ctx, named)
	for _, r := range refused {
		container := wishes[r.ID].container()
		p.table.followPool(container)
		p.forget(container)
	}
	waiting := p.reserving()
	for _, pod := range pods {
		if waiting[pod.GetUid()] { // its last container may have come while the plugin was away
			p.initsDone(ctx, pod)
		}
	}
	return nil
}

// newcomers are the requests of the containers that have no workload yet; it notes the workload of each. A
// container whose place is reserved gets that, and one that asks for what it cannot have gets the shared
// pool: they are not among the requests.
func (p *Plugin) newcomers(ctx context.Context, pods map[string]*api.PodSandbox, containers []*api.Container) (all []asked) {
	for _, c := range containers {
		pod := pods[c.GetPodSandboxId()]
		if _, has := p.workload(c.GetId()); has || pod == nil || !p.table.has(c.GetId()) {
			continue
		}
		a, err := p.spec(pod, c, p.table.lastSent(c.GetId()).cpus)
		if err == nil && p.isReserved(a.spec.Request.ID, pod.GetUid()) { // it came while the plugin was away
			var w agent.Workload
			if w, err = p.bind(ctx, pod, c, &a); err == nil {
				p.name(c.GetId(), &w)
				continue
			}
			if !errors.As(err, new(*RefusedError)) {
				err = nil // it is placed anew
			}
		}
		if err != nil { // it runs: too late to refuse it
			p.emit(about(Fallback, pod, c, "it runs in the shared pool: %v", err))
			p.table.followPool(c.GetId())
			continue
		}
		p.name(c.GetId(), &agent.Workload{Spec: a.spec})
		all = append(all, a)
	}
	return all
}

// loadRecords notes the workloads that the records have, each with its container or as reserved for one.
// Those of pods that are gone are released.
func (p *Plugin) loadRecords(ctx context.Context, all []agent.Workload) {
	p.mu.Lock()
	clear(p.ids)
	clear(p.names)
	clear(p.reserved)
	p.mu.Unlock()
	var gone []string
	for i := range all {
		w := &all[i]
		pod := w.Spec.Request.Group
		switch {
		case w.Backend != backend:
		case p.table.has(containerOf(w)):
			p.name(containerOf(w), w)
			p.table.applyRecord(w)
		case p.table.lives(pod):
			p.noteReserved(w.ID(), pod)
		default:
			gone = append(gone, w.ID())
		}
	}
	p.releaseReserved(ctx, gone)
}

// nameAll notes of adopted containers whether their places are their pods'.
func (p *Plugin) nameAll(ctx context.Context, containers []string) {
	if len(containers) == 0 {
		return
	}
	s, err := p.node.State(ctx)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range containers {
		n := p.ids[c]
		if g, ok := s.Grant(n.id); ok {
			n.held = held(&agent.Workload{Spec: agent.Spec{Request: g.Request}, Grant: g})
			p.ids[c] = n
		}
	}
}

// adoptClassed is adoptAll; those that cannot have a class go without: they run.
func (p *Plugin) adoptClassed(ctx context.Context, specs []agent.Spec) (all []agent.Refusal, err error) {
	lost, err := tryWithoutClasses(specs, false, func() (err error) {
		all, err = p.adoptAll(ctx, specs)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range lost {
		p.emit(p.table.identity(specs[lost[i].of].Annotations[containerKey]).event(Word, lost[i].text()))
	}
	return all, nil
}

func (p *Plugin) adoptAll(ctx context.Context, specs []agent.Spec) ([]agent.Refusal, error) {
	if len(specs) == 0 {
		return nil, nil
	}
	c, err := p.node.Adopt(ctx, specs)
	if err != nil {
		return nil, err
	}
	if err = c.Enforce(ctx); err != nil {
		return nil, errors.Join(err, c.Abort())
	}
	return c.Refusals(), c.Commit()
}

func (t *table) has(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.containers[id] != nil
}

// runs reports whether a container has been started.
func (t *table) runs(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.containers[id] != nil && t.containers[id].started
}

// starting notes that the runtime starts a container: on the CPUs that its group has, on those that it was sent
// before, or on those that it is sent meanwhile.
func (t *table) starting(id string, is, online cpuset.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[id]; s != nil && !s.started {
		s.mayRunOn(cmp.Or(s.sent.cpus, online).Union(is), time.Now())
		time.AfterFunc(startTimeout, t.wake)
	}
}

// started notes that a container has processes, and their CPUs where these are known: the runtime has applied
// all that it was sent before. abandoned is true if the container has given its place back.
func (t *table) started(id string, is cpuset.Set) (abandoned bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.containers[id]
	if s == nil {
		return false
	}
	abandoned = s.abandoned
	s.started, s.abandoned, s.startingSince, s.goneSince = true, false, time.Time{}, time.Time{}
	if !is.IsEmpty() {
		s.seen, s.sent.cpus = true, is
	}
	t.wake()
	return abandoned
}

// mayRunOn notes CPUs on which a container may be until the runtime tells that it has started it, or applied an
// update that it was asked for. What it was sent longer ago than startTimeout has arrived.
func (s *tracked) mayRunOn(cpus cpuset.Set, at time.Time) {
	if !s.sent.cpus.IsEmpty() && at.Sub(s.startingSince) >= startTimeout {
		s.startCPUs = s.sent.cpus
	}
	s.startingSince, s.startCPUs = at, s.startCPUs.Union(cpus)
}

// resend has a container's CPUs sent again, in the answer to an update of it. The runtime applies that after all
// that the answer says of others, and its handlers may be called before: until it tells that it has, the
// container may be on the CPUs that it had.
func (t *table) resend(id string, online cpuset.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.containers[id]
	if s == nil {
		return
	}
	if s.started {
		s.mayRunOn(cmp.Or(s.sent.cpus, online), time.Now())
		time.AfterFunc(startTimeout, t.wake)
	}
	s.sent = resources{}
}

// keepOnly drops the containers that the runtime does not have, and the update that a former connection has not
// answered.
func (t *table) keepOnly(there map[string]bool, sandboxes map[string]*sandbox) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range sandboxes {
		if was := t.sandboxes[id]; was != nil {
			s.seen, s.goneSince = was.seen, was.goneSince
		}
	}
	t.synced, t.sending, t.doubted, t.sandboxes = true, nil, nil, sandboxes
	t.order = slices.DeleteFunc(t.order, func(s *tracked) bool {
		if there[s.id] {
			return false
		}
		delete(t.containers, s.id)
		return true
	})
}
