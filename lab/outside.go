package lab

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/watch/proc"
)

// outsider is a tenant that runs already. The lab reads what it uses, and writes nothing
// of it.
type outsider struct {
	pid  int      // its first process; 0 for a group
	dirs []string // of its group, below the root
	name string

	processes []int // as of the last listing
}

// findOutside finds a tenant that runs.
func findOutside(t TenantSpec) (*outsider, error) {
	o := &outsider{pid: t.PID, name: t.String()}
	if t.Group != "" {
		root, err := kernel.Open("/")
		if err != nil {
			return nil, err
		}
		host, err := cgroup.Detect(root)
		if err != nil {
			return nil, err
		}
		for _, h := range host.Hierarchies {
			dir := path.Join(h.Dir, strings.Trim(t.Group, "/"))
			if info, err := fs.Stat(os.DirFS("/"), dir); err == nil && info.IsDir() && dir != h.Dir {
				o.dirs = append(o.dirs, dir)
			}
		}
		if len(o.dirs) == 0 {
			return nil, fmt.Errorf("tenant: cgroup %s: there is no such control group", t.Group)
		}
	}
	if err := o.list(); err != nil {
		return nil, err
	}
	return o, nil
}

// list reads which processes there are.
func (o *outsider) list() (err error) {
	if o.pid != 0 {
		if p, err := kernel.ReadProcess(os.DirFS("/"), strconv.Itoa(o.pid)); err != nil || p.Ended() {
			return fmt.Errorf("tenant: process %d: there is no such process", o.pid)
		}
		o.processes, err = kernel.Descendants(os.DirFS("/"), o.pid)
		return err
	}
	for _, dir := range o.dirs {
		if o.processes, err = cgroup.Processes(os.DirFS("/"), dir); err != nil || len(o.processes) > 0 {
			return err
		}
	}
	return fmt.Errorf("tenant: %s: no process runs in it", o.name)
}

// usage is that of its processes. One that has ended takes its time along unless another
// of them has waited for it.
func (o *outsider) usage() (u Usage, err error) {
	var cpu, waited time.Duration
	for _, pid := range o.processes {
		own, children, err := proc.ProcessCPU(os.DirFS("/"), pid)
		if err != nil {
			continue // it has ended
		}
		wait, _, _ := proc.RunDelay(os.DirFS("/"), pid)
		cpu, waited = cpu+own+children, waited+wait
	}
	return Usage{CPUSeconds: cpu.Seconds(), WaitSeconds: waited.Seconds()}, nil
}

// affinity is where its first process may run.
func (o *outsider) affinity() (cpuset.Set, error) {
	state, err := sched.Get(o.processes[0])
	return state.Affinity, err
}

// beside is a backend for a tenant that runs outside of it.
type beside struct {
	backend
	tenant *outsider
	apart  string // why weights do not act between the two; "" where they do
}

// newBeside says, too, whether weights and the idle class of the lab's group act against the
// tenant: they do between siblings, below the group that both are in.
func newBeside(inner backend, o *outsider) (*beside, error) {
	b := &beside{backend: inner, tenant: o}
	g, ok := inner.(*groups)
	if !ok {
		return b, nil
	}
	host, err := cgroup.Detect(g.root)
	if err != nil {
		return nil, err
	}
	tree, ok := host.Hierarchy(cgroup.CPU)
	if !ok {
		return b, nil
	}
	its, err := cgroup.ReadMembership(g.root.FS(), strconv.Itoa(o.processes[0]))
	if err != nil {
		return nil, fmt.Errorf("group of the tenant: %w", err)
	}
	for _, t := range g.run.Trees() {
		parent := strings.TrimPrefix(path.Dir(t.Dir), tree.Dir)
		for _, m := range its {
			same := t.Version == tree.Version && (m.ID == 0 && t.Version == 2 || slices.Contains(m.Controllers, cgroup.CPU))
			if same && slices.Contains(t.Controllers, cgroup.CPU) && !kernel.Within(path.Clean("/"+m.Path), path.Clean("/"+parent)) {
				b.apart = fmt.Sprintf("the lab makes its groups in %s, where the tenant, in %s, is not", parent, m.Path)
			}
		}
	}
	return b, nil
}

// Together is refused by Spec.Validate: nothing joins the tenant's group.
func (b *beside) plan(s Settings, _ bool) (change, error) {
	to := Settings{}
	for r, l := range s {
		if r == Tenant {
			continue // it stays as it is
		}
		if _, ok := b.backend.(*groups); ok && r == Neighbour {
			if (l.Weight > 0 || l.Idle == cgroup.On) && b.apart != "" {
				return change{}, &kernel.NotSupportedError{
					Feature: "CPU weight against a tenant that runs elsewhere", Reason: b.apart,
					Remedy: "run berth lab as root from a shell beside the tenant's group, or give the tenant to --tenant",
				}
			}
			r = Around // it holds the neighbour alone, and is a sibling of the tenant's
		}
		to[r] = l
	}
	return b.backend.plan(to, false)
}

func (b *beside) usage(r Role) (Usage, error) {
	if r == Tenant {
		return b.tenant.usage()
	}
	return b.backend.usage(r)
}

func (b *beside) used() (float64, error) {
	used, err := b.backend.used()
	if err != nil {
		return 0, err
	}
	its, err := b.tenant.usage()
	return used + its.CPUSeconds, err
}

func (b *beside) stands(r Role, pid int) error {
	if r == Tenant {
		return nil
	}
	return b.backend.stands(r, pid)
}

func (b *beside) knobs() ([]Knob, error) {
	all, err := b.backend.knobs()
	if g, ok := b.backend.(*groups); ok && err == nil {
		around, wrong := g.run.Knobs()
		for _, k := range around {
			all = append(all, Knob{Of: string(Neighbour) + "'s parent", File: k.File, Value: k.Value})
		}
		err = wrong
	}
	return all, err
}
