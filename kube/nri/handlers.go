package nri

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"berth.dev/berth/agent"
)

// The handlers, in the order of a pod's life: what the runtime calls, one at a time.

// Configure gets the runtime's name. It subscribes to all events that the plugin handles.
func (p *Plugin) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	p.mu.Lock()
	p.runtime = runtime
	p.groupStarts.reset()
	p.mu.Unlock()
	p.emit(Event{Kind: Connected, Text: runtime + " " + version})
	return 0, nil
}

// RunPodSandbox reports, once, which words of a pod cannot be followed, and refuses the pod if it, or the node,
// is strict.
func (p *Plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.table.addSandbox(pod)
	r := p.words(pod, "")
	if err := p.problems(pod, nil, &r); err != nil {
		return fmt.Errorf("not placed: %w", err)
	}
	return nil
}

// UpdatePodSandbox compares the kernel's CPUs with the wanted ones soon: the kubelet may have written to the
// pod's group.
func (p *Plugin) UpdatePodSandbox(context.Context, *api.PodSandbox, *api.LinuxResources, *api.LinuxResources) error {
	p.verifyIn(2 * settling)
	return nil
}

// RemovePodSandbox forgets a pod.
func (p *Plugin) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	p.table.enter()
	defer p.table.leave()
	p.forgetPod(ctx, pod)
	return nil
}

// CreateContainer places a container. An error refuses it, with its text.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	connection := p.table.enter()
	defer p.table.leave()
	ctx = p.budgeted(ctx)
	p.table.add(pod, c, resources{}, true)
	refuse := func(err error) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		p.table.drop(c.GetId())
		p.forget(c.GetId())
		return nil, nil, fmt.Errorf("not placed: %w", err)
	}
	p.table.addSandbox(pod)
	err := p.within(ctx, func(ctx context.Context) error { return p.place(ctx, pod, c) })
	var refused *RefusedError
	switch {
	case errors.Is(err, errTooLate):
		p.retryLater(pod, c)
		p.emit(about(Late, pod, c, "no decision within %s; it runs in the shared pool until there is one", p.opt.Budget))
	case errors.As(err, &refused):
		p.emit(about(Rejected, pod, c, "%v", refused.Err))
		return refuse(refused.Err)
	case err != nil:
		p.retryLater(pod, c)
		p.emit(about(Fallback, pod, c, "it runs in the shared pool until it can be placed: %v", err))
	default:
		p.initsDone(ctx, pod)
	}
	updates, own, err := p.table.answer(connection, c.GetId(), p.online)
	if errors.Is(err, errDropped) { // it was created without, and the next connection has adopted it
		return nil, nil, err
	}
	if err != nil {
		_, _ = p.release(ctx, c.GetId())
		p.emit(about(Rejected, pod, c, "%v", err))
		return refuse(err)
	}
	adjust := adjustment(own, p.table.limits(c.GetId()))
	if group := p.startGroup(ctx, pod, c); group != "" {
		adjust.SetLinuxRDTClosID(group)
	}
	return adjust, updates, nil
}

// The period of a quota that the kubelet sets, in microseconds, and the least CPU time for which the
// kernel takes a quota of it, in thousandths of a CPU.
const quotaPeriod, leastMilli = 100_000, 10

// adjustment is what a new container is to have.
func adjustment(own resources, l limits) *api.ContainerAdjustment {
	adjust := &api.ContainerAdjustment{}
	if !own.cpus.IsEmpty() {
		adjust.SetLinuxCPUSetCPUs(own.cpus.String())
	}
	if !own.mems.IsEmpty() {
		adjust.SetLinuxCPUSetMems(own.mems.String())
	}
	l.set(adjust)
	return adjust
}

// set writes limits into what the runtime is told of a container.
func (l limits) set(into interface {
	SetLinuxCPUQuota(int64)
	SetLinuxCPUPeriod(int64)
	SetLinuxMemoryLimit(int64)
}) {
	if l.milli > 0 {
		into.SetLinuxCPUQuota(int64(l.milli) * quotaPeriod / 1000)
		into.SetLinuxCPUPeriod(quotaPeriod)
	}
	if l.memory > 0 {
		into.SetLinuxMemoryLimit(l.memory)
	}
}

// withLimits adds limits to what an answer says of a container.
func withLimits(all []*api.ContainerUpdate, id string, l limits) []*api.ContainerUpdate {
	if l == (limits{}) {
		return all
	}
	own := &api.ContainerUpdate{ContainerId: id}
	i := slices.IndexFunc(all, func(u *api.ContainerUpdate) bool { return u.GetContainerId() == id })
	if i < 0 {
		i, all = len(all), append(all, own)
	} else {
		own = proto.Clone(all[i]).(*api.ContainerUpdate) // others may share what it holds
	}
	l.set(own)
	all[i] = own
	return all
}

