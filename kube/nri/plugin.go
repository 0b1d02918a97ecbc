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
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Options say what a Plugin is. The zero value is the live host under the default policy.
type Options struct {
	// Node opens the node that decides. Its Enforcer, Keep and Events are the plugin's.
	Node agent.Options
	Words
	// Idle has pods run only when no other wants to whose class is BE and that the kubelet made
	// as best effort: cpu.idle of the pod's group.
	Idle bool
	// Confine are globs of groups that are kept off exclusive CPUs, from the top of the
	// hierarchy on: "system.slice", "*". Of one that holds containers its other groups are
	// confined, sandboxes among them. Protected are globs of those that are not.
	Confine, Protected []string
	// Within are the CPUs of what is confined; empty is all that no container owns.
	Within cpuset.Set
	// Name and Index are the plugin's; "" is "berth" and "50". The runtime calls plugins in
	// the order of their two digits.
	Name, Index string
	// Budget is how long a decision may take until the container gets the shared pool; 0
	// is 1 s. The runtime's own time-out is 2 s unless it is set.
	Budget time.Duration
	// Every is how often what is in force is compared; 0 is 5 s. Rescan is how often it is
	// looked for threads that have come to containers with classes; 0 is 30 s.
	Every, Rescan time.Duration
	// Scale is how often the load of pools is measured whose clocks follow it; 0 is
	// power.ScaleEvery.
	Scale time.Duration
	// Unstarted is how long a container may be created and not started, or gone and not ended,
	// until it has no place any more; 0 is 30 s. It is placed again if it starts after all.
	Unstarted time.Duration
	// Effective reads the CPUs on which a control group's processes can run, by its name below
	// the top of the hierarchy; ok is false if it is not there. Nil reads the node's Root.
	Effective func(group string) (cpus cpuset.Set, ok bool)
	// Busy reports whether a control group has processes. Nil reads the node's Root, or takes it
	// from Effective where that is set.
	Busy func(group string) bool
	// Pods knows exact requests, pod-level resources and priorities of pods; nil is nobody,
	// and what the runtime tells has to do.
	Pods Pods
	// Events is told what happens; nil is nobody. It must neither call the Plugin nor wait:
	// a handler may be at work.
	Events func(Event)
}

// backend is the name of the plugin's way in records.
const backend = "nri"

// Plugin is the plugin. Its exported methods that take an api.PodSandbox or api.Container
// are the handlers that the stub of containerd/nri calls.
type Plugin struct {
	opt     Options
	node    *agent.Node
	table   *table
	online  cpuset.Set
	nodes   cpuset.Set // NUMA nodes with CPUs
	sizes   []int      // how many CPUs of theirs are for workloads, the most first
	threads int        // CPUs of a core
	scoped  bool       // the policy places pods as a whole
	classes agent.ClassConfig
	lacks   map[agent.ClassKind]error // why this host has no classes of a kind
	wording atomic.Pointer[Words]

	mu      sync.Mutex
	ids     map[string]named           // by container id
	names   map[string]string          // containers, by workload
	waiting map[string]string          // UIDs of pods, by workload without a container
	lost    map[string]*later          // by container id
	told    map[string]map[string]bool // problems that were told, by pod id
	drift   desired.Drift[string]      // by container id
	start   time.Time

	verifyNow chan struct{}
}

