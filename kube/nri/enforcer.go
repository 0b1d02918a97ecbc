package nri

import (
	"context"
	"errors"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// The annotations of a workload: its container's id, and that its place is its pod's.
const (
	containerKey = "container"
	scopeKey     = "scope"
)

// resources are what a container is given. Empty Mems are left as they are.
type resources struct{ cpus, mems cpuset.Set }

// tracked is a container that the runtime has.
type tracked struct {
	id, group string
	of        identity
	want      resources // what it is to have
	sent      resources // what the runtime was sent last, or listed itself; no CPUs means unknown
	since     time.Time // when that was
	limits    limits    // what the answer to its creation limits
	fresh     bool      // its creation is not answered yet
	unplaced  bool      // it has no record, and has the shared pool
	started   bool      // it has had processes
	abandoned bool      // it gave its CPUs back, as nobody started it or it is gone
	yielded   bool      // another writer keeps changing its CPUs: they are left to that one
	came      time.Time // when the plugin first knew of it
	seen      bool      // the kernel has had its group, where this plugin can read it
	goneSince time.Time // when the kernel was first seen without it; zero if it is there

	// While the runtime starts it, or applies an update that it was asked for, its processes may be on any of
	// startCPUs.
	startingSince time.Time // zero if it is neither started nor updated
	startCPUs     cpuset.Set

	before      resources // want before the last transition, if that changed it
	changed     bool
	wasUnplaced bool // unplaced before the last transition
}

// table is the agent.Enforcer of a container runtime: it notes what every container is to have. What
// differs from what the runtime was sent last goes into the answer of the handler at work or, while none
// is, is sent by Plugin.send. The table never calls the runtime: that answers nothing while it waits for a
// handler.
type table struct {
	mu         sync.Mutex
	containers map[string]*tracked // by container id
	order      []*tracked          // the same, in the order of arrival
	synced     bool                // the runtime has listed its containers

	shared    cpuset.Set // the shared pool of the last transition
	contested cpuset.Set // CPUs that are exclusive, or were since the last answer
	owned     cpuset.Set
	sandboxes map[string]*sandbox // by id
	around    *agent.Surroundings // nil if nothing but containers is written
	idle      bool                // pods of best effort are to be
	beside    bool                // there are workloads that are no containers
	failed    func(error)         // gets errors that do not end a transition
	handlers  int                 // how many are at work
	// connection is the number of the runtime's connection: the runtime may drop one while a handler of it is
	// at work, whose answer nobody reads.
	connection int
	// sending is an update that the runtime has not answered yet: by container, the CPUs that it
	// has before and those that it has after.
	sending map[string]cpuset.Set
	// doubted are updates that failed, as sending has one, and doubtedAt is when the last of them did.
	doubted   map[string]cpuset.Set
	doubtedAt time.Time
	wakeup    chan struct{}
}

func newTable(online cpuset.Set) *table {
	return &table{containers: map[string]*tracked{}, sandboxes: map[string]*sandbox{}, shared: online, failed: func(error) {}, wakeup: make(chan struct{}, 1)}
}

// call is one call of a handler, which has a budget; nil is a decision without one. A call either commits or
// expires.
type call struct {
	mu        sync.Mutex
	committed bool // the table has its result
	expired   bool // its budget is used up, and the handler answered without its result
}

type callKey struct{}

// errTooLate is the error of a decision that took longer than its budget.
var errTooLate = errors.New("the time for an answer is over")

func (c *call) commit() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expired {
		return errTooLate
	}
	c.committed = true
	return nil
}

func (c *call) uncommit() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.committed = false
	c.mu.Unlock()
}

// expire ends a call whose budget is used up, unless it has committed.
func (c *call) expire() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired = !c.committed
	return c.expired
}

func containerOf(w *agent.Workload) string { return w.Spec.Annotations[containerKey] }

// Locate implements agent.Enforcer.
func (t *table) Locate(w *agent.Workload, _ iter.Seq[*agent.Workload]) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.Group = w.Spec.Group
	if t.containers[containerOf(w)] == nil {
		return &agent.MissingError{Object: "container " + containerOf(w)}
	}
	return nil
}

