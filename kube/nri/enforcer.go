package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// containerKey is the annotation of a workload that holds its container's id.
const containerKey = "container"

// resources are what a container is given. Empty Mems are left as they are.
type resources struct{ cpus, mems cpuset.Set }

// seat is a container that the runtime has.
type seat struct {
	id, group string
	want      resources
	told      resources // what the runtime was last told, or said itself; no CPUs is unknown
	fresh     bool      // its creation is not answered yet
	unplaced  bool      // it has no record, and follows the shared pool
	started   bool
	yielded   bool      // somebody else keeps its CPUs
	since     time.Time // of told

	before  resources // what was wanted before the last transition, if that changed it
	changed bool
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
	handlers  int                  // that are at work
	sending   map[string]resources // an update that the runtime has not answered yet
	kick      chan struct{}
}

func newTable(online cpuset.Set) *table {
	return &table{seats: map[string]*seat{}, shared: online, kick: make(chan struct{}, 1)}
}

// BusyError is a change that has to wait for an update that the runtime has not applied
// yet. The kubelet tries a container again by itself.
type BusyError struct{ CPUs cpuset.Set }

func (e *BusyError) Error() string {
	return fmt.Sprintf("CPUs %s are still being taken from other containers; try again", e.CPUs)
}

// call is one call of a handler, which has only so long.
type call struct {
	mu    sync.Mutex
	taken bool // the table has what it came to
	over  bool // its time is up, and it was answered otherwise
}

type callKey struct{}

// errOver is the error of a decision that came too late.
var errOver = errors.New("the time for an answer is over")

func (c *call) take() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return errOver
	}
	c.taken = true
	return nil
}

