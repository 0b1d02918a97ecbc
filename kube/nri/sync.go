package nri

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
)

// watched is for how long after an adoption what is in force is compared often.
const watched = 2 * time.Second

// Synchronize adopts the containers that the runtime has: each keeps the CPUs that it runs
// on where that is legal, and whoever has a record keeps what that says. The places of
// containers that are gone are given back first.
func (p *Plugin) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.table.enter()
	defer p.table.leave()
	began := time.Now()
	byID := make(map[string]*api.PodSandbox, len(pods))
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	p.sit(byID, containers)
	p.alignBegins(byID, containers)
	err := p.within(ctx, func(ctx context.Context) error { return p.adopt(ctx, byID, containers) })
	if err != nil {
		p.tell(Event{Kind: string(agent.Failed), Text: "adopt what runs: " + err.Error()})
	}
	for _, c := range containers { // it started meanwhile
		if pod := byID[c.GetPodSandboxId()]; pod != nil && p.gaveUp(c.GetId()) && p.table.runs(c.GetId()) {
			p.tryLater(pod, c)
		}
	}
	updates, _, err := p.table.answer("", p.online)
	p.tell(Event{Kind: Connected, Text: plural(len(containers), "container") + " adopted in " + time.Since(began).Round(time.Millisecond).String()})
	// An update that the former plugin, or the lost connection, had begun may still come.
	for in := watched / 20; in <= watched; in += watched / 10 {
		p.verifyIn(in)
	}
	return updates, err
}

// sit makes the table what the runtime has.
func (p *Plugin) sit(pods map[string]*api.PodSandbox, containers []*api.Container) {
	live := make(map[string]string, len(pods))
	for _, pod := range pods {
		live[pod.GetId()] = pod.GetUid()
	}
	there := make(map[string]bool, len(containers))
	for _, c := range containers {
		if s := c.GetState(); s == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		pod := pods[c.GetPodSandboxId()]
		told, err := inForce(c)
		if err != nil {
			p.tell(about(string(agent.Failed), pod, c, "%v", err))
		}
		there[c.GetId()] = true
		p.table.add(pod, c, told, false)
		// A runtime that was killed amid an update lists what it wanted to write.
		if group := groupName(c); c.GetState() == api.ContainerState_CONTAINER_RUNNING || p.opt.Busy(group) {
			is, _ := p.opt.Effective(group)
			p.table.started(c.GetId(), is)
		} else {
			p.table.starting(c.GetId(), p.online) // maybe
		}
	}
	p.table.keepOnly(there, live)
}

// adopt gives all that run their places, in one change. Those for which there is none, or
// all after an error, follow the shared pool.
func (p *Plugin) adopt(ctx context.Context, pods map[string]*api.PodSandbox, containers []*api.Container) (err error) {
	var came []asked
	defer func() {
		if err == nil {
			return
		}
		for i := range came {
			p.forget(came[i].container())
		}
		for _, c := range containers {
			if _, has := p.workload(c.GetId()); !has && pods[c.GetPodSandboxId()] != nil && p.table.has(c.GetId()) {
				p.tryLater(pods[c.GetPodSandboxId()], c)
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
	p.recall(ctx, held)
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
		p.tell(p.table.whose(a.container()).event(Fallback, "time of the shared pool instead of what it asks for: "+r.Err.Error()))
		specs = append(specs, a.shared())
	}
	if refused, err = p.adoptClassed(ctx, specs); err != nil {
		return err
	}
	p.nameAll(ctx, named)
	for _, r := range refused {
		container := wishes[r.ID].container()
		p.table.follow(container)
		p.forget(container)
	}
	return nil
}

// newcomers are what the containers ask for that have no place yet, each named already. Those whose
// places wait for them take these, and those that ask for what they cannot have follow the shared pool.
func (p *Plugin) newcomers(ctx context.Context, pods map[string]*api.PodSandbox, containers []*api.Container) (all []asked) {
	for _, c := range containers {
		pod := pods[c.GetPodSandboxId()]
		if _, has := p.workload(c.GetId()); has || pod == nil || !p.table.has(c.GetId()) {
			continue
		}
		a, err := p.spec(pod, c, p.table.told(c.GetId()).cpus)
		if err == nil && p.waits(a.spec.Request.ID, pod.GetUid()) { // it came while the plugin was away
			var w agent.Workload
			if w, err = p.take(ctx, pod, c, &a); err == nil {
				p.name(c.GetId(), &w)
				continue
			}
			if !errors.As(err, new(*RefusedError)) {
				err = nil // it is placed anew
			}
		}
		if err != nil { // it runs: too late to refuse it
			p.tell(about(Fallback, pod, c, "it runs in the shared pool: %v", err))
			p.table.follow(c.GetId())
			continue
		}
		p.name(c.GetId(), &agent.Workload{Spec: a.spec})
		all = append(all, a)
	}
	return all
}

// recall notes the workloads that the records have: each with its container, or waiting for
// one. The places of pods that are gone are given back.
func (p *Plugin) recall(ctx context.Context, all []agent.Workload) {
	p.mu.Lock()
	clear(p.ids)
	clear(p.names)
	clear(p.waiting)
	clear(p.lost)
	p.mu.Unlock()
	var gone []string
	for i := range all {
		w := &all[i]
		pod := w.Spec.Request.Group
		switch {
		case w.Backend != backend:
		case p.table.has(containerOf(w)):
			p.name(containerOf(w), w)
			p.table.recall(w)
		case p.table.lives(pod):
			p.wait(w.ID(), pod)
		default:
			gone = append(gone, w.ID())
		}
	}
	p.end(ctx, gone)
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
	lost, err := without(specs, false, func() (err error) {
		all, err = p.adoptAll(ctx, specs)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range lost {
		p.tell(p.table.whose(specs[lost[i].of].Annotations[containerKey]).event(Word, lost[i].text()))
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
	return t.seats[id] != nil
}

// runs reports whether a container has been started.
func (t *table) runs(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seats[id] != nil && t.seats[id].started
}

// starting notes that the runtime starts a container. It starts it on the CPUs that it was told
// before, or on those that it is told meanwhile.
func (t *table) starting(id string, online cpuset.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil && !s.started {
		s.starts, s.begins = time.Now(), cmp.Or(s.told.cpus, online)
		time.AfterFunc(starting, t.wake)
	}
}

// started notes that a container has processes, and that they have these CPUs, if any: all that
// the runtime was told before is done by then. left is true if it has no place any more.
func (t *table) started(id string, is cpuset.Set) (left bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.seats[id]
	if s == nil {
		return false
	}
	left = s.left
	s.started, s.left, s.starts, s.gone = true, false, time.Time{}, time.Time{}
	if !is.IsEmpty() {
		s.seen, s.told.cpus = true, is
	}
	t.wake()
	return left
}

// untold has a container told its CPUs again.
func (t *table) untold(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil {
		s.told = resources{}
	}
}

// keepOnly drops the containers that the runtime does not have, and forgets what was on
// its way to a runtime that is gone.
func (t *table) keepOnly(there map[string]bool, boxes map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.synced, t.sending, t.boxes = true, nil, boxes
	t.line = slices.DeleteFunc(t.line, func(s *seat) bool {
		if there[s.id] {
			return false
		}
		delete(t.seats, s.id)
		return true
	})
}
