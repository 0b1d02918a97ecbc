// Package nri places the containers of a Kubernetes node through the node resource
// interface of its container runtime (containerd/nri): it is an agent.Enforcer whose
// answers are those of a plugin's handlers. The new container's CPUs and memory nodes, and
// the updates that take these CPUs from everybody else, go back in one answer, so that no
// exclusive CPU has two users at any instant.
//
// A handler never waits: the runtime handles nothing else meanwhile, and drops a plugin
// that takes longer than its time-out. So a decision has a budget, after which the
// container gets the shared pool; and an update outside of answers is sent by a goroutine
// of its own, while no handler is at work. The runtime does not say which updates failed:
// what is in force is read from the kernel afterwards.
package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

// Options say what a Plugin is. The zero value is the live host under the default policy.
type Options struct {
	// Node opens the node that decides. Its Enforcer, Keep and Events are the plugin's.
	Node agent.Options
	// Rules say which words of pods count.
	Rules podwords.Rules
	// Hints are those that the policy knows; nil is all.
	Hints []string
	// Strict refuses every container of which a word cannot be followed.
	Strict bool
	// Name and Index are the plugin's; "" is "berth" and "50". The runtime calls plugins in
	// the order of their two digits.
	Name, Index string
	// Budget is how long a decision may take until the container gets the shared pool; 0
	// is 1 s. The runtime's own time-out is 2 s unless it is set.
	Budget time.Duration
	// Every is how often what is in force is compared; 0 is 5 s.
	Every time.Duration
	// Effective reads the CPUs on which a control group's processes can run, by its name below
	// the top of the hierarchy; ok is false if it is not there. Nil reads the node's Root.
	Effective func(group string) (cpus cpuset.Set, ok bool)
	// Pods knows exact requests, pod-level resources and priorities of pods; nil is nobody,
	// and what the runtime tells has to do.
	Pods Pods
	// Events is told what happens; nil is nobody. It must neither call the Plugin nor wait:
	// a handler may be at work.
	Events func(Event)
}

// Plugin is the plugin. Its exported methods that take an api.PodSandbox or api.Container
// are the handlers that the stub of containerd/nri calls.
type Plugin struct {
	opt     Options
	node    *agent.Node
	table   *table
	online  cpuset.Set
	threads int // CPUs of a core

	mu    sync.Mutex
	ids   map[string]string          // workloads, by container id
	names map[string]string          // containers, by workload
	told  map[string]map[string]bool // problems that were told, by pod id
	drift desired.Drift[string]      // by container id
	start time.Time

	verifyNow chan struct{}
}

// New opens the node, which no other process may keep.
func New(ctx context.Context, opt Options) (*Plugin, error) {
	opt.Name, opt.Index = cmp.Or(opt.Name, "berth"), cmp.Or(opt.Index, "50")
	opt.Budget, opt.Every = cmp.Or(opt.Budget, time.Second), cmp.Or(opt.Every, 5*time.Second)
	if err := opt.Rules.Validate(); err != nil {
		return nil, err
	}
	p := &Plugin{
		opt: opt, table: newTable(cpuset.Set{}), ids: map[string]string{}, names: map[string]string{}, told: map[string]map[string]bool{},
		start: time.Now(), verifyNow: make(chan struct{}, 1),
	}
	p.drift.Rule = desired.Rule{Limit: 3, Window: int64(time.Minute)}
	o := opt.Node
	o.Keep = true
	o.Enforcer = func(*kernel.Root) (agent.Enforcer, agent.Site, error) {
		return p.table, agent.Site{Backend: "nri"}, nil
	}
	o.Events = func(e agent.Event) { p.tell(Event{Kind: string(e.Kind), Container: e.ID, Text: e.Text}) }
	var err error
	if p.node, err = agent.Open(ctx, o); err != nil {
		return nil, err
	}
	s, err := p.node.State(ctx)
	var all []agent.Workload
	if err == nil {
		all, err = p.node.List(ctx)
	}
	if err == nil && p.opt.Effective == nil {
		p.opt.Effective, err = effectiveOf(opt.Node.Root)
	}
	if err != nil {
		return nil, errors.Join(err, p.node.Close())
	}
	p.online = s.Topology().Machine().Online
	p.threads, _ = s.Topology().ThreadsPerCore()
	p.table.shared, p.table.owned = s.Sharable(), s.Owned()
	for i := range all {
		p.name(containerOf(&all[i]), all[i].ID())
	}
	return p, nil
}

// Close gives the node back. Every container keeps what it has.
func (p *Plugin) Close() error { return p.node.Close() }

func (p *Plugin) tell(e Event) {
	if p.opt.Events != nil {
		p.opt.Events(e)
	}
}