// StartContainer notes that the runtime is about to start a container: it has read before on which CPUs, and
// updates come too late for its start. The container's control group exists, and gets what its classes say before
// the program begins. An error refuses the start.
func (p *Plugin) StartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	is, _ := p.opt.Effective(groupName(c))
	p.table.starting(c.GetId(), is, p.online)
	p.startedInGroup(pod, c)
	err := p.join(ctx, pod, c)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		p.emit(about(Rejected, pod, c, "%v", refused.Err))
		return fmt.Errorf("not started: %w", refused.Err)
	}
	return nil // it is tried again once it has started
}

// PostStartContainer notes that a container has processes, and on which CPUs.
func (p *Plugin) PostStartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.startedInGroup(pod, c) // a plugin that was away at its start takes it for one that is still to start
	if err := p.join(ctx, pod, c); err != nil {
		p.emit(about(string(agent.Failed), pod, c, "its classes are not in force yet: %v", err))
	}
	is, _ := p.opt.Effective(groupName(c))
	if p.table.started(c.GetId(), is) || p.gaveUp(c.GetId()) { // it has no place, or not what it asks for
		p.retryLater(pod, c)
	}
	p.verifyIn(2 * settling)
	return nil
}

// UpdateContainer gives a container whose requests or limits change what it asks for now. Whatever CPUs the
// update names, the container gets those of its place; and it keeps limits that the kubelet lifts because it
// does not know them.
func (p *Plugin) UpdateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container, res *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	connection := p.table.enter()
	defer p.table.leave()
	if !p.table.has(c.GetId()) {
		return nil, nil
	}
	was, stays := p.table.limits(c.GetId()), p.lifted(pod, c, res)
	if res.GetCpu().GetQuota().GetValue() < 0 && stays.milli == 0 {
		p.table.limitTo(c.GetId(), 0)
	}
	next := withResources(c, res)
	err := p.within(ctx, func(ctx context.Context) error { return p.resize(ctx, pod, next) })
	var refused *RefusedError
	if errors.As(err, &refused) {
		p.table.limitTo(c.GetId(), was.milli)
		return nil, fmt.Errorf("not resized: %w", refused.Err)
	}
	p.retryResized(next)
	if err != nil {
		p.emit(about(Fallback, pod, c, "it keeps the CPUs that it has: %v", err))
	}
	p.table.resend(c.GetId(), p.online) // the update may name other CPUs
	updates, _, err := p.table.answer(connection, "", p.online)
	p.verifyIn(2 * settling)
	return withLimits(updates, c.GetId(), stays), err
}

// PostUpdateContainer notes that the runtime has applied an update of a container, and on which CPUs that is.
func (p *Plugin) PostUpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	if !p.table.runs(c.GetId()) {
		return nil
	}
	is, _ := p.opt.Effective(groupName(c))
	if p.table.started(c.GetId(), is) { // it has no place
		p.retryLater(pod, c)
	}
	return nil
}

// StopContainer gives the CPUs of a container back to the others, at once.
func (p *Plugin) StopContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	connection := p.table.enter()
	defer p.table.leave()
	p.endedUnstarted(pod, c)
	known, err := p.release(ctx, c.GetId())
	if err != nil {
		p.emit(about(string(agent.Failed), pod, c, "its CPUs are not given back yet: %v", err))
	}
	if !known {
		return nil, nil
	}
	updates, _, err := p.table.answer(connection, "", p.online)
	if err != nil && !errors.Is(err, errDropped) { // nothing is lost: send tries again
		p.emit(about(string(agent.Failed), pod, c, "%v", err))
	}
	return updates, nil
}

// RemoveContainer releases a container that was never stopped.
func (p *Plugin) RemoveContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.table.enter()
	defer p.table.leave()
	p.endedUnstarted(pod, c)
	if _, err := p.release(ctx, c.GetId()); err != nil {
		p.emit(about(string(agent.Failed), pod, c, "its CPUs are not given back yet: %v", err))
	}
	return nil
}

// ValidateContainerAdjustment rejects a creation in which another plugin sets CPUs or memory nodes, or a class
// of a kind that the container has from Berth.
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
			if owner, _ := ownerOf(created); owner != "" && owner != own && classes[kind] != "" {
				return fmt.Errorf("NRI plugin %s gives the container a class of its own, and Berth gives it %s class %q: remove one of them", owner, kind, classes[kind])
			}
		}
	}
	return nil
}