// New opens the node, which no other process may keep.
func New(ctx context.Context, opt Options) (*Plugin, error) {
	opt.Name, opt.Index = cmp.Or(opt.Name, "berth"), cmp.Or(opt.Index, "50")
	opt.Budget, opt.Every, opt.Unstarted = cmp.Or(opt.Budget, time.Second), cmp.Or(opt.Every, 5*time.Second), cmp.Or(opt.Unstarted, 30*time.Second)
	opt.Rescan, opt.Scale = cmp.Or(opt.Rescan, 30*time.Second), cmp.Or(opt.Scale, power.ScaleEvery)
	var err error
	if opt.Node.Root == nil {
		if opt.Node.Root, err = kernel.Open("/"); err != nil {
			return nil, err
		}
	}
	p := &Plugin{
		opt: opt, table: newTable(cpuset.Set{}), ids: map[string]named{}, names: map[string]string{}, waiting: map[string]string{},
		lost: map[string]*later{}, told: map[string]map[string]bool{},
		start: time.Now(), verifyNow: make(chan struct{}, 1),
	}
	if err := errors.Join(p.SetWords(opt.Words), p.surveyClasses()); err != nil {
		return nil, err
	}
	p.drift.Rule = desired.Rule{Limit: 3, Window: int64(time.Minute)}
	o := opt.Node
	o.Keep = true
	o.Confine, o.Protected = nil, nil // they are the table's
	o.Enforcer = func(root *kernel.Root) (agent.Enforcer, agent.Site, error) {
		site, err := p.surround(root)
		return p.table, site, err
	}
	o.Events = func(e agent.Event) { p.tell(Event{Kind: string(e.Kind), Container: e.ID, Text: e.Text}) }
	if p.node, err = agent.Open(ctx, o); err != nil {
		return nil, err
	}
	s, err := p.node.State(ctx)
	var all []agent.Workload
	if err == nil {
		all, err = p.node.List(ctx)
	}
	if err == nil {
		err = p.read()
	}
	if err != nil {
		return nil, errors.Join(err, p.node.Close())
	}
	placer, ok := o.Policy.(place.PodPlacer)
	p.scoped = ok && placer.PodScope()
	p.online = s.Topology().Machine().Online
	p.nodes = s.Topology().NodesOf(p.online)
	allowed := s.Config().Allowed
	for _, node := range s.Topology().Units(machine.Node) {
		p.sizes = append(p.sizes, node.CPUs.Overlap(&allowed))
	}
	slices.SortFunc(p.sizes, func(a, b int) int { return b - a })
	p.threads, _ = s.Topology().ThreadsPerCore()
	p.table.shared, p.table.owned = s.Sharable(), s.Owned()
	for i := range all {
		if w := &all[i]; p.table.others(w) {
			p.table.beside = true
		} else {
			p.name(containerOf(w), w)
		}
	}
	return p, nil
}

// read sets what reads the kernel's control groups.
func (p *Plugin) read() (err error) {
	effective, busy := p.opt.Effective, p.opt.Busy
	if effective == nil {
		effective, busy, err = readersOf(p.opt.Node.Root)
	} else if busy == nil {
		busy = func(group string) bool { _, ok := effective(group); return ok }
	}
	p.opt.Effective, p.opt.Busy = effective, busy
	return err
}

// surround opens the control groups around containers. Without any, nothing of them is known
// and nothing is to be written.
func (p *Plugin) surround(root *kernel.Root) (agent.Site, error) {
	site := agent.Site{Backend: backend}
	around, err := agent.OpenSurroundings(root, p.opt.Confine, p.opt.Protected, p.opt.Within)
	if errors.Is(err, kernel.ErrNotSupported) && len(p.opt.Confine) == 0 && !p.opt.Idle {
		return site, nil
	}
	if err != nil {
		return site, err
	}
	site.Dirs, site.Around = around.Dirs(), around
	p.table.around, p.table.idle = around, p.opt.Idle
	if why := around.NoIdle(); why != "" && p.opt.Idle {
		p.table.idle = false
		p.tell(Event{Kind: string(agent.Failed), Text: "best effort is not idle: " + why})
	}
	p.table.failed = func(err error) { p.tell(Event{Kind: string(agent.Failed), Text: err.Error()}) }
	return site, nil
}

// Close gives the node back. Every container keeps what it has.
func (p *Plugin) Close() error { return p.node.Close() }