func about(kind string, pod *api.PodSandbox, c *api.Container, format string, args ...any) Event {
	return Event{Kind: kind, Namespace: pod.GetNamespace(), Pod: pod.GetName(), UID: pod.GetUid(), Container: c.GetName(), Text: fmt.Sprintf(format, args...)}
}

// within runs a decision for at most the budget. After errOver its result, if it ever comes,
// changes nothing, unless it was noted in the last instant: then send makes it true.
func (p *Plugin) within(ctx context.Context, decide func(context.Context) error) error {
	c := &call{}
	done := make(chan error, 1)
	ctx = context.WithValue(context.WithoutCancel(ctx), callKey{}, c)
	go func() { done <- decide(ctx) }()
	timer := time.NewTimer(p.opt.Budget)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
	}
	if c.giveUp() {
		return errOver
	}
	select { // it is being written down
	case err := <-done:
		return err
	case <-time.After(p.opt.Budget / 4):
		return errOver
	}
}

// Configure is told the runtime's name. It subscribes to all that the plugin handles.
func (p *Plugin) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	p.tell(Event{Kind: Connected, Text: runtime + " " + version})
	return 0, nil
}

// RunPodSandbox tells once what of a pod's words cannot be followed, and refuses the pod
// if it, or the node, is strict.
func (p *Plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	r := p.words(pod, "")
	if err := p.problems(pod, nil, &r); err != nil {
		return fmt.Errorf("not placed: %w", err)
	}
	return nil
}

// UpdatePodSandbox has what is in force compared: the kubelet may have written to the
// pod's group.
func (p *Plugin) UpdatePodSandbox(context.Context, *api.PodSandbox, *api.LinuxResources, *api.LinuxResources) error {
	p.verifySoon()
	return nil
}

// RemovePodSandbox forgets a pod.
func (p *Plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.told, pod.GetId())
	return nil
}

// CreateContainer places a container. An error refuses it, with its text.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.table.enter()
	defer p.table.leave()
	p.table.add(c.GetId(), groupName(c), resources{}, true)
	refuse := func(err error) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		p.table.drop(c.GetId())
		p.forget(c.GetId())
		return nil, nil, fmt.Errorf("not placed: %w", err)
	}
	err := p.within(ctx, func(ctx context.Context) error { return p.place(ctx, pod, c) })
	var refused *RefusedError
	switch {
	case errors.Is(err, errOver):
		p.table.follow(c.GetId())
		p.tell(about(Late, pod, c, "no decision within %s; it runs in the shared pool", p.opt.Budget))
	case errors.As(err, &refused):
		return refuse(refused.Err)
	case err != nil:
		p.table.follow(c.GetId())
		p.tell(about(Fallback, pod, c, "it runs in the shared pool: %v", err))
	}
	updates, own, busy := p.table.answer(c.GetId(), p.online)
	if busy != nil {
		_, _ = p.release(ctx, c.GetId())
		return refuse(busy)
	}
	adjust := &api.ContainerAdjustment{}
	if !own.cpus.IsEmpty() {
		adjust.SetLinuxCPUSetCPUs(own.cpus.String())
	}
	if !own.mems.IsEmpty() {
		adjust.SetLinuxCPUSetMems(own.mems.String())
	}
	return adjust, updates, nil
}

// RefusedError is why a container is not to run.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RefusedError) Unwrap() error { return e.Err }

// place gives a container its place: what it asks for or, where that is not to be had
// and no word requires it, time of the shared pool.
func (p *Plugin) place(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	asked, err := p.spec(pod, c, cpuset.Set{})
	if err != nil {
		return err
	}
	w, err := p.node.Place(ctx, asked.spec)
	if p.falls(&asked, err) {
		p.tell(about(Fallback, pod, c, "time of the shared pool instead of CPUs of its own: %v", err))
		w, err = p.node.Place(ctx, asked.shared())
	} else if err != nil && asked.required && !errors.Is(err, errOver) {
		return &RefusedError{err}
	}
	if busy := (*BusyError)(nil); errors.As(err, &busy) {
		return &RefusedError{busy}
	}
	if err == nil {
		p.name(c.GetId(), w.ID())
	}
	return err
}

// falls reports whether a wish that was refused becomes time of the shared pool.
func (p *Plugin) falls(a *asked, err error) bool {
	var busy *BusyError
	return err != nil && !a.required && !errors.Is(err, errOver) && !errors.As(err, &busy)
}

// PostStartContainer notes that a container has processes, and has what is in force
// compared.
func (p *Plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.table.started(c.GetId())
	p.verifySoon()
	return nil
}

