package agent

import (
	"cmp"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// A workload whose group Berth did not make may lie in groups that are narrower than what it
// is to have: a pod, a QoS class, a slice. They are planned with it: each has what it had
// before Berth and, beside that, what the workloads in it have.

// ancestorDirs are the directories of the groups between the base and the groups of workloads
// that Berth did not make.
func (g *groups) ancestorDirs(workloads iter.Seq[*Workload]) map[string]bool {
	dirs := map[string]bool{}
	for w := range workloads {
		if w.made() {
			continue
		}
		for dir := path.Dir(g.cpusetDir(w)); dir != g.dir && kernel.Within(dir, g.dir) && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	return dirs
}

// ancestors are the sets to change around the workloads that a transition is about or
// moves, outer ones first.
func (g *groups) ancestors(c *Transition) (cgroup.SetChanges, error) {
	dirs := g.ancestorDirs(func(yield func(*Workload) bool) {
		for _, workloads := range []iter.Seq[*Workload]{c.Former(), c.Workloads()} {
			for w := range workloads {
				is := c.After(w.ID())
				if moved := c.All || is == nil || is.State != Reserved && !c.Stands(w.ID()); moved && !yield(w) {
					return
				}
			}
		}
	})
	if len(dirs) == 0 {
		return nil, nil
	}
	cpus, mems := map[string]cpuset.Set{}, map[string]cpuset.Set{}
	for _, id := range c.Present() {
		w := c.After(id)
		for dir := path.Dir(g.cpusetDir(w)); dir != g.dir && kernel.Within(dir, g.dir); dir = path.Dir(dir) {
			if dirs[dir] {
				cpus[dir], mems[dir] = cpus[dir].Union(w.CPUs), mems[dir].Union(w.Mems)
			}
		}
	}
	var all cgroup.SetChanges
	for _, of := range []struct {
		file string
		sets map[string]cpuset.Set
	}{{memsFile, mems}, {cpusFile, cpus}} {
		for dir, set := range of.sets {
			name := dir + "/" + of.file
			have, err := readSet(g.root, name)
			if unreachable(err) || err == nil && (have.IsEmpty() || c.Yielded(name)) {
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
				all = append(all, cgroup.SetChange{File: name, Have: have, Want: want, Why: "a workload is or was in it"})
			}
		}
	}
	slices.SortFunc(all, func(a, b cgroup.SetChange) int {
		return cmp.Or(strings.Count(a.File, "/")-strings.Count(b.File, "/"), strings.Compare(a.File, b.File))
	})
	return all, nil
}

// widen plans that ancestors have room for what is in them and for what comes. A v2 group
// in them without a set of its own would come onto the new CPUs, too: it is kept off
// exclusive ones first.
func (g *groups) widen(c *Transition, all cgroup.SetChanges) (plan kernel.Plan, err error) {
	for _, a := range all {
		if g.version == 2 && path.Base(a.File) == cpusFile && a.Want.Minus(a.Have).Overlaps(c.Owned()) {
			pins, err := g.pin(c, path.Dir(a.File), g.allowed.Minus(c.Owned()))
			if err != nil {
				return nil, err
			}
			plan = append(plan, pins...)
		}
	}
	return append(plan, all.Widen()...), nil
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
		has, err := readSet(g.root, name+"/"+cpusFile)
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
