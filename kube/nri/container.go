package nri

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

// fallbackKey is the annotation of a workload that has time of the shared pool instead of
// what its pod asked for: its source is what a person wants to read of it.
const fallbackKey = agent.SourcePrefix + "shared pool"

// unstartedKey is the annotation of a workload whose container was created and not started: until the
// container starts it has time of the shared pool, and then what its pod asks for (Plugin.restoreRequest).
const unstartedKey = "unstarted"

// limitKey is the annotation of a workload whose CPU time its batch or mid resources limit, and nobody
// else has limited since: the word that says so.
const (
	limitKey    = agent.SourcePrefix + "cpuLimit"
	midLimitKey = agent.SourcePrefix + "midCPULimit" // so a reading has it
)

// asked is what a container asks for.
type asked struct {
	spec     agent.Spec
	required bool              // time of the shared pool is no substitute
	strict   bool              // nor is anything for what cannot be had
	whole    bool              // it is to be placed with all of its pod
	theirs   []agent.ClassKind // of which it has a class of its runtime
}

func (a *asked) container() string { return a.spec.Annotations[containerKey] }

// shared is the same with time of the shared pool and no conditions.
func (a *asked) shared() agent.Spec {
	s := a.spec
	was := s.Request
	r := place.Request{
		ID: was.ID, Group: was.Group, Namespace: was.Namespace, Labels: was.Labels, Class: was.Class,
		Milli: was.Milli, LimitMilli: was.LimitMilli, Mode: place.Shared, Nodes: was.Nodes, Affinity: was.Affinity,
	}
	s.Request, s.CPUs = r, cpuset.Set{}
	s.Annotations = map[string]string{fallbackKey: "what it asks for was not to be had: " + was.Class.String() + ", mode " + was.Mode.String()}
	for k, v := range a.spec.Annotations {
		s.Annotations[k] = v
	}
	return s
}

// notStarted is shared for a container that was created and not started.
func (a *asked) notStarted() agent.Spec {
	s := a.shared()
	s.Annotations[fallbackKey], s.Annotations[unstartedKey] = "it was created and not started", "true"
	return s
}

// maxID is how long a workload's name may be, so that the name of its record fits, and cutID what
// is left of a longer one before its hash.
const maxID, cutID = 180, 171

// workloadID names a container as a workload: NAMESPACE/POD/CONTAINER, cut and with a hash
// behind it if that is too long.
func workloadID(pod *api.PodSandbox, c *api.Container) string {
	id := pod.GetNamespace() + "/" + pod.GetName() + "/" + c.GetName()
	if len(id) <= maxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return id[:cutID] + "~" + hex.EncodeToString(sum[:4])
}

// spec is what a container asks for. has are the CPUs that it runs on, if it does. A
// *RefusedError is a word that cannot be followed, of a strict pod.
func (p *Plugin) spec(pod *api.PodSandbox, c *api.Container, has cpuset.Set) (a asked, err error) {
	res, role, own := p.resources(pod, c)
	r := p.words(pod, c.GetName())
	base := podwords.Kubernetes(res)
	base.Role = role
	if !own {
		base.Mode = place.Shared
	}
	a.spec = agent.Spec{Group: groupName(c), Prefer: has, Annotations: map[string]string{containerKey: c.GetId()}}
	request := &a.spec.Request
	*request, a.spec.CPUs = r.Apply(base, p.threads)
	for _, s := range r.Sources {
		a.spec.Annotations[agent.SourcePrefix+s.Field] = s.From
	}
	if from := a.spec.Annotations[midLimitKey]; from != "" { // the same word
		delete(a.spec.Annotations, midLimitKey)
		a.spec.Annotations[limitKey] = from
	}
	if f := r.Wish.Fewest; f != nil && *f && request.MaxNodes == 0 {
		request.MaxNodes = p.fewestNodes(request.Whole())
	}
	given := p.table.limit(c.GetId(), extendedLimits(&r, request.Class, c)).milli
	if given > 0 || r.Wish.CPULimit != nil || r.Wish.MidCPULimit != nil { // the runtime lists what is in force: the kubelet may have set another since
		request.LimitMilli = cmp.Or(resourcesOf(pod, c).LimitMilli, given, request.LimitMilli)
	}
	if given == 0 || given != request.LimitMilli {
		delete(a.spec.Annotations, limitKey)
	}
	if p99 := r.Wish.P99; p99 != nil {
		a.spec.P99Seconds = float64(*p99)
	}
	if kinds := r.Wish.Memory; len(kinds) > 0 && r.Wish.Hints["memory.preserve"] != "true" {
		a.spec.NearMems, _ = p.memoryOf(kinds) // there are some, or the word has not been followed
	}
	if err := p.placeNear(&a, &r, pod, c); err != nil {
		return a, err
	}
	p.chooseClasses(&a, &r, c)
	limitPod(&a, &r, pod)
	if err := p.problems(pod, c, &r); err != nil {
		return a, err
	}
	request.ID, request.Group, request.Namespace, request.Labels = p.idOf(pod, c), pod.GetUid(), pod.GetNamespace(), pod.GetLabels()
	request.Explain = true
	a.whole = p.scoped || p.wording.Load().PodScope
	if s := r.Wish.Scope; s != nil {
		a.whole = *s == podwords.PodScope
	}
	a.strict = r.Strict() || p.wording.Load().Strict
	a.required = a.required || r.Required() || a.strict
	if err = a.spec.Validate(); err != nil { // a pod may have labels without end
		a.spec.Request.Labels = nil
		err = a.spec.Validate()
	}
	return a, err
}

