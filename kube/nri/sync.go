package nri

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
)

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
	p.sit(containers)
	err := p.within(ctx, func(ctx context.Context) error { return p.adopt(ctx, byID, containers) })
	if err != nil {
		p.tell(Event{Kind: string(agent.Failed), Text: "adopt what runs: " + err.Error()})
	}
	updates, _, err := p.table.answer("", p.online)
	p.tell(Event{Kind: Connected, Text: plural(len(containers), "container") + " adopted in " + time.Since(began).Round(time.Millisecond).String()})
	p.verifySoon()
	return updates, err
}

// sit makes the table what the runtime has.
func (p *Plugin) sit(containers []*api.Container) {
	there := make(map[string]bool, len(containers))
	for _, c := range containers {
		if s := c.GetState(); s == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		told, err := inForce(c)
		if err != nil {
			p.tell(Event{Kind: string(agent.Failed), Container: c.GetName(), Text: err.Error()})
		}
		there[c.GetId()] = true
		p.table.add(c.GetId(), groupName(c), told, false)
		if c.GetState() == api.ContainerState_CONTAINER_RUNNING {
			p.table.started(c.GetId())
		}
	}
	p.table.keepOnly(there)
}

// adopt gives all that run their places, in one change. Those for which there is none, or
// all after an error, follow the shared pool.
func (p *Plugin) adopt(ctx context.Context, pods map[string]*api.PodSandbox, containers []*api.Container) (err error) {
	var named []string // containers
	defer func() {
		if err == nil {
			return
		}
		for _, c := range named {
			p.forget(c)
		}
		for _, c := range containers {
			if _, has := p.workload(c.GetId()); !has {
				p.table.follow(c.GetId())
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
	p.mu.Lock()
	clear(p.ids)
	clear(p.names)
	p.mu.Unlock()
	for i := range held {
		p.name(containerOf(&held[i]), held[i].ID())
	}
	wishes, specs := map[string]*asked{}, []agent.Spec{}
	for _, c := range containers {
		pod := pods[c.GetPodSandboxId()]
		if _, has := p.workload(c.GetId()); has || pod == nil || !p.table.has(c.GetId()) {
			continue
		}
		told, _ := inForce(c)
		a, err := p.spec(pod, c, told.cpus)
		if err != nil { // it runs: too late to refuse it
			p.tell(about(Fallback, pod, c, "it runs in the shared pool: %v", err))
			p.table.follow(c.GetId())
			continue
		}
		wishes[a.spec.Request.ID] = &a
		specs = append(specs, a.spec)
		p.name(c.GetId(), a.spec.Request.ID)
		named = append(named, c.GetId())
	}
	refused, err := p.adoptAll(ctx, specs)
	if err != nil {
		return err
	}
	specs = specs[:0]
	for _, r := range refused {
		p.tell(Event{Kind: Fallback, Container: r.ID, Text: "time of the shared pool instead of what it asks for: " + r.Err.Error()})
		specs = append(specs, wishes[r.ID].shared())
	}
	if refused, err = p.adoptAll(ctx, specs); err != nil {
		return err
	}
	for _, r := range refused {
		container := wishes[r.ID].spec.Annotations[containerKey]
		p.table.follow(container)
		p.forget(container)
	}
	return nil
}

func (p *Plugin) name(container, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids[container], p.names[id] = id, container
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

func (t *table) started(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil {
		s.started = true
	}
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
func (t *table) keepOnly(there map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.synced, t.sending = true, nil
	t.line = slices.DeleteFunc(t.line, func(s *seat) bool {
		if there[s.id] {
			return false
		}
		delete(t.seats, s.id)
		return true
	})
}