// Enforce implements agent.Enforcer. The groups around containers are written without mu: systemd may take
// long to write them, and a handler whose budget is used up answers meanwhile.
func (t *table) Enforce(ctx context.Context, c *agent.Transition) (done agent.Enforced, err error) {
	at, _ := ctx.Value(callKey{}).(*call)
	if err := at.commit(); err != nil {
		return done, err
	}
	if t.around != nil {
		if done, err = t.around.Enforce(c, t.bestEffort(c), t.failed); err != nil {
			at.uncommit()
			return done, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	around, unwant := done.Undo, t.want(c)
	t.wake()
	done.Undo = func() (err error) { // the last first
		t.mu.Lock()
		unwant()
		t.wake()
		t.mu.Unlock()
		if around != nil {
			err = around()
		}
		at.uncommit()
		return err
	}
	return done, nil
}

// want notes what containers are to have after a transition; undo restores what they were to have before.
// The caller of both holds mu.
func (t *table) want(c *agent.Transition) (undo func()) {
	shared, owned := t.shared, t.owned
	for _, s := range t.order {
		s.changed, s.wasUnplaced = false, s.unplaced
	}
	set := func(s *tracked, want resources) {
		if s.want != want {
			s.before, s.want, s.changed = s.want, want, true
		}
	}
	t.beside = false
	for w := range c.Workloads() {
		t.beside = t.beside || t.others(w)
		if s := t.containers[containerOf(w)]; s != nil {
			s.unplaced = false
			set(s, resources{w.CPUs, w.Mems})
		}
	}
	if pool := c.Shared(); !pool.IsEmpty() {
		t.shared = pool
	}
	for _, s := range t.order {
		if s.unplaced {
			set(s, resources{cpus: t.shared})
		}
	}
	t.contested, t.owned = t.contested.Union(c.Contested()), c.Owned()
	return func() {
		t.shared, t.owned = shared, owned
		t.contested = t.contested.Union(owned) // an answer meanwhile may have given them to others
		for _, s := range t.order {
			if s.changed {
				s.want, s.changed = s.before, false
			}
			if s.unplaced = s.unplaced || s.wasUnplaced; s.unplaced {
				s.want = resources{cpus: shared}
			}
		}
	}
}

// Plan implements agent.Planner: what is written besides the runtime's updates.
func (t *table) Plan(c *agent.Transition) (plan kernel.Plan, needed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.around == nil {
		return nil, c.All && !t.reconciled(c), nil
	}
	plan, err = t.around.Plan(c, t.idlePods(c.Workloads()))
	return plan, len(plan) > 0 || c.All && !t.reconciled(c), err
}

// reconciled reports whether every container is to have what a transition says.
func (t *table) reconciled(c *agent.Transition) bool {
	for w := range c.Workloads() {
		if s := t.containers[containerOf(w)]; s != nil && s.want != (resources{w.CPUs, w.Mems}) {
			return false
		}
	}
	return t.shared == c.Shared() && t.owned == c.Owned()
}

// bestEffort is idlePods after a transition.
func (t *table) bestEffort(c *agent.Transition) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.idlePods(c.Workloads())
}

// idlePods are the groups, sorted, of the pods whose containers are all best effort and which the kubelet
// made as best effort: it does not write the CPU share of those again.
func (t *table) idlePods(all iter.Seq[*agent.Workload]) []string {
	if !t.idle {
		return nil
	}
	idle := map[string]bool{}
	for w := range all {
		group := path.Dir(w.Group)
		if !strings.Contains(group, "besteffort") || t.containers[containerOf(w)] == nil {
			continue
		}
		if is, known := idle[group]; is || !known {
			idle[group] = w.Spec.Request.Class == place.BE
		}
	}
	maps.DeleteFunc(idle, func(_ string, is bool) bool { return !is })
	return slices.Sorted(maps.Keys(idle))
}

// held reports whether a workload keeps its place while it has no container: one that was placed with all
// of its pod, and an init container with CPUs of its own, which the pod's other containers use again.
func held(w *agent.Workload) bool {
	return w.Spec.Annotations[scopeKey] != "" || w.Spec.Request.Role == place.Init && w.Grant != nil && !w.Grant.Own.IsEmpty()
}

// Observe implements agent.Enforcer. Until the runtime has listed its containers, every workload is taken
// to be there.
func (t *table) Observe(w *agent.Workload) agent.Observed {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.others(w) {
		return t.around.Observe(w)
	}
	o := agent.Observed{There: !t.synced || t.containers[containerOf(w)] != nil || held(w) && t.living(w.Spec.Request.Group), Limits: w.Spec.Settings()}
	if t.around != nil {
		o.Limits = t.around.Limits(w)
	}
	if o.Limits.Idle == cgroup.On && w.Spec.Limits.Idle != cgroup.On {
		o.Limits.Idle = cgroup.Leave
		if !t.idle || !strings.Contains(path.Dir(w.Group), "besteffort") {
			o.Notes = append(o.Notes, "cpu.idle is not set: on a container's own group it makes every later update of the container fail")
		}
	}
	if s := t.containers[containerOf(w)]; s != nil && s.yielded {
		o.Notes = append(o.Notes, "its CPUs are left to someone else who keeps changing them")
	}
	return o
}

// others reports whether a workload is no container, but a process that berth run placed while no plugin
// ran.
func (t *table) others(w *agent.Workload) bool { return t.around != nil && t.around.Has(w) }

// writes reports whether anything is written besides the runtime's updates.
func (t *table) writes() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.beside || t.idle || t.around != nil && t.around.Confines()
}