// UpdateContainer gives a container of which requests or limits change what it asks for
// now. Whatever CPUs the update names, the container gets its own.
func (p *Plugin) UpdateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container, res *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	p.table.enter()
	defer p.table.leave()
	if !p.table.has(c.GetId()) {
		return nil, nil
	}
	err := p.within(ctx, func(ctx context.Context) error { return p.resize(ctx, pod, withResources(c, res)) })
	var refused *RefusedError
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("not resized: %w", refused.Err)
	}
	if err != nil {
		p.tell(about(Fallback, pod, c, "it keeps the CPUs that it has: %v", err))
	}
	p.table.untold(c.GetId()) // the update may name other CPUs: say them again
	updates, _, err := p.table.answer("", p.online)
	return updates, err
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
	if held.Spec.Annotations[fellKey] != "" {
		asked.spec = asked.shared()
	}
	if held.Spec.SameAs(&asked.spec) {
		return nil
	}
	_, err = p.node.Resize(ctx, asked.spec)
	if busy := (*BusyError)(nil); errors.As(err, &busy) || err != nil && asked.required && !errors.Is(err, errOver) {
		return &RefusedError{err}
	}
	return err
}

// StopContainer gives the CPUs of a container back to the others, at once.
func (p *Plugin) StopContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.table.enter()
	defer p.table.leave()
	known, err := p.release(ctx, c.GetId())
	if err != nil {
		p.tell(about(string(agent.Failed), pod, c, "its CPUs are not given back yet: %v", err))
	}
	if !known {
		return nil, nil
	}
	updates, _, err := p.table.answer("", p.online)
	if err != nil { // nothing that is lost: send tries again
		p.tell(about(string(agent.Failed), pod, c, "%v", err))
	}
	return updates, nil
}

// RemoveContainer releases a container that was never stopped.
func (p *Plugin) RemoveContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.table.enter()
	defer p.table.leave()
	if _, err := p.release(ctx, c.GetId()); err != nil {
		p.tell(about(string(agent.Failed), pod, c, "its CPUs are not given back yet: %v", err))
	}
	return nil
}

// release ends a container's place. One that cannot be released now is by the next
// Synchronize, or Reconcile of the node.
func (p *Plugin) release(ctx context.Context, container string) (known bool, err error) {
	known = p.table.has(container)
	p.table.drop(container)
	id, ok := p.workload(container)
	if !ok {
		return known, nil
	}
	err = p.within(ctx, func(ctx context.Context) error { return p.node.Release(ctx, id, agent.Keep) })
	var gone *place.NotHeldError
	if err == nil || errors.As(err, &gone) {
		p.forget(container)
		return true, nil
	}
	return true, err
}

func (p *Plugin) workload(container string) (id string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, ok = p.ids[container]
	return id, ok
}

func (p *Plugin) forget(container string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.names, p.ids[container])
	delete(p.ids, container)
	p.drift.Forget(container)
}

// ValidateContainerAdjustment rejects a creation in which another plugin decides about CPUs
// or memory nodes.
func (p *Plugin) ValidateContainerAdjustment(_ context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	ids := []string{req.GetContainer().GetId()}
	for _, u := range req.GetUpdate() {
		ids = append(ids, u.GetContainerId())
	}
	own := p.opt.Index + "-" + p.opt.Name
	for _, id := range ids {
		cpus, _ := req.GetOwners().CPUSetCPUsOwner(id)
		mems, _ := req.GetOwners().CPUSetMemsOwner(id)
		for _, owner := range []string{cpus, mems} {
			if owner != "" && owner != own {
				return fmt.Errorf("NRI plugin %s sets CPUs or memory nodes of containers, and so does Berth: remove one of them", owner)
			}
		}
	}
	return nil
}

// words reads what a pod says for one of its containers.
func (p *Plugin) words(pod *api.PodSandbox, container string) podwords.Reading {
	of := podwords.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), Labels: pod.GetLabels(), Annotations: pod.GetAnnotations()}
	return podwords.Read(&of, container, podwords.Options{Rules: p.opt.Rules, Hints: p.opt.Hints})
}

// problems tells each problem of a pod once. It is an error if the pod, or the node, is
// strict.
func (p *Plugin) problems(pod *api.PodSandbox, c *api.Container, r *podwords.Reading) error {
	var tell []podwords.Problem
	p.mu.Lock()
	told := p.told[pod.GetId()]
	if told == nil && len(r.Problems) > 0 {
		told = map[string]bool{}
		p.told[pod.GetId()] = told
	}
	for _, problem := range r.Problems {
		if text := problem.Error(); !told[text] {
			told[text] = true
			tell = append(tell, problem)
		}
	}
	p.mu.Unlock()
	for i := range tell {
		p.tell(about(Word, pod, c, "%v", &tell[i]))
	}
	if p.opt.Strict || r.Strict() {
		hard := slices.DeleteFunc(slices.Clone(r.Problems), func(p podwords.Problem) bool { return p.Kind == podwords.Contradiction })
		if err := podwords.Problems(hard); err != nil {
			return &RefusedError{errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))}
		}
	}
	return nil
}
