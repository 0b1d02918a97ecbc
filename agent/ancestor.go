package agent

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// A workload whose group Berth did not make may lie in groups that are narrower than what it
// is to have: a pod, a QoS class, a slice. They are planned with it: each has what it had
// before Berth and, beside that, what the workloads in it have.

// ancestor is one set of a group that holds a workload's group.
type ancestor struct {
	file       string
	have, want cpuset.Set
}

// ancestorDirs are the directories of the groups between the base and the groups of workloads
// that Berth did not make.
func (g *groups) ancestorDirs(records map[string]*record) map[string]bool {
	dirs := map[string]bool{}
	for _, b := range records {
		if b.Workload.made() {
			continue
		}
		for dir := path.Dir(g.cpusetDir(b.Workload)); dir != g.dir && kernel.Within(dir, g.dir) && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	return dirs
}

// ancestors are the sets to change around the workloads that a transition is about or
// moves, outer ones first.
func (g *groups) ancestors(c *Transition) ([]ancestor, error) {
	moved := map[string]*record{}
	for _, records := range []map[string]*record{c.from.records, c.to.records} {
		for id, b := range records {
			if b.Workload.made() {
				continue
			}
			if is := c.to.records[id]; c.all || is == nil || is.Workload.State != Reserved && !c.stands(id) {
				moved[id] = b
			}
		}
	}
	dirs := g.ancestorDirs(moved)
	if len(dirs) == 0 {
		return nil, nil
	}
	cpus, mems := map[string]cpuset.Set{}, map[string]cpuset.Set{}
	for _, id := range c.present() {
		w := c.to.records[id].Workload
		for dir := path.Dir(g.cpusetDir(w)); dir != g.dir && kernel.Within(dir, g.dir); dir = path.Dir(dir) {
			if dirs[dir] {
				cpus[dir], mems[dir] = cpus[dir].Union(w.CPUs), mems[dir].Union(w.Mems)
			}
		}
	}
	var all []ancestor
	for _, of := range []struct {
		file string
		sets map[string]cpuset.Set
	}{{memsFile, mems}, {cpusFile, cpus}} {
		for dir, set := range of.sets {
			name := dir + "/" + of.file
			have, err := g.set(name)
			if unreachable(err) || err == nil && (have.IsEmpty() || c.yielded(name)) {
				continue // it has what is around it, or is another's
			}
			if err != nil {
				return nil, err
			}
			had := have
			if text, ok := c.Log.Original(name); ok && text != "" {
				if had, err = cpuset.Parse(text); err != nil {
					return nil, err
				}
			}
			if want := had.Union(set); want != have && !set.IsEmpty() {
				all = append(all, ancestor{name, have, want})
			}
		}
	}
	slices.SortFunc(all, func(a, b ancestor) int {
		return cmp.Or(strings.Count(a.file, "/")-strings.Count(b.file, "/"), strings.Compare(a.file, b.file))
	})
	return all, nil
}

// widen plans that ancestors have room for what is in them and for what comes. A v2 group
// in them without a set of its own would come onto the new CPUs, too: it is kept off
// exclusive ones first.
func (g *groups) widen(c *Transition, all []ancestor) (plan kernel.Plan, err error) {
	taken := c.to.state.Owned()
	for _, a := range all {
		both := a.have.Union(a.want)
		if both == a.have {
			continue
		}
		if g.version == 2 && path.Base(a.file) == cpusFile && both.Minus(a.have).Overlaps(taken) {
			pins, err := g.pin(c, path.Dir(a.file), g.allowed.Minus(taken))
			if err != nil {
				return nil, err
			}
			plan = append(plan, pins...)
		}
		plan = append(plan, kernel.Step{Path: a.file, Value: both.String(), Format: kernel.List, Why: "a workload lies in it"})
	}
	return plan, nil
}

// narrow plans that ancestors have no more than they are to, inner ones first.
func narrow(all []ancestor) (plan kernel.Plan) {
	for _, a := range slices.Backward(all) {
		if a.have.Union(a.want) != a.want {
			plan = append(plan, kernel.Step{Path: a.file, Value: a.want.String(), Format: kernel.List, Why: "a workload has left it"})
		}
	}
	return plan
}

// pin plans that the groups in one that is about to be widened have a set.
func (g *groups) pin(c *Transition, dir string, set cpuset.Set) (plan kernel.Plan, err error) {
	kept, err := g.kept(c)
	if err != nil {
		return nil, err
	}
	names, err := g.glob(strings.TrimPrefix(dir, g.dir+"/") + "/*")
	if err != nil {
		return nil, err
	}
	dirs := map[string]bool{}
	for _, name := range names {
		if err := g.expand(name, kept, dirs); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		has, err := g.set(name + "/" + cpusFile)
		if unreachable(err) || err == nil && !has.IsEmpty() {
			continue
		}
		if err != nil {
			return nil, err
		}
		plan = append(plan, kernel.Step{Path: name + "/" + cpusFile, Value: set.String(), Format: kernel.List, Why: "kept off exclusive CPUs"})
	}
	return plan, nil
}