func (p *Plugin) tell(e Event) {
	if p.opt.Events != nil {
		p.opt.Events(e)
	}
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
	p.table.box(pod)
	r := p.words(pod, "")
	if err := p.problems(pod, nil, &r); err != nil {
		return fmt.Errorf("not placed: %w", err)
	}
	return nil
}

// UpdatePodSandbox has what is in force compared: the kubelet may have written to the
// pod's group.
func (p *Plugin) UpdatePodSandbox(context.Context, *api.PodSandbox, *api.LinuxResources, *api.LinuxResources) error {
	p.verifyIn(2 * settling)
	return nil
}

// RemovePodSandbox forgets a pod.
func (p *Plugin) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	p.table.enter()
	defer p.table.leave()
	p.endPod(ctx, pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.told, pod.GetId())
	return nil
}

// CreateContainer places a container. An error refuses it, with its text.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.table.enter()
	defer p.table.leave()
	p.table.add(pod, c, resources{}, true)
	refuse := func(err error) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		p.table.drop(c.GetId())
		p.forget(c.GetId())
		return nil, nil, fmt.Errorf("not placed: %w", err)
	}
	p.table.box(pod)
	err := p.within(ctx, func(ctx context.Context) error { return p.place(ctx, pod, c) })
	var refused *RefusedError
	switch {
	case errors.Is(err, errOver):
		p.tryLater(pod, c)
		p.tell(about(Late, pod, c, "no decision within %s; it runs in the shared pool until there is one", p.opt.Budget))
	case errors.As(err, &refused):
		p.tell(about(Rejected, pod, c, "%v", refused.Err))
		return refuse(refused.Err)
	case err != nil:
		p.tryLater(pod, c)
		p.tell(about(Fallback, pod, c, "it runs in the shared pool until it can be placed: %v", err))
	default:
		p.initsDone(ctx, pod)
	}
	updates, own, err := p.table.answer(c.GetId(), p.online)
	if err != nil {
		_, _ = p.release(ctx, c.GetId())
		p.tell(about(Rejected, pod, c, "%v", err))
		return refuse(err)
	}
	return adjustment(own), updates, nil
}

// adjustment is what a new container is to have.
func adjustment(own resources) *api.ContainerAdjustment {
	adjust := &api.ContainerAdjustment{}
	if !own.cpus.IsEmpty() {
		adjust.SetLinuxCPUSetCPUs(own.cpus.String())
	}
	if !own.mems.IsEmpty() {
		adjust.SetLinuxCPUSetMems(own.mems.String())
	}
	return adjust
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
	var w agent.Workload
	whole := p.waits(asked.spec.Request.ID, pod.GetUid())
	if !whole {
		if whole, err = p.placeWhole(ctx, pod, c, &asked); err != nil {
			return err
		}
	}
	if whole {
		w, err = p.take(ctx, pod, c, &asked)
	}
	if !whole || isGone(err) {
		w, err = p.placeSpec(ctx, pod, c, asked.spec, asked.strict)
	}
	if p.falls(&asked, err) {
		p.tell(about(Fallback, pod, c, "time of the shared pool instead of CPUs of its own: %v", err))
		w, err = p.placeSpec(ctx, pod, c, asked.shared(), asked.strict)
	} else if err != nil && asked.required && !errors.Is(err, errOver) && !isHeld(err) {
		return &RefusedError{err}
	}
	if err == nil {
		p.name(c.GetId(), &w)
	}
	return err
}

func isHeld(err error) bool {
	var held *place.HeldError
	return errors.As(err, &held)
}

// falls reports whether a wish that was refused becomes time of the shared pool.
func (p *Plugin) falls(a *asked, err error) bool {
	return err != nil && !a.required && !errors.Is(err, errOver) && !isHeld(err)
}

