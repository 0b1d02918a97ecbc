package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/internal/strictyaml"
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

// togetherOf is what a workload receives together with the others of its network class.
func (c ClassConfig) togetherOf(s *Spec) (t traffic.Together) {
	if name := c.ClassOf(NetClass, s); c.Net.Has(name) {
		t = c.Net.TogetherOf(name)
	}
	return t
}

// receiveOf is the limit that a workload has by its network class.
func (c ClassConfig) receiveOf(s *Spec) (l traffic.Limit) {
	if name := c.ClassOf(NetClass, s); c.Net.Has(name) {
		l = c.Net.ReceiveOf(name)
	}
	return l
}

// Limited reports whether a workload has a limit of what it sends or receives, of its own or
// by its network class.
func (c ClassConfig) Limited(s *Spec) bool {
	return !s.Bandwidth.none() || c.receiveOf(s) != traffic.Limit{} || c.togetherOf(s) != traffic.Together{}
}

// LacksBandwidth says why no control group of a host can have a Bandwidth, or a network class:
// a *kernel.NotSupportedError, or nil. The files are those of traffic.Over.
func LacksBandwidth(fsys fs.FS) error {
	if cgroup.Unified(fsys) != "" {
		return traffic.Lacks(fsys)
	}
	return &kernel.NotSupportedError{
		Feature: "network classes", Reason: "cgroup v2 is not mounted, and on v1 no program sees the packets of a group",
		Remedy: "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or mount it beside v1",
	}
}

// netLimit is what a control group may send and receive.
type netLimit struct {
	traffic.Limit
	together traffic.Together // with others
	why      string
	ids      []string // the workloads that it is for
	own      bool     // of a group that Berth makes for it
}

func (l *netLimit) none() bool {
	return l.Limit == traffic.Limit{} && l.together == traffic.Together{}
}

// limitsOf are the limits that a workload takes, by control group. It returns a
// *kernel.NotSupportedError, beside the others, for what cannot be.
func (k *netClasses) limitsOf(w *Workload) (map[string]netLimit, error) {
	if !k.n.opt.Classes.Limited(&w.Spec) || w.State == Reserved {
		return nil, nil
	}
	g, err := k.groupOf(w)
	if err == nil {
		err = traffic.Lacks(k.n.root.FS())
	}
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
			all[around] = netLimit{Limit: own, why: "what its pod may send and receive", ids: []string{w.ID()}}
		}
		own = traffic.Limit{}
	}
	l := netLimit{own.Min(k.n.opt.Classes.receiveOf(&w.Spec)), k.n.opt.Classes.togetherOf(&w.Spec), "what it may send and receive", []string{w.ID()}, g.own}
	if !l.none() {
		all[g.dir] = l
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
			all[dir] = netLimit{l.Min(was.Limit), cmp.Or(was.together, l.together), l.why, append(was.ids, l.ids...), l.own}
		}
	}
	return all, nil
}

// changed are the limits of all workloads, and no limit of the groups that may lose one.
func (k *netClasses) changed(c *Transition, fail func(*Workload, error) error) (map[string]netLimit, error) {
	all, err := k.limited(c.Workloads(), fail)
	if err != nil {
		return nil, err
	}
	for w := range c.Workloads() {
		g, err := k.groupOf(w)
		stays := !g.own || k.n.opt.Classes.tellsApart(&w.Spec)
		if l, is := all[g.dir]; err == nil && stays && (!is || l.none()) {
			all[g.dir] = netLimit{why: "no limit", ids: append(l.ids, w.ID()), own: g.own}
		}
	}
	return all, nil
}

// wantsLimit reports whether a transition asks for what a workload may send and receive.
func (n *Node) wantsLimit(c *Transition, id string) bool {
	was, is := c.Before(id), c.After(id)
	return is != nil && c.asks(id) && (n.opt.Classes.Limited(&is.Spec) || was != nil && n.opt.Classes.Limited(&was.Spec))
}

// renewNet has the workloads' limits, and devices that Berth divides, be by programs of this build of
// Berth's. What could not be renewed is in force as it was.
func (t *transaction) renewNet() {
	renew := func(path string, with func(*kernel.Root, string) error) {
		if err := with(t.n.root, path); err != nil {
			t.n.tell(Failed, "", "/"+path, err.Error())
		}
	}
	limits, _ := (&netClasses{t.n}).limited(t.workloads(), leftOut)
	for _, dir := range slices.Sorted(maps.Keys(limits)) {
		renew(dir, traffic.RenewLimits)
	}
	for s := range t.log.Steps() {
		if _, by := traffic.Divides(s.Path); by == traffic.EDT && s.Op == kernel.Mkdir {
			renew(s.Path, traffic.RenewClasses)
		}
	}
}

