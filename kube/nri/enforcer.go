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

// seat is a container that the runtime has.
type seat struct {
	id, group string
	of        whose
	want      resources
	told      resources // what the runtime was last told, or said itself; no CPUs is unknown
	fresh     bool      // its creation is not answered yet
	limits    limits    // that the answer gives it
	unplaced  bool      // it has no record, and follows the shared pool
	started   bool
	left      bool      // nobody has started it: its place was given back
	yielded   bool      // somebody else keeps its CPUs
	since     time.Time // of told
	came      time.Time // when the plugin first knew of it
	seen      bool      // the kernel has had its group, where this plugin can read it
	gone      time.Time // since when it has not

	// The runtime starts it, on begins or on what it was told meanwhile.
	begins cpuset.Set
	starts time.Time // zero if the runtime does not

	before      resources // what was wanted before the last transition, if that changed it
	changed     bool
	wasUnplaced bool // likewise
}

// table is the third agent.Enforcer: it notes what every container is to have. What
// differs from what the runtime was told goes into the answer of the handler that is at
// work, or else is sent by Plugin.send. It never calls the runtime itself: the runtime
// answers nothing while it waits for a handler.
type table struct {
	mu     sync.Mutex
	seats  map[string]*seat // by container id
	line   []*seat          // the same, in the order of arrival
	synced bool             // the runtime has said what there is

	shared    cpuset.Set // the shared pool of the last transition
	contested cpuset.Set // CPUs that are exclusive, or were since the last answer
	owned     cpuset.Set
	boxes     map[string]string   // UIDs of pods, by the id of a sandbox
	around    *agent.Surroundings // nil if nothing but containers is written
	idle      bool                // pods of best effort are to be
	beside    bool                // there are workloads that are none of containers
	failed    func(error)         // is told what holds nothing up
	handlers  int                 // that are at work
	// sending is an update that the runtime has not answered yet: what each container has
	// before and after it.
	sending map[string]cpuset.Set
	kick    chan struct{}
}

func newTable(online cpuset.Set) *table {
	return &table{seats: map[string]*seat{}, boxes: map[string]string{}, shared: online, failed: func(error) {}, kick: make(chan struct{}, 1)}
}

// call is one call of a handler, which has only so long; nil is none, which has all the time.
type call struct {
	mu    sync.Mutex
	taken bool // the table has what it came to
	over  bool // its time is up, and it was answered otherwise
}

type callKey struct{}

// errOver is the error of a decision that came too late.
var errOver = errors.New("the time for an answer is over")

func (c *call) take() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return errOver
	}
	c.taken = true
	return nil
}

func (c *call) untake() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.taken = false
	c.mu.Unlock()
}

// giveUp ends a call whose time is up, unless the table has its result.
func (c *call) giveUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = !c.taken
	return c.over
}

func containerOf(w *agent.Workload) string { return w.Spec.Annotations[containerKey] }

// Locate implements agent.Enforcer.
func (t *table) Locate(w *agent.Workload, _ iter.Seq[*agent.Workload]) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.Group = w.Spec.Group
	if t.seats[containerOf(w)] == nil {
		return &agent.MissingError{Object: "container " + containerOf(w)}
	}
	return nil
}