// StartContainer notes that the runtime has begun to start a container: what it is told of it
// from now on may come too late. Its control group is there, and its classes are given it
// before its program begins. An error refuses the start.
func (p *Plugin) StartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.table.starting(c.GetId(), p.online)
	err := p.join(ctx, pod, c)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		p.tell(about(Rejected, pod, c, "%v", refused.Err))
		return fmt.Errorf("not started: %w", refused.Err)
	}
	return nil // it is tried again once it has started
}

// PostStartContainer notes that a container has processes, and on which CPUs.
func (p *Plugin) PostStartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	if err := p.join(ctx, pod, c); err != nil {
		p.tell(about(string(agent.Failed), pod, c, "its classes are not in force yet: %v", err))
	}
	is, _ := p.opt.Effective(groupName(c))
	if p.table.started(c.GetId(), is) {
		p.tryLater(pod, c) // its place was given back
	}
	p.verifyIn(2 * settling)
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
	asked.keepClasses(&held)
	if held.Spec.Annotations[fellKey] != "" {
		asked.spec = asked.shared()
	}
	if held.Spec.SameAs(&asked.spec) {
		return nil
	}
	_, err = p.node.Resize(ctx, asked.spec)
	if err != nil && asked.required && !errors.Is(err, errOver) {
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

// release ends a container's place, unless that is its pod's. One that cannot be released now
// is by the next Synchronize, or Reconcile of the node.
func (p *Plugin) release(ctx context.Context, container string) (known bool, err error) {
	known = p.table.has(container)
	p.table.drop(container)
	return p.giveBack(ctx, container, known)
}

// giveBack ends the place of a container, if it has one. known is was, or that.
func (p *Plugin) giveBack(ctx context.Context, container string, was bool) (known bool, err error) {
	p.mu.Lock()
	n, ok := p.ids[container]
	delete(p.lost, container)
	p.mu.Unlock()
	if !ok {
		return was, nil
	}
	if n.held && p.table.lives(n.pod) {
		p.wait(n.id, n.pod)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids[container], p.names[w.ID()] = named{id: w.ID(), pod: w.Spec.Request.Group, held: held(w), classes: p.classes.Of(&w.Spec), limited: p.classes.Limited(&w.Spec)}, container
}

func (p *Plugin) forget(container string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.ids[container]; ok && p.names[n.id] == container {
		delete(p.names, n.id)
	}
	delete(p.ids, container)
	p.drift.Forget(container)
}

// ValidateContainerAdjustment rejects a creation in which another plugin decides about CPUs
// or memory nodes, or about a class of a kind that the container has of Berth.
func (p *Plugin) ValidateContainerAdjustment(_ context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	created := req.GetContainer().GetId()
	ids := []string{created}
	for _, u := range req.GetUpdate() {
		ids = append(ids, u.GetContainerId())
	}
	owners, own := req.GetOwners(), p.opt.Index+"-"+p.opt.Name
	for _, id := range ids {
		cpus, _ := owners.CPUSetCPUsOwner(id)
		mems, _ := owners.CPUSetMemsOwner(id)
		for _, owner := range []string{cpus, mems} {
			if owner != "" && owner != own {
				return fmt.Errorf("NRI plugin %s sets CPUs or memory nodes of containers, and so does Berth: remove one of them", owner)
			}
		}
	}
	p.mu.Lock()
	classes := p.ids[created].classes
	p.mu.Unlock()
	for kind, of := range map[agent.ClassKind][]func(string) (string, bool){
		agent.CacheClass: {owners.RdtClassOwner, owners.RdtClosIDOwner, owners.RdtSchemataOwner},
		agent.IOClass:    {owners.BlockioClassOwner},
	} {
		for _, ownerOf := range of {
			if owner, _ := ownerOf(created); owner != "" && classes[kind] != "" {
				return fmt.Errorf("NRI plugin %s gives the container a class of its own, and Berth gives it %s class %q: remove one of them", owner, kind, classes[kind])
			}
		}
	}
	return nil
}
