package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
)

// Bandwidth is the most that a workload may send and receive, through all network devices
// together but the loopback device, and beside what its network class allows.
type Bandwidth struct {
	traffic.Limit
	// Around makes it that of the control group around the workload's, with all in it: of the
	// pod that a container is in.
	Around bool `json:"around,omitempty"`
}

func (b Bandwidth) none() bool { return b.Limit == traffic.Limit{} }

// receiveOf is the limit that a workload has by its network class.
func (c ClassConfig) receiveOf(s *Spec) (l traffic.Limit) {
	if name := c.ClassOf(NetClass, s); c.Net.Has(name) {
		l.Receive = c.Net.Classes[name].Receive
	}
	return l
}

// Limited reports whether a workload has a limit of what it sends or receives, of its own or
// by its network class.
func (c ClassConfig) Limited(s *Spec) bool {
	return !s.Bandwidth.none() || c.receiveOf(s) != traffic.Limit{}
}

// LacksBandwidth says why no control group of a host can have a Bandwidth, or a network class:
// a *kernel.NotSupportedError, or nil.
func LacksBandwidth(fsys fs.FS) error {
	if cgroup.Unified(fsys) != "" {
		return nil
	}
	return &kernel.NotSupportedError{
		Feature: "network classes", Reason: "cgroup v2 is not mounted, and on v1 no program sees the packets of a group",
		Remedy: "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or mount it beside v1",
	}
}

// netLimit is what a control group may send and receive.
type netLimit struct {
	traffic.Limit
	why string
	ids []string // the workloads that it is for
}

// limitsOf are the limits that a workload takes, by control group. It returns a
// *kernel.NotSupportedError, beside the others, for what cannot be.
func (k *netClasses) limitsOf(w *Workload) (map[string]netLimit, error) {
	if !k.n.opt.Classes.Limited(&w.Spec) || w.State == Reserved {
		return nil, nil
	}
	g, err := k.groupOf(w)
	if err != nil || k.awaited(w, g) {
		return nil, err
	}
	all := map[string]netLimit{}
	own := w.Spec.Bandwidth.Limit
	if w.Spec.Bandwidth.Around {
		around := path.Dir(g.dir)
		if g.own || !kernel.Within(path.Dir(around), g.top) {
			err = &kernel.NotSupportedError{
				Feature: "a limit of what a pod sends and receives", Reason: "no control group of cgroup v2 is around that of its container alone",
				Remedy: "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1)",
			}
		} else if own != (traffic.Limit{}) {
			all[around] = netLimit{own, "what its pod may send and receive", []string{w.ID()}}
		}
		own = traffic.Limit{}
	}
	if l := own.Min(k.n.opt.Classes.receiveOf(&w.Spec)); l != (traffic.Limit{}) {
		all[g.dir] = netLimit{l, "what it may send and receive", []string{w.ID()}}
	}
	return all, err
}

// limited are the limits of all workloads, by control group. Of one group the smallest holds.
func (k *netClasses) limited(workloads iter.Seq[*Workload], fail func(*Workload, error) error) (map[string]netLimit, error) {
	all := map[string]netLimit{}
	for w := range workloads {
		some, err := k.limitsOf(w)
		if err != nil {
			if err = fail(w, err); err != nil {
				return nil, err
			}
		}
		for dir, l := range some {
			was := all[dir]
			all[dir] = netLimit{l.Min(was.Limit), l.why, append(was.ids, l.ids...)}
		}
	}
	return all, nil
}

// leftOut is for limited where what cannot be is told elsewhere.
func leftOut(*Workload, error) error { return nil }

// plan are the writes for classes of devices, and for limits of groups.
func (k *netClasses) plan(c *Transition) (kernel.Plan, error) {
	plan, err := k.divide(c)
	if err != nil {
		return nil, err
	}
	limits, err := k.limits(c, plan)
	return append(plan, limits...), err
}

// limits are the writes for limits of groups, after those of a plan, which may make some.
func (k *netClasses) limits(c *Transition, before kernel.Plan) (plan kernel.Plan, err error) {
	config := k.n.opt.Classes
	if !c.All && !slices.ContainsFunc(c.focus, func(id string) bool {
		was, is := c.Before(id), c.After(id)
		return was != nil && config.Limited(&was.Spec) || is != nil && config.Limited(&is.Spec)
	}) {
		return nil, nil
	}
	all, err := k.limited(c.Workloads(), func(w *Workload, err error) error {
		if errors.Is(err, kernel.ErrNotSupported) && !(c.asks(w.ID()) && !w.Spec.Bandwidth.none()) {
			return nil // a note says so
		}
		return refusal(NetClass, "", w.ID(), fmt.Errorf("workload %q: %w", w.ID(), err))
	})
	if err != nil {
		return nil, err
	}
	for w := range c.Workloads() { // those that lose one
		if g, err := k.groupOf(w); err == nil && !g.own {
			if _, is := all[g.dir]; !is {
				all[g.dir] = netLimit{why: "no limit"}
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(all)) {
		l := all[dir]
		s := traffic.SetLimit(dir, l.Limit, l.why)
		_, same, err := k.n.root.Shows(s)
		switch absent := errors.Is(err, fs.ErrNotExist); {
		case absent && l.Limit == traffic.Limit{}:
			continue
		case absent && strings.HasPrefix(path.Base(dir), netGroup):
			if !slices.ContainsFunc(before, func(s kernel.Step) bool { return s.Op == kernel.Mkdir && s.Path == dir }) {
				plan = append(plan, kernel.Step{Op: kernel.Mkdir, Path: dir, Back: path.Dir(dir) + "/cgroup.procs", Why: l.why})
			}
		case absent && slices.ContainsFunc(l.ids, func(id string) bool { return c.Before(id) != nil }):
			continue // somebody removed it
		case err != nil && !absent:
			return nil, fmt.Errorf("workloads %s: %w", strings.Join(l.ids, ", "), err)
		}
		if !same && !c.Yielded(s.Path) {
			plan = append(plan, s)
		}
	}
	return plan, nil
}

// joined are the workloads whose processes are to be in a group that tells packets apart.
func (k *netClasses) joined(all iter.Seq[*Workload]) (joined []*Workload) {
	config := k.n.opt.Classes
	for w := range all {
		if w.State != Reserved && (config.Net.Has(config.ClassOf(NetClass, &w.Spec)) || config.Limited(&w.Spec)) {
			joined = append(joined, w)
		}
	}
	slices.SortFunc(joined, func(a, b *Workload) int { return strings.Compare(a.ID(), b.ID()) })
	return joined
}

// limitNote says that a workload goes without a limit, and why; "" if it has all.
func (k *netClasses) limitNote(w *Workload) string {
	if _, err := k.limitsOf(w); err != nil {
		return "what it sends and receives has no limit of its own: " + err.Error()
	}
	return ""
}