// limits are what a container may use beside what the kubelet limits; 0 is none.
type limits struct {
	milli  int   // CPU time, in thousandths of a CPU
	memory int64 // in bytes
}

// limit is what a container has of limits: all of them if it is being created, or is to come. A
// container that runs has what it was created with.
func (t *table) limit(id string, l limits) limits {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.containers[id]
	if s == nil {
		return l
	}
	if s.fresh {
		s.limits = l
	}
	return s.limits
}

// applyRecord notes what only the record of a container says, for a plugin that has started anew: the limit
// that it was created with, and that it gave its CPUs up until it starts.
func (t *table) applyRecord(w *agent.Workload) {
	if w.Spec.Annotations[limitKey] != "" {
		t.limitTo(containerOf(w), w.Spec.Request.LimitMilli)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[containerOf(w)]; s != nil {
		s.abandoned = unstarted(w) && !s.started
	}
}

// limitTo notes another limit of a container's CPU time than that which it was created with.
func (t *table) limitTo(id string, milli int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[id]; s != nil {
		s.limits.milli = milli
	}
}

// limits are those that a container was created with.
func (t *table) limits(id string) limits {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[id]; s != nil {
		return s.limits
	}
	return limits{}
}

// extendedLimits are those of batch and mid resources, which the kubelet does not know: it limits nothing of
// a container that has them. Those of batch hold for class BE, as in koordlet, and those of mid for LS, too; of
// both the smaller. Classes with CPUs of their own have no such resources.
func extendedLimits(r *podwords.Reading, class place.Class, c *api.Container) (l limits) {
	var cpu *place.Milli
	var memory *place.Bytes
	switch class {
	case place.BE:
		cpu, memory = smaller(r.Wish.CPULimit, r.Wish.MidCPULimit), smaller(r.Wish.MemoryLimit, r.Wish.MidMemoryLimit)
	case place.LS:
		cpu, memory = r.Wish.MidCPULimit, r.Wish.MidMemoryLimit
	}
	res := c.GetLinux().GetResources()
	if cpu != nil && res.GetCpu().GetQuota().GetValue() <= 0 {
		l.milli = max(int(*cpu), leastMilli)
	}
	if memory != nil && res.GetMemory().GetLimit().GetValue() <= 0 {
		l.memory = int64(*memory)
	}
	return l
}

// lifted is what an update lifts of the limits that a container was created with and that its pod still has: a
// kubelet that resizes the pod writes none where it knows none.
func (p *Plugin) lifted(pod *api.PodSandbox, c *api.Container, res *api.LinuxResources) (l limits) {
	cpu, memory := res.GetCpu().GetQuota().GetValue() < 0, res.GetMemory().GetLimit().GetValue() < 0
	if !cpu && !memory {
		return l
	}
	has, next := p.table.limits(c.GetId()), withResources(c, res)
	r := p.words(pod, c.GetName())
	base, _, _ := p.resources(pod, next)
	request, _ := r.Apply(podwords.Kubernetes(base), p.threads)
	still := extendedLimits(&r, request.Class, next)
	if cpu && still.milli > 0 {
		l.milli = has.milli
	}
	if memory && still.memory > 0 {
		l.memory = has.memory
	}
	return l
}

// smaller is the smaller of two limits; nil is none.
func smaller[N cmp.Ordered](a, b *N) *N {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

// fewestNodes is on how many NUMA nodes so many CPUs could be, were all of them free.
func (p *Plugin) fewestNodes(cpus int) int {
	for i, size := range p.sizes {
		if cpus -= size; cpus <= 0 {
			return i + 1
		}
	}
	return 0 // no number of them would do
}

// idOf is the name of a container as a workload: that which it has, or one that no container
// of another pod has. A pod that is ending may have the name, too.
func (p *Plugin) idOf(pod *api.PodSandbox, c *api.Container) string {
	if id, ok := p.workload(c.GetId()); ok {
		return id
	}
	id := workloadID(pod, c)
	for _, other := range []string{pod.GetUid(), c.GetId()} {
		if !p.taken(id, pod.GetUid()) {
			break
		}
		id += "~" + other[:min(8, len(other))]
	}
	return id
}

// taken reports whether a name is that of another container, or of a place that another pod
// keeps.
func (p *Plugin) taken(id, pod string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, taken := p.names[id]
	of, kept := p.reserved[id]
	return taken || kept && of != pod
}

// resources are what a container pays for, and what it is in its pod: exactly where the API
// server tells, unless the runtime has been told something else since. own is false if whole
// CPUs of that are time to share all the same.
func (p *Plugin) resources(pod *api.PodSandbox, c *api.Container) (res podwords.Resources, role place.Role, own bool) {
	res = resourcesOf(pod, c)
	info := p.info(pod)
	exact := info.Container(c.GetName())
	if exact == nil {
		return res, place.App, true
	}
	if c.GetLinux() == nil || info.matches(exact, c.GetLinux().GetResources().GetCpu().GetShares().GetValue()) {
		res = exact.Resources
	}
	res.QoS = info.QoS
	if p.scoped { // the policy counts what the pod has
		return res, exact.Role, true
	}
	within, own := info.within(exact, res)
	if p.placer && res.Milli == 0 && info.Milli > 0 { // nor does the kubelet give it CPUs without scope pod
		own = false
	}
	return within, exact.Role, own
}

func sharesOf(milli int) uint64 {
	return uint64(min(max(minShares, milli*sharesPerCPU/1000), maxShares))
}

// groupName is the control group of a container, or a name for one that is not known.
func groupName(c *api.Container) string {
	if group, ok := groupOf(c.GetLinux().GetCgroupsPath()); ok && !agent.IsOwn(group) {
		return group
	}
	return "container/" + c.GetId()
}

// resourcesOf is what a container pays for, by what the runtime is to write. The kubelet
// makes shares of CPU time by rounding down, so that rounding up gives the request back.
func resourcesOf(pod *api.PodSandbox, c *api.Container) podwords.Resources {
	cpu, memory := c.GetLinux().GetResources().GetCpu(), c.GetLinux().GetResources().GetMemory()
	r := podwords.Resources{Milli: milliOf(cpu.GetShares().GetValue())}
	if quota, period := cpu.GetQuota().GetValue(), cpu.GetPeriod().GetValue(); quota > 0 && period > 0 {
		r.LimitMilli = int(min(math.Ceil(float64(quota)*1000/float64(period)), maxMilli))
	}
	r.Memory = max(0, memory.GetLimit().GetValue())
	r.QoS = qosOf(pod, &r)
	return r
}

const (
	sharesPerCPU = 1024
	minShares    = 2       // what the kubelet writes for no request
	maxShares    = 262_144 // and at most, as the kernel takes no more: of 256 CPUs
	maxMilli     = 1_000_000
)

func milliOf(shares uint64) int {
	if shares <= minShares {
		return 0
	}
	return int((min(shares, maxMilli)*1000 + sharesPerCPU - 1) / sharesPerCPU)
}

// qosOf tells the pod's QoS class from the control group that the kubelet made for it or,
// where something else did, from the container's resources.
func qosOf(pod *api.PodSandbox, r *podwords.Resources) place.Class {
	switch parent := pod.GetLinux().GetCgroupParent(); {
	case strings.Contains(parent, "besteffort"):
		return place.BE
	case strings.Contains(parent, "burstable"):
		return place.LS
	case strings.Contains(parent, "kubepods"):
		return place.LSR
	case r.Milli == 0 && r.LimitMilli == 0 && r.Memory == 0:
		return place.BE
	case r.Milli > 0 && r.Milli == r.LimitMilli && r.Memory > 0:
		return place.LSR
	}
	return place.LS
}

// withResources is a container with those of an update; what that leaves out stays.
func withResources(c *api.Container, res *api.LinuxResources) *api.Container {
	next := proto.Clone(c).(*api.Container)
	if next.Linux == nil {
		next.Linux = &api.LinuxContainer{}
	}
	if next.Linux.Resources == nil {
		next.Linux.Resources = &api.LinuxResources{}
	}
	proto.Merge(next.Linux.Resources, res)
	return next
}

// inForce is what the runtime says that a container has.
func inForce(c *api.Container) (r resources, err error) {
	cpu := c.GetLinux().GetResources().GetCpu()
	if r.cpus, err = cpuset.Parse(cpu.GetCpus()); err == nil {
		r.mems, err = cpuset.Parse(cpu.GetMems())
	}
	if err != nil {
		return resources{}, fmt.Errorf("container %s: %w", c.GetId(), err)
	}
	return r, nil
}
