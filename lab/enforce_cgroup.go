package lab

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/watch/procstat"
)

// groups enforces by control groups: one for each party, side by side below
// one of the run's own, so that weights and the idle class act between them.
type groups struct {
	root    *kernel.Root
	journal *kernel.Journal
	mode    string
	run     cgroup.Group
	order   []party // in which they get their settings
	parties map[party]cgroup.Group
	pids    map[party]int
	// mirrors are the directories of the same groups in hierarchies that only tell:
	// of a hybrid host, the v2 tree has their pressure.
	mirrors map[party][]string
	home    kernel.Plan // to where this process was before it stepped aside
	// affinity confines the parties where there is no cpuset controller.
	affinity cpuset.Set
	undo     func() error
}

// openGroups makes the run's groups, confined to the shared CPUs. It fails with
// a kernel.NotSupportedError or a permission error where it may not.
func openGroups(root *kernel.Root, host *cgroup.Host, journal *kernel.Journal, pl places, others ...party) (*groups, error) {
	base, err := host.Base(cgroup.CPU, cgroup.CPUAcct, cgroup.CPUSet)
	if err != nil {
		return nil, err
	}
	run := base.Child(fmt.Sprintf("berth-lab-%d", os.Getpid()))
	g := &groups{
		root: root, journal: journal, mode: host.Mode(), run: run, order: append([]party{tenantParty, neighbourParty}, others...),
		parties: map[party]cgroup.Group{}, pids: map[party]int{},
	}
	var names []string
	for _, p := range g.order {
		g.parties[p] = run.Child(string(p))
		names = append(names, string(p))
	}
	plan, err := run.Create(names...)
	if err != nil {
		return nil, err
	}
	if g.undo, err = kernel.Apply(root, plan, journal); err != nil {
		return nil, err
	}
	if err := g.confine(pl); err != nil {
		return nil, errors.Join(err, g.undo())
	}
	return g, nil
}

// confine keeps both parties on the shared CPUs. Without a cpuset controller
// they are confined by affinity, as they are admitted.
func (g *groups) confine(pl places) error {
	if g.parties[tenantParty].Has(cgroup.CPUSet) != nil {
		g.affinity = pl.shared
		return nil
	}
	given := map[party]order{}
	for _, p := range g.order {
		given[p] = order{cpus: pl.shared}
	}
	free, err := g.isolate(given)
	if err != nil {
		return err
	}
	remove := g.undo
	g.undo = func() error { return errors.Join(free(), remove()) }
	return nil
}

func (g *groups) about() (name, note string) { return g.mode, "" }

func (g *groups) admit(p party, pid int) error {
	plan, err := g.parties[p].Attach(pid)
	if err != nil {
		return err
	}
	for _, dir := range g.mirrors[p] {
		plan = append(plan, kernel.Step{Op: kernel.Attach, Path: dir + "/cgroup.procs", Value: strconv.Itoa(pid), Back: path.Dir(path.Dir(dir)) + "/cgroup.procs"})
	}
	g.pids[p] = pid
	if !g.affinity.IsEmpty() {
		if _, err := sched.Set(pid, sched.Attr{Affinity: g.affinity}); err != nil {
			return err
		}
	}
	_, err = kernel.Apply(g.root, plan, nil) // the process ends with the run: nothing to give back
	return err
}

func (g *groups) dismiss(p party) { delete(g.pids, p) }

// mirror makes the groups in those hierarchies, too, that none of their controllers
// is in, so that the kernel counts pressure, memory and I/O by them.
func (g *groups) mirror(host *cgroup.Host) error {
	own := g.parties[tenantParty].Dirs()
	rel := g.parties[tenantParty].Name()
	var plan kernel.Plan
	g.mirrors = map[party][]string{}
	for _, h := range host.Hierarchies {
		tells := h.Version == 2 || slices.Contains(h.Controllers, cgroup.Memory) || slices.Contains(h.Controllers, cgroup.IO)
		if !tells || h.ReadOnly || slices.ContainsFunc(own, func(dir string) bool { return strings.HasPrefix(dir, h.Dir+"/") }) {
			continue
		}
		run := path.Join(h.Dir, path.Dir(rel))
		plan = append(plan, kernel.Step{Op: kernel.Mkdir, Path: run})
		for _, p := range g.order {
			dir := path.Join(run, string(p))
			plan = append(plan, kernel.Step{Op: kernel.Mkdir, Path: dir})
			g.mirrors[p] = append(g.mirrors[p], dir)
		}
	}
	undo, err := kernel.Apply(g.root, plan, g.journal)
	if err != nil {
		return err
	}
	remove := g.undo
	g.undo = func() error { return errors.Join(undo(), remove()) }
	return nil
}