// recount has limits that are about some devices count those that have come, or come back, since.
func (k *netClasses) recount(c *Transition) {
	config := k.n.opt.Classes.Net
	if !c.All || !slices.ContainsFunc(config.Names(), func(class string) bool { return config.FromOf(class) != "" }) {
		return
	}
	limits, _ := k.limited(c.Workloads(), leftOut)
	for dir, l := range limits {
		if l.Arrival.Devices == "" && l.together.Devices == "" {
			continue
		}
		if err := traffic.RenewLimits(k.n.root, dir); err != nil {
			k.n.tellOnce(l.ids[0], err.Error())
		}
	}
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
	all, err := k.changed(c, func(w *Workload, err error) error {
		lacks := errors.Is(err, kernel.ErrNotSupported) // a note says so
		switch {
		case c.asks(w.ID()) && (!lacks || !w.Spec.Bandwidth.none()):
			return limitError(w.ID(), err)
		case !lacks:
			k.n.without(NetClass, "", w.ID(), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, dir := range slices.Sorted(maps.Keys(all)) {
		l := all[dir]
		some, err := k.limit(c, dir, &l, before)
		plan = append(plan, some...)
		if err == nil {
			continue
		}
		if i := slices.IndexFunc(l.ids, func(id string) bool { return k.n.wantsLimit(c, id) }); i >= 0 {
			return nil, limitError(l.ids[i], err)
		}
		k.n.without(NetClass, "", l.ids[0], err)
	}
	return plan, nil
}

// limitError is why a workload cannot have a limit.
func limitError(id string, err error) error {
	return &ClassError{Kind: NetClass, ID: id, Limit: true, Err: fmt.Errorf("workload %q: %w", id, err)}
}

// limit are the writes for the limit of one group.
func (k *netClasses) limit(c *Transition, dir string, l *netLimit, before kernel.Plan) (plan kernel.Plan, err error) {
	steps := kernel.Plan{traffic.SetLimit(dir, l.Limit, l.why), traffic.SetTogether(dir, l.together, "what its network class may receive together")}
	_, absent := fs.Stat(k.n.root.FS(), dir)
	switch {
	case absent == nil:
		if l.own && !k.made(c, dir) {
			return nil, errForeign(dir)
		}
	case !errors.Is(absent, fs.ErrNotExist):
		return nil, fmt.Errorf("what it may send and receive: %w", absent)
	case l.none():
		return nil, nil
	case l.own:
		if !slices.ContainsFunc(before, func(s kernel.Step) bool { return s.Op == kernel.Mkdir && s.Path == dir }) {
			plan = append(plan, kernel.Step{Op: kernel.Mkdir, Path: dir, Back: path.Dir(dir) + "/cgroup.procs", Why: l.why})
		}
	case slices.ContainsFunc(l.ids, func(id string) bool { return c.Before(id) != nil }):
		return nil, nil // somebody removed it
	}
	for _, s := range steps {
		same := traffic.Lifts(s) // what a group has that is yet to be made
		if absent == nil {
			if _, same, err = k.n.root.Shows(s); err != nil {
				return nil, fmt.Errorf("what it may send and receive: %w", err)
			}
		}
		if !same && !c.Yielded(s.Path) {
			plan = append(plan, s)
		}
	}
	return plan, nil
}

// tellsApart reports whether a workload's packets are told apart: for a class, or for a limit.
func (c ClassConfig) tellsApart(s *Spec) bool {
	return c.Net.Has(c.ClassOf(NetClass, s)) || c.Limited(s)
}

// joined are the workloads whose processes are to be in a group that tells packets apart.
func (k *netClasses) joined(all iter.Seq[*Workload]) (joined []*Workload) {
	for w := range all {
		if w.State != Reserved && k.n.opt.Classes.tellsApart(&w.Spec) {
			joined = append(joined, w)
		}
	}
	slices.SortFunc(joined, func(a, b *Workload) int { return strings.Compare(a.ID(), b.ID()) })
	return joined
}

// arrivalNotes say of which devices that a class names nothing is counted, the same for all its workloads.
func (k *netClasses) arrivalNotes(name string) (notes []string) {
	config := k.n.opt.Classes.Net
	h, err := traffic.Read(k.n.root.FS(), config)
	if err != nil {
		return []string{fmt.Sprintf("network class %s: it is not known whether %s are there: %v", name, config.FromOf(name), err)}
	}
	for _, e := range strictyaml.Errors(config.Absent(h, name)) {
		notes = append(notes, "network "+e.Err.Error())
	}
	return notes
}

// limitNote says that a workload goes without a limit, and why; "" if it has all.
func (k *netClasses) limitNote(w *Workload) string {
	if _, err := k.limitsOf(w); err != nil {
		return "what it sends and receives has no limit of its own: " + err.Error()
	}
	return ""
}

// socketNotes say which sockets of a workload go without its class and its limit. The kernel tells
// a socket by the group in which it was made (sock_cgroup_data), and one that it accepts by that of
// the listening one.
func (k *netClasses) socketNotes(w *Workload) []string {
	config := k.n.opt.Classes
	if !config.tellsApart(&w.Spec) {
		return nil
	}
	g, err := k.groupOf(w)
	if err != nil {
		return nil
	}
	what, of := "the class", fmt.Sprintf("network class %q", config.ClassOf(NetClass, &w.Spec))
	if !config.Net.Has(config.ClassOf(NetClass, &w.Spec)) {
		what, of = "the limit", "what it sends and receives"
	}
	switch {
	case w.Spec.Descendants && w.Spec.Group == "":
		return []string{fmt.Sprintf("%s: its processes were adopted: connections and listening sockets that they had by then stay without %s; start it with 'berth run' for all to have it", of, what)}
	case w.LateNet && g.own:
		return []string{fmt.Sprintf("%s: it got %s while it ran: connections and listening sockets that it had by then stay without; start it with %[2]s for all to have it", of, what)}
	}
	return nil
}

// respec gives a workload another spec.
func (n *Node) respec(w *Workload, spec Spec) {
	w.LateNet = lateNet(w, n.opt.Classes, &spec, n.opt.Classes)
	w.Spec = spec
}

// lateNet reports whether the packets of a workload are told apart only since it runs, once it has
// a spec and a node has classes in the place of others.
func lateNet(w *Workload, was ClassConfig, spec *Spec, is ClassConfig) bool {
	return is.tellsApart(spec) && (w.LateNet || w.State != Reserved && !was.tellsApart(&w.Spec))
}