func (c *call) untake() {
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

// Enforce implements agent.Enforcer.
func (t *table) Enforce(ctx context.Context, c *agent.Transition) (agent.Enforced, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.conflict(c); err != nil {
		return agent.Enforced{}, err
	}
	at, _ := ctx.Value(callKey{}).(*call)
	if at != nil {
		if err := at.take(); err != nil {
			return agent.Enforced{}, err
		}
	}
	shared, owned := t.shared, t.owned
	for _, s := range t.line {
		s.changed = false
	}
	set := func(s *seat, want resources) {
		if s.want != want {
			s.before, s.want, s.changed = s.want, want, true
		}
	}
	for w := range c.Workloads() {
		if s := t.seats[containerOf(w)]; s != nil {
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
	t.wake()
	return agent.Enforced{Undo: func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, s := range t.line {
			if s.changed {
				s.want, s.changed = s.before, false
			}
		}
		t.shared, t.owned = shared, owned
		if at != nil {
			at.untake()
		}
		return nil
	}}, nil
}

// conflict reports exclusive CPUs that an update on its way still gives to somebody else:
// the runtime applies it after the answer of the handler at work.
func (t *table) conflict(c *agent.Transition) error {
	if len(t.sending) == 0 {
		return nil
	}
	after := map[string]cpuset.Set{}
	for w := range c.Workloads() {
		after[containerOf(w)] = w.CPUs
	}
	var bad cpuset.Set
	for id, r := range t.sending {
		bad = bad.Union(r.cpus.Minus(after[id]).Intersect(c.Owned().Minus(t.owned)))
	}
	if bad.IsEmpty() {
		return nil
	}
	return &BusyError{bad}
}

// Observe implements agent.Enforcer. Until the runtime has said what there is, everything
// is taken to be there.
func (t *table) Observe(w *agent.Workload) agent.Observed {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := agent.Observed{There: !t.synced || t.seats[containerOf(w)] != nil, Limits: w.Spec.Settings()}
	if o.Limits.Idle == cgroup.On && w.Spec.Limits.Idle != cgroup.On {
		o.Limits.Idle = cgroup.Leave
		o.Notes = append(o.Notes, "cpu.idle is not set: on a container's own group it makes every later update of the container fail")
	}
	if s := t.seats[containerOf(w)]; s != nil && s.yielded {
		o.Notes = append(o.Notes, "its CPUs are left to someone else who keeps changing them")
	}
	return o
}

// Release implements agent.Enforcer: the runtime ends containers itself.
func (*table) Release(*agent.Workload, bool, *kernel.UndoLog) error { return nil }

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
func (t *table) add(id, group string, told resources, fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil {
		s.told, s.group = told, group
		return
	}
	s := &seat{id: id, group: group, told: told, want: told, fresh: fresh}
	t.seats[id], t.line = s, append(t.line, s)
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

// move is an update for the runtime.
type move struct {
	id   string
	to   *resources // the same of all that go together
	lose bool       // only takes CPUs away
}

// moves brings what the runtime was told nearer to what is wanted, in an order in which no
// exclusive CPU ever has two owners, and notes it as told. Of a container that needs two
// steps it returns the first, and nothing that comes after the second: what is left shows
// at the next time. answered is the container whose creation is answered, "" if none; its
// own resources are not among the moves, and busy is an error if they cannot be had yet.
func (t *table) moves(answered string, online cpuset.Set) (all []move, own resources, busy error) {
	type way struct{ have, want cpuset.Set }
	var assignments []cgroup.Assignment
	var members [][]*seat
	known := map[way]int{}
	for _, s := range t.line {
		if s.fresh && s.id != answered {
			continue // it has nothing yet, and is told by the answer to its creation
		}
		w := way{cmp.Or(s.told.cpus, online), s.want.cpus}
		switch {
		case s.fresh:
			w.have = cpuset.Set{}
		case s.yielded || w.have == w.want && s.told.cpus == w.have && sameMems(s) || w.want.IsEmpty():
			continue
		}
		i, ok := known[w]
		if !ok || s.fresh {
			i = len(assignments)
			assignments, members = append(assignments, cgroup.Assignment{Name: s.id, Have: w.have, Want: w.want}), append(members, nil)
			if !s.fresh {
				known[w] = i
			}
		}
		members[i] = append(members[i], s)
	}
	steps, err := cgroup.Order(assignments, t.contested, t.shared)
	if err != nil {
		return nil, own, err
	}
	now, done := time.Now(), make([]bool, len(assignments))
	all = make([]move, 0, len(t.line))
	tell := func(s *seat, to resources, lose bool) {
		s.told, s.since = to, now
		last := len(all) - 1
		if last < 0 || *all[last].to != to {
			own := to
			all = append(all, move{s.id, &own, lose})
		} else {
			all = append(all, move{s.id, all[last].to, lose})
		}
	}
	for _, step := range steps {
		if done[step.Assignment] {
			break
		}
		done[step.Assignment] = true
		lose := assignments[step.Assignment].Have.Contains(step.CPUs)
		for _, s := range members[step.Assignment] {
			to := resources{step.CPUs, s.want.mems}
			if s.fresh {
				s.told, s.since, s.fresh, own = to, now, false, to
			} else {
				tell(s, to, lose)
			}
		}
	}
	for i, a := range assignments { // those whose memory nodes alone change, or that are as wanted
		for _, s := range members[i] {
			switch {
			case done[i]:
			case s.fresh:
				busy = &BusyError{a.Want}
			case a.Have == a.Want:
				tell(s, s.want, true)
			}
		}
	}
	t.contested = t.owned
	return all, own, busy
}

func sameMems(s *seat) bool { return s.want.mems.IsEmpty() || s.want.mems == s.told.mems }

// answer is moves as the updates of a handler's answer.
func (t *table) answer(created string, online cpuset.Set) ([]*api.ContainerUpdate, resources, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all, own, err := t.moves(created, online)
	return updates(all), own, err
}

// updates are moves as the runtime has them. Those that go together share what they hold.
func updates(all []move) (out []*api.ContainerUpdate) {
	var to *resources
	var linux *api.LinuxContainerUpdate
	for _, m := range all {
		if m.to != to {
			u := &api.ContainerUpdate{}
			u.SetLinuxCPUSetCPUs(m.to.cpus.String())
			if !m.to.mems.IsEmpty() {
				u.SetLinuxCPUSetMems(m.to.mems.String())
			}
			to, linux = m.to, u.Linux
		}
		out = append(out, &api.ContainerUpdate{ContainerId: m.id, Linux: linux})
	}
	return out
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