// Enforce implements agent.Enforcer. What is around containers is written without mu: systemd, where
// that writes it, may take its time, and a handler whose time is up answers meanwhile.
func (t *table) Enforce(ctx context.Context, c *agent.Transition) (done agent.Enforced, err error) {
	at, _ := ctx.Value(callKey{}).(*call)
	if err := at.take(); err != nil {
		return done, err
	}
	if t.around != nil {
		if done, err = t.around.Enforce(c, t.bestEffort(c), t.failed); err != nil {
			at.untake()
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
		at.untake()
		return err
	}
	return done, nil
}

// want notes what containers are to have by a transition; undo has them want what they did before.
// Both are called with mu.
func (t *table) want(c *agent.Transition) (undo func()) {
	shared, owned := t.shared, t.owned
	for _, s := range t.line {
		s.changed, s.wasUnplaced = false, s.unplaced
	}
	set := func(s *seat, want resources) {
		if s.want != want {
			s.before, s.want, s.changed = s.want, want, true
		}
	}
	t.beside = false
	for w := range c.Workloads() {
		t.beside = t.beside || t.others(w)
		if s := t.seats[containerOf(w)]; s != nil {
			s.unplaced = false
			set(s, resources{w.CPUs, w.Mems})
		}
	}
	if pool := c.Shared(); !pool.IsEmpty() {
		t.shared = pool
	}
	for _, s := range t.line {
		if s.unplaced {
			set(s, resources{cpus: t.shared})
		}
	}
	t.contested, t.owned = t.contested.Union(c.Contested()), c.Owned()
	return func() {
		t.shared, t.owned = shared, owned
		t.contested = t.contested.Union(owned) // what was answered meanwhile may have given them away
		for _, s := range t.line {
			if s.changed {
				s.want, s.changed = s.before, false
			}
			if s.unplaced = s.unplaced || s.wasUnplaced; s.unplaced {
				s.want = resources{cpus: shared}
			}
		}
	}
}

// Plan implements agent.Planner: what is written besides what the runtime is told.
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
		if s := t.seats[containerOf(w)]; s != nil && s.want != (resources{w.CPUs, w.Mems}) {
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

// idlePods are the groups of the pods of which all containers are best effort, and that the
// kubelet made as such: it does not write the CPU share of those again. They are sorted.
func (t *table) idlePods(all iter.Seq[*agent.Workload]) []string {
	if !t.idle {
		return nil
	}
	idle := map[string]bool{}
	for w := range all {
		group := path.Dir(w.Group)
		if !strings.Contains(group, "besteffort") || t.seats[containerOf(w)] == nil {
			continue
		}
		if is, known := idle[group]; is || !known {
			idle[group] = w.Spec.Request.Class == place.BE
		}
	}
	maps.DeleteFunc(idle, func(_ string, is bool) bool { return !is })
	return slices.Sorted(maps.Keys(idle))
}

// held reports whether a workload keeps its place while its container is away: what a pod
// was given as a whole, and CPUs of an init container, which the pod's others use again.
func held(w *agent.Workload) bool {
	return w.Spec.Annotations[scopeKey] != "" || w.Spec.Request.Role == place.Init && w.Grant != nil && !w.Grant.Own.IsEmpty()
}

// Observe implements agent.Enforcer. Until the runtime has said what there is, everything
// is taken to be there.
func (t *table) Observe(w *agent.Workload) agent.Observed {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.others(w) {
		return t.around.Observe(w)
	}
	o := agent.Observed{There: !t.synced || t.seats[containerOf(w)] != nil || held(w) && t.living(w.Spec.Request.Group), Limits: w.Spec.Settings()}
	if t.around != nil {
		o.Limits = t.around.Limits(w)
	}
	if o.Limits.Idle == cgroup.On && w.Spec.Limits.Idle != cgroup.On {
		o.Limits.Idle = cgroup.Leave
		if !t.idle || !strings.Contains(path.Dir(w.Group), "besteffort") {
			o.Notes = append(o.Notes, "cpu.idle is not set: on a container's own group it makes every later update of the container fail")
		}
	}
	if s := t.seats[containerOf(w)]; s != nil && s.yielded {
		o.Notes = append(o.Notes, "its CPUs are left to someone else who keeps changing them")
	}
	return o
}

// others reports whether a workload is none of a container, but one that berth run placed while
// no plugin ran.
func (t *table) others(w *agent.Workload) bool { return t.around != nil && t.around.Has(w) }

// writes reports whether anything is written besides what the runtime is told.
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

// box notes a sandbox of a pod, unbox that it has stopped. A pod may have a new one by then.
func (t *table) box(pod *api.PodSandbox) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.boxes[pod.GetId()] = pod.GetUid()
}

func (t *table) unbox(pod *api.PodSandbox) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.boxes, pod.GetId())
}

// lives reports whether a pod has a sandbox; living is called with mu.
func (t *table) lives(uid string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.living(uid)
}

func (t *table) living(uid string) bool {
	for _, of := range t.boxes {
		if of == uid {
			return true
		}
	}
	return false
}

// Close implements agent.Enforcer.
func (*table) Close() error { return nil }

func (t *table) wake() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// enter and leave are around the work of a handler: meanwhile nothing is sent, so that all
// of it is in the handler's answer.
func (t *table) enter() { t.mu.Lock(); t.handlers++; t.mu.Unlock() }

func (t *table) leave() { t.mu.Lock(); t.handlers--; t.wake(); t.mu.Unlock() }

// add adds a container, as the runtime has it.
func (t *table) add(pod *api.PodSandbox, c *api.Container, told resources, fresh bool) {
	id, group, of := c.GetId(), groupName(c), whoseOf(pod, c)
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil {
		s.told, s.group, s.of, s.fresh = told, group, of, s.fresh && fresh
		if s.left { // it is adopted anew
			s.left, s.came = false, time.Now()
		}
		return
	}
	s := &seat{id: id, group: group, of: of, told: told, want: told, fresh: fresh, came: time.Now()}
	t.seats[id], t.line = s, append(t.line, s)
}

// whose says whose a container is; "" for an event on nobody.
func (t *table) whose(id string) whose {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil {
		return s.of
	}
	return whose{}
}

// told is what a container has by the last that is known.
func (t *table) told(id string) resources {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil {
		return s.told
	}
	return resources{}
}

func (t *table) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil {
		delete(t.seats, id)
		t.line = slices.DeleteFunc(t.line, func(o *seat) bool { return o == s })
	}
}

// follow has a container that has no record follow the shared pool, and returns that.
func (t *table) follow(id string) cpuset.Set {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil {
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