// plan is the writes for the given orders, the tenant's first.
func (g *groups) plan(given map[party]order) (kernel.Plan, error) {
	var all kernel.Plan
	for _, p := range g.order {
		o, ok := given[p]
		if !ok {
			continue
		}
		l := cgroup.Limits{Weight: int(o.weight), CPUs: o.cpus, Mems: o.mems}
		if o.idle {
			l.Idle = cgroup.On
		}
		if o.quota > 0 {
			l.Quota, l.Period = o.quota, quotaPeriod
		}
		plan, err := g.parties[p].Set(l)
		if err != nil {
			return nil, err
		}
		all = append(all, plan...)
	}
	return all, nil
}

func (g *groups) isolate(given map[party]order) (undo func() error, err error) {
	plan, err := g.plan(given)
	if err != nil {
		return nil, err
	}
	return kernel.Apply(g.root, plan, g.journal)
}

func (g *groups) preview(given map[party]order) (string, error) {
	plan, err := g.plan(given)
	return plan.String(), err
}

// knobs reads the CPU settings of both groups.
func (g *groups) knobs() ([]Knob, error) {
	var all []Knob
	for _, p := range g.order {
		knobs, err := g.parties[p].Knobs()
		if err != nil {
			return nil, err
		}
		for _, k := range knobs {
			if strings.HasPrefix(k.File, "cpu") {
				all = append(all, Knob{Of: string(p), File: k.File, Value: k.Value})
			}
		}
	}
	return all, nil
}

func (g *groups) usage(p party) (Usage, error) {
	stat, err := g.parties[p].Stat()
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	if stat.CPU != nil {
		u.CPUSeconds = stat.CPU.Seconds()
	} else if u, err = processUsage(g.pids[p]); err != nil {
		return u, err
	}
	if stat.ThrottledTime != nil {
		u.ThrottledSeconds = stat.ThrottledTime.Seconds()
	}
	if stat.Throttled != nil {
		u.ThrottledPeriods = *stat.Throttled
	}
	return u, nil
}

// processUsage is the usage of one process, and of its children that have
// ended, where no group counts it.
func processUsage(pid int) (Usage, error) {
	host := os.DirFS("/")
	own, err := procstat.ProcessCPU(host, pid)
	if err != nil {
		return Usage{}, err
	}
	times, err := procstat.Process(host, pid)
	return Usage{CPUSeconds: own.Seconds() + (times.ChildUser + times.ChildSystem).Seconds()}, err
}

// close removes the groups. A child that was killed leaves its group a moment
// later; kernel.Apply's undo waits for that.
func (g *groups) close() error { return g.undo() }

// openEnforcer opens the best backend that this process may use: control
// groups, else scheduling attributes with the reason why.
func openEnforcer(opt Options, pl places) (enforcer, *kernel.Journal, error) {
	if opt.Unprivileged {
		return openAttributes(pl, "as asked for (--unprivileged)"), nil, nil
	}
	root, err := kernel.Open("/")
	if err != nil {
		return nil, nil, err
	}
	dir := opt.JournalDir
	if dir == "" {
		dir = kernel.JournalDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
	}
	journal, err := kernel.OpenJournal(root, dir, ProgramName)
	if err != nil {
		return nil, nil, err
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, nil, errors.Join(err, journal.Close())
	}
	g, err := openGroups(root, host, journal, pl, opt.others...)
	if err == nil && opt.mirror {
		if err = g.mirror(host); err != nil {
			err = errors.Join(err, g.close())
		}
	}
	switch {
	case err == nil:
		return g, journal, nil
	case errors.Is(err, kernel.ErrNotSupported) || errors.Is(err, os.ErrPermission):
		return openAttributes(pl, err.Error()), journal, nil
	}
	return nil, nil, errors.Join(err, journal.Close())
}
