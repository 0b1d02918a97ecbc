package nri

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// within runs a decision for at most the budget, or for what is left of it (budgeted). After errTooLate its
// result changes nothing, unless the table had it just before: then send sends it. A decision within another
// one is a part of that.
func (p *Plugin) within(ctx context.Context, decide func(context.Context) error) error {
	if ctx.Value(callKey{}) != nil {
		return decide(ctx)
	}
	c := &call{}
	done := make(chan error, 1)
	left := p.opt.Budget
	if until, ok := ctx.Value(untilKey{}).(time.Time); ok {
		left = min(left, until.Sub(p.now()))
	}
	ctx = context.WithValue(context.WithoutCancel(ctx), callKey{}, c)
	go func() { done <- decide(ctx) }()
	select {
	case err := <-done:
		return err
	case <-p.after(left):
	}
	if c.expire() {
		return errTooLate
	}
	select { // it has committed: its record is being written
	case err := <-done:
		return err
	case <-p.after(p.opt.Budget / 4):
		return errTooLate
	}
}

type untilKey struct{}

// budgeted gives all decisions of a handler one budget together, which begins now.
func (p *Plugin) budgeted(ctx context.Context) context.Context {
	return context.WithValue(ctx, untilKey{}, p.now().Add(p.opt.Budget))
}

// RefusedError is why a container is not to run.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RefusedError) Unwrap() error { return e.Err }

// place places a container: with what it asks for or, where that is not to be had and no annotation requires
// it, with time of the shared pool.
func (p *Plugin) place(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	if had, err := p.restoreRequest(ctx, pod, c); had {
		return err
	}
	asked, err := p.spec(pod, c, cpuset.Set{})
	if err != nil {
		return err
	}
	var w agent.Workload
	whole := p.isReserved(asked.spec.Request.ID, pod.GetUid())
	if !whole {
		if whole, err = p.placeWhole(ctx, pod, c, &asked); err != nil {
			return err
		}
	}
	if whole {
		w, err = p.bind(ctx, pod, c, &asked)
	}
	if !whole || isGone(err) {
		w, err = p.placeSpec(ctx, pod, c, asked.spec, asked.strict)
	}
	if p.fallsBack(&asked, err) {
		p.emit(about(Fallback, pod, c, "time of the shared pool instead of CPUs of its own: %v", err))
		w, err = p.placeSpec(ctx, pod, c, asked.shared(), asked.strict)
	} else if err != nil && asked.required && !errors.Is(err, errTooLate) && !isHeld(err) {
		return &RefusedError{err}
	}
	if err == nil {
		p.attach(ctx, c.GetId(), &w)
	}
	return err
}

// attach notes the workload of a container. If the container ended before the decision was made, its end
// found no workload to release: attach releases it.
func (p *Plugin) attach(ctx context.Context, container string, w *agent.Workload) {
	if p.table.has(container) {
		p.name(container, w)
		if p.table.has(container) {
			return
		}
		p.forget(container)
	}
	if pod := w.Spec.Request.Group; held(w) && p.table.lives(pod) {
		p.noteReserved(w.ID(), pod)
		return
	}
	p.repair(ctx, w.ID()) // it looks for the container again: another one may have the workload by now
}

func isHeld(err error) bool {
	var held *place.HeldError
	return errors.As(err, &held)
}

// fallsBack reports whether a request that was refused becomes one of time of the shared pool.
func (p *Plugin) fallsBack(a *asked, err error) bool {
	return err != nil && !a.required && !errors.Is(err, errTooLate) && !isHeld(err)
}

func (p *Plugin) resize(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	id, ok := p.workload(c.GetId())
	if !ok {
		return nil // it follows the shared pool
	}
	asked, err := p.spec(pod, c, cpuset.Set{})
	if err != nil {
		return err
	}
	asked.spec.Request.ID = id
	held, err := p.node.Get(ctx, id)
	if err != nil {
		return err
	}
	asked.keepClasses(&held)
	if scope := held.Spec.Annotations[scopeKey]; scope != "" {
		asked.spec.Annotations[scopeKey] = scope
	}
	switch {
	case unstarted(&held) && p.table.runs(c.GetId()): // it gets what it asks for, as in restoreRequest
	case unstarted(&held):
		asked.spec = asked.notStarted()
	case held.Spec.Annotations[fallbackKey] != "":
		asked.spec = asked.shared()
	}
	if held.Spec.SameAs(&asked.spec) {
		return nil
	}
	_, err = p.node.Resize(ctx, asked.spec)
	if err != nil && asked.required && !errors.Is(err, errTooLate) {
		return &RefusedError{err}
	}
	return err
}

// release drops a container and releases its place, unless its pod keeps that. A place that cannot be released
// now is released by the next Synchronize, or Reconcile of the node.
func (p *Plugin) release(ctx context.Context, container string) (known bool, err error) {
	known = p.table.has(container)
	p.table.drop(container)
	p.mu.Lock()
	delete(p.retries, container)
	p.mu.Unlock()
	return p.giveBack(ctx, container, known)
}

// giveBack releases the place of a container, if it has one. known is true if it has one, else it is was.
func (p *Plugin) giveBack(ctx context.Context, container string, was bool) (known bool, err error) {
	p.mu.Lock()
	n, ok := p.ids[container]
	p.mu.Unlock()
	if !ok {
		return was, nil
	}
	if n.held && p.table.lives(n.pod) {
		p.noteReserved(n.id, n.pod)
		p.forget(container)
		return true, nil
	}
	err = p.within(ctx, func(ctx context.Context) error { return p.node.Release(ctx, n.id, agent.Keep) })
	if err == nil || isGone(err) {
		p.forget(container)
		return true, nil
	}
	return true, err
}

func (p *Plugin) workload(container string) (id string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.ids[container]
	return n.id, ok
}

// name notes the workload of a container.
func (p *Plugin) name(container string, w *agent.Workload) {
	of := p.table.identity(container)
	if of.pod == "" { // the runtime has not told of it
		of = identityOfID(w.ID())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids[container], p.names[w.ID()] = named{id: w.ID(), of: of, pod: w.Spec.Request.Group, group: w.Spec.Group, held: held(w), classes: p.classes.Of(&w.Spec), limited: p.classes.Limited(&w.Spec), unstarted: unstarted(w)}, container
}

func (p *Plugin) forget(container string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.ids[container]; ok && p.names[n.id] == container {
		delete(p.names, n.id)
	}
	delete(p.ids, container)
	p.drift.Forget(container)
	p.drift.Forget(heldKey(container))
}
