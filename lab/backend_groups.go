package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/proc"
)

// groups is the backend of control groups: one for each role, side by side below
// one of the run's own, so that weights and the idle class act between them.
type groups struct {
	root    *kernel.Root
	undoLog *kernel.UndoLog
	run     cgroup.Group
	roles   []Role // in which order they get their settings
	pids    map[Role]int
	guests  []int       // neighbours that stand in the tenant's group
	joined  bool        // from now on neighbours do
	home    kernel.Plan // back to where this process was before it stepped aside
	// affinity confines the roles where there is no cpuset controller.
	affinity cpuset.Set
	undo     func() error
}

// openGroups makes the run's groups, confined to the shared CPUs. It fails with
// a kernel.NotSupportedError or a permission error where it may not.
func openGroups(root *kernel.Root, host *cgroup.Host, undoLog *kernel.UndoLog, pl places, opt Options) (_ *groups, err error) {
	controllers := []string{cgroup.CPU, cgroup.CPUAcct, cgroup.CPUSet}
	if opt.Groups {
		controllers = append(controllers, cgroup.Memory, cgroup.IO, cgroup.Pressure)
	}
	base, err := host.Base(controllers...)
	if err != nil {
		return nil, err
	}
	g := &groups{
		root: root, undoLog: undoLog, run: base.Child(fmt.Sprintf("berth-lab-%d", os.Getpid())),
		roles: append([]Role{Tenant, Neighbour}, opt.Roles...), pids: map[Role]int{}, undo: func() error { return nil },
	}
	if err := g.run.Has(cgroup.CPU); err != nil && opt.Groups {
		return nil, err
	}
	if opt.Weight > 0 {
		g.roles = append(g.roles, self)
	}
	var names []string
	for _, r := range g.roles {
		names = append(names, string(r))
	}
	plan, err := g.run.Create(names...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if err := g.apply(plan); err != nil {
		return nil, err
	}
	if err := g.confine(pl.shared); err != nil {
		return nil, err
	}
	if opt.Weight > 0 {
		return g, g.stepAside(opt.Weight)
	}
	return g, nil
}

// apply carries out a plan until the groups are closed.
func (g *groups) apply(plan kernel.Plan) error {
	undo, err := kernel.Apply(g.root, plan, g.undoLog)
	if err != nil {
		return err
	}
	before := g.undo
	g.undo = func() error { return errors.Join(undo(), before()) }
	return nil
}

func (g *groups) group(r Role) cgroup.Group { return g.run.Child(string(r)) }

// confine keeps all roles on the shared CPUs. Without a cpuset controller
// they are confined by affinity, as they are attached.
func (g *groups) confine(shared cpuset.Set) error {
	if g.run.Has(cgroup.CPUSet) != nil {
		g.affinity = shared
		return nil
	}
	given := Settings{}
	for _, r := range g.roles {
		given[r] = cgroup.Limits{CPUs: shared}
	}
	plan, err := g.steps(given)
	if err != nil {
		return err
	}
	return g.apply(plan)
}

// stepAside gives the group around those of the roles a CPU weight of its own, and
// puts this process into a group beside them, of five times their weight: so the rest
// of the host takes less part, and the roles hardly delay this process. Much more
// for a group that mostly sleeps would make the others look light to the balancer,
// which would leave CPUs to the rest of the host.
func (g *groups) stepAside(weight int) error {
	const own = 500
	plan, err := g.steps(Settings{Around: {Weight: weight}, self: {Weight: own}})
	if err != nil {
		return err
	}
	attach, err := g.group(self).Attach(os.Getpid())
	if err != nil {
		return err
	}
	if err := g.apply(slices.Concat(plan, attach)); err != nil {
		return err
	}
	for _, step := range attach {
		g.home = append(g.home, kernel.Step{Op: kernel.Attach, Path: step.Back, Back: step.Path})
	}
	return nil
}

// attach moves a process into the group of its role. The generator and an outsider, which are in no
// group, go back to where this process was before it stepped aside: v1 groups have
// no real-time budget, and the generator is to have a real-time policy.
func (g *groups) attach(r Role, pid int) error {
	plan := slices.Clone(g.home)
	for i := range plan {
		plan[i].Value = strconv.Itoa(pid)
	}
	if r != generator && r != Outsider {
		g.pids[r] = pid
		if g.joined && r == Neighbour {
			r = Tenant
			g.guests = append(g.guests, pid)
		}
		if !g.affinity.IsEmpty() {
			if _, err := sched.Set(pid, sched.Attr{Affinity: g.affinity}); err != nil {
				return err
			}
		}
		var err error
		if plan, err = g.group(r).Attach(pid); err != nil {
			return err
		}
	}
	_, err := kernel.Apply(g.root, plan, nil) // the process ends with the round: nothing to restore
	return err
}

func (g *groups) stands(r Role, pid int) error {
	g.pids[r] = pid
	if g.joined && r == Neighbour && !slices.Contains(g.guests, pid) {
		g.guests = append(g.guests, pid)
		return g.move(pid, Tenant)
	}
	return nil
}

// move moves a process and those below it into the group of a role, those included that
// they start meanwhile. One that has ended is where it is.
func (g *groups) move(pid int, to Role) error {
	moved := map[int]bool{}
	for more := true; more; {
		more = false
		for _, p := range tree(pid) {
			if moved[p] {
				continue
			}
			moved[p], more = true, true
			plan, err := g.group(to).Attach(p)
			if err == nil {
				_, err = kernel.Apply(g.root, plan, nil)
			}
			if state, gone := kernel.ReadProcess(g.root.FS(), strconv.Itoa(p)); err != nil && gone == nil && !state.Ended() {
				return err
			}
		}
	}
	return nil
}

// part has the neighbours leave the tenant's group.
func (g *groups) part() error {
	g.joined = false
	var errs []error
	for _, pid := range g.guests {
		errs = append(errs, g.move(pid, Neighbour))
	}
	g.guests = nil
	return errors.Join(errs...)
}

func (g *groups) detach(r Role) { delete(g.pids, r) }

// lasting is nothing: what a group is given, its processes lose with it.
func (g *groups) lasting(Role) string { return "" }

// steps are the writes for the given settings, those of the group around first.
func (g *groups) steps(s Settings) (kernel.Plan, error) {
	var all kernel.Plan
	for _, r := range append([]Role{Around}, g.roles...) {
		l, ok := s[r]
		if !ok {
			continue
		}
		plan, err := g.group(r).Set(l)
		if err != nil {
			return nil, err
		}
		all = append(all, plan...)
	}
	return all, nil
}

func (g *groups) plan(s Settings, together bool) (change, error) {
	plan, err := g.steps(s)
	text := plan.String()
	if together {
		text += fmt.Sprintf("the neighbour joins the tenant in %s\n", g.group(Tenant).Dirs()[0])
	}
	return change{text, func() (func() error, error) {
		undo, err := kernel.Apply(g.root, plan, g.undoLog)
		if err != nil || !together {
			return undo, err
		}
		g.joined = true
		return func() error { return errors.Join(g.part(), undo()) }, nil
	}}, err
}

func (g *groups) knobs() ([]Knob, error) {
	var all []Knob
	for _, r := range g.roles {
		knobs, err := g.group(r).Knobs()
		if err != nil {
			return nil, err
		}
		for _, k := range knobs {
			all = append(all, Knob{Of: string(r), File: k.File, Value: k.Value})
		}
	}
	return all, nil
}

func (g *groups) statistics(r Role, want ...cgroupstat.Signal) (map[watch.Quantity]float64, error) {
	var dirs []cgroupstat.Tree
	for _, t := range g.group(r).Trees() {
		dirs = append(dirs, cgroupstat.Tree{Version: t.Version, Controllers: t.Controllers, Dir: t.Dir})
	}
	return cgroupstat.Values(g.root.FS(), dirs, want...)
}

func (g *groups) usage(r Role) (Usage, error) {
	if g.joined && (r == Tenant || r == Neighbour) {
		return processUsage(g.pids[r])
	}
	told, err := g.statistics(r, cgroupstat.Usage, cgroupstat.Throttling)
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	if used, ok := told[watch.CPUTime]; ok {
		u.CPUSeconds = used
	} else if u, err = processUsage(g.pids[r]); err != nil {
		return u, err
	}
	u.ThrottledSeconds, u.ThrottledPeriods, u.Periods = told[watch.CPUThrottled], int64(told[watch.CPUThrottledPeriods]), int64(told[watch.CPUPeriods])
	return u, nil
}

func (g *groups) used() (float64, error) {
	told, err := g.statistics(Around, cgroupstat.Usage)
	if used, ok := told[watch.CPUTime]; ok || err != nil {
		return used, err
	}
	return processesUsed(g.pids)
}

// processesUsed is the CPU time of the processes of all roles, in seconds.
func processesUsed(pids map[Role]int) (float64, error) {
	total := 0.0
	for _, pid := range pids {
		u, err := processUsage(pid)
		if err != nil {
			return 0, err
		}
		total += u.CPUSeconds
	}
	return total, nil
}

// processUsage is the usage of a process and those below it, and of children that have
// ended, where no group counts it.
func processUsage(pid int) (Usage, error) {
	var cpu time.Duration
	for i, p := range tree(pid) {
		own, children, err := proc.ProcessCPU(os.DirFS("/"), p)
		if err != nil && i == 0 {
			return Usage{}, err
		}
		cpu += own + children
	}
	return Usage{CPUSeconds: cpu.Seconds()}, nil
}

// tree is a process and those below it, by /proc/PID/task/TID/children (proc(5)): far less
// to read than all processes. Without that file it is the process alone.
func tree(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i])) // the pattern is well formed
		for _, name := range lists {
			text, _ := os.ReadFile(name) // a thread that has ended has none
			for word := range strings.FieldsSeq(string(text)) {
				if child, err := strconv.Atoi(word); err == nil {
					all = append(all, child)
				}
			}
		}
	}
	return all
}

// close removes the groups. A child that was killed leaves its group a moment
// later; kernel.Apply's undo waits for that.
func (g *groups) close() error { return g.undo() }