// Processes implements agent.Supervisor: those of containers are the runtime's.
func (t *table) Processes(w *agent.Workload) (pids []int, ok bool, err error) {
	if !t.others(w) {
		return nil, false, nil
	}
	return t.around.Processes(w)
}

// Kill implements agent.Supervisor.
func (t *table) Kill(ctx context.Context, w *agent.Workload) error {
	if !t.others(w) {
		return nil
	}
	return t.around.Kill(ctx, w)
}

// Release implements agent.Enforcer: the runtime ends containers itself.
func (t *table) Release(w *agent.Workload, leave bool, log *kernel.UndoLog) error {
	if !t.others(w) {
		return nil
	}
	return t.around.Release(w, leave, log)
}

// Close implements agent.Enforcer.
func (*table) Close() error { return nil }

func (t *table) wake() {
	select {
	case t.wakeup <- struct{}{}:
	default:
	}
}

// enter and leave enclose the work of a handler: meanwhile nothing is sent, so that all changes are in the
// handler's answer. enter returns the number of the handler's connection.
func (t *table) enter() (connection int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handlers++
	return t.connection
}

// connect is enter for the first handler of a connection.
func (t *table) connect() (connection int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handlers++
	t.connection++
	return t.connection
}

func (t *table) leave() { t.mu.Lock(); t.handlers--; t.wake(); t.mu.Unlock() }

// add adds a container, as the runtime has it.
func (t *table) add(pod *api.PodSandbox, c *api.Container, sent resources, fresh bool) {
	id, group, of := c.GetId(), groupName(c), identityOf(pod, c)
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[id]; s != nil {
		s.sent, s.group, s.of, s.fresh = sent, group, of, s.fresh && fresh
		if s.abandoned { // it is adopted again
			s.abandoned, s.came = false, time.Now()
		}
		return
	}
	s := &tracked{id: id, group: group, of: of, sent: sent, want: sent, fresh: fresh, came: time.Now()}
	t.containers[id], t.order = s, append(t.order, s)
}

// identity names a container and its pod by the container's id. It is empty if the runtime does not have the
// container.
func (t *table) identity(id string) identity {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[id]; s != nil {
		return s.of
	}
	return identity{}
}

// lastSent is what the runtime was sent last for a container, or listed itself; empty if that is unknown.
func (t *table) lastSent(id string) resources {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[id]; s != nil {
		return s.sent
	}
	return resources{}
}

func (t *table) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[id]; s != nil {
		delete(t.containers, id)
		t.order = slices.DeleteFunc(t.order, func(o *tracked) bool { return o == s })
	}
}

// followPool gives a container without a record the shared pool, now and whenever that changes, and
// returns it.
func (t *table) followPool(id string) cpuset.Set {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[id]; s != nil {
		s.unplaced, s.want = true, resources{cpus: t.shared}
	}
	return t.shared
}

// groupOf is the control group of a container below the top of a hierarchy, from its
// cgroups path: a path with cgroupfs, SLICE:PREFIX:NAME with systemd. The kubelet makes
// both. ok is false if it is neither.
func groupOf(cgroupsPath string) (group string, ok bool) {
	parts := strings.Split(cgroupsPath, ":")
	if len(parts) != 3 {
		group = strings.Trim(cgroupsPath, "/")
		return group, group != "" && len(parts) == 1 && !strings.Contains("/"+group+"/", "/../")
	}
	slice, isSlice := strings.CutSuffix(parts[0], ".slice")
	if !isSlice || strings.Contains(cgroupsPath, "/") {
		return "", false
	}
	var dirs []string
	for i, c := range slice + "-" {
		if c == '-' && i > 0 {
			dirs = append(dirs, slice[:i]+".slice")
		}
	}
	return strings.Join(dirs, "/") + "/" + parts[1] + "-" + parts[2] + ".scope", true
}
