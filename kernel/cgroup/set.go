package cgroup

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
)

// Set plans the limits of a group: Plan of their settings.
func (g Group) Set(l Limits) (kernel.Plan, error) {
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("limits of group %q: %w", g.rel, err)
	}
	return g.Plan(l.Settings())
}

// Plan plans settings of a group, in an order in which no step on the way is refused. It
// reads the group's present values; where the group is yet to be created, it takes those
// of a new group.
func (g Group) Plan(settings knob.Settings) (kernel.Plan, error) {
	if err := check(settings); err != nil {
		return nil, fmt.Errorf("limits of group %q: %w", g.rel, err)
	}
	of := map[string]knob.Settings{"cpu": {}, "bandwidth": {}, "cpuset": {}, "": {}}
	for id, value := range settings {
		kind := ""
		switch {
		case id.Name == "quota" || id.Name == "burst":
			kind = "bandwidth"
		case id.Controller == CPU || id.Controller == CPUSet:
			kind = id.Controller
		}
		of[kind][id] = value
	}
	var plan kernel.Plan
	for _, plans := range []func() (kernel.Plan, error){
		func() (kernel.Plan, error) { return kernel.Set(g, of["cpu"]) },
		func() (kernel.Plan, error) { return g.bandwidth(of["bandwidth"]) },
		func() (kernel.Plan, error) { return g.cpuset(of["cpuset"]) },
		func() (kernel.Plan, error) { return kernel.Set(g, of[""]) },
	} {
		some, err := plans()
		if err != nil {
			return nil, err
		}
		plan = append(plan, some...)
	}
	return plan, nil
}

// Locate implements kernel.Subject. The file is the first of the row's that exists. In a
// group yet to be created that is the only one or, of several, the first that it will have.
func (g Group) Locate(k *knob.Knob) (dir string, f *knob.File, err error) {
	if k.Kind != knob.Group {
		return "", nil, &kernel.NotSupportedError{Feature: k.Name, Reason: "it is no setting of a control group"}
	}
	p, err := g.part(k.Controller)
	if err != nil {
		return "", nil, err
	}
	files := k.FilesOf(p.Version)
	host, own := g.base.host, g.dir(p)
	in := own
	has := func(f knob.File) bool { return host.exists(in + "/" + f.Name) }
	if len(files) == 1 && k.Needs == "" {
		return own, &files[0], nil
	}
	i := slices.IndexFunc(files, has)
	if i < 0 && !host.exists(own) {
		if len(files) == 1 {
			return own, &files[0], nil
		}
		if in = g.relative(k.Controller, p); in == "" {
			in, has = p.Dir, func(f knob.File) bool { return host.promises(p.Dir, f.Name) }
		}
		i = slices.IndexFunc(files, has)
	}
	if i >= 0 {
		return own, &files[i], nil
	}
	reason := fmt.Sprintf("cgroup v%d has no such setting", p.Version)
	if len(files) > 0 {
		reason = fmt.Sprintf("/%s has no %s", own, names(files))
		if in != own {
			reason = fmt.Sprintf("a new group in /%s would have no %s", path.Dir(own), names(files))
		}
	}
	return "", nil, &kernel.NotSupportedError{Feature: cmp.Or(k.Feature, k.V2[0].Name), Reason: reason, Remedy: k.Needs}
}

// relative is an existing group that has the files that the group, which is yet to be
// created, will have: one beside it or, failing that, one around it or beside that; "" if
// there is none but the root of the tree, which has others.
func (g Group) relative(controller string, p part) string {
	host := g.base.host
	ready := func(dir string) bool {
		return p.Version == 1 || slices.Contains(host.offered(dir), controller)
	}
	for dir := g.dir(p); dir != p.Dir && dir != "."; dir = path.Dir(dir) {
		entries, err := fs.ReadDir(host.root.FS(), path.Dir(dir))
		if err != nil {
			continue // it is yet to be made, too
		}
		for _, e := range entries {
			if sibling := path.Join(path.Dir(dir), e.Name()); e.IsDir() && ready(sibling) {
				return sibling
			}
		}
	}
	return ""
}

// bandwidth orders quota, period and burst. The kernel checks each write
// against what the other files hold: burst at most quota, and on v1, where
// quota and period are two files, no more than the parent's quota:period.
func (g Group) bandwidth(settings knob.Settings) (kernel.Plan, error) {
	if len(settings) == 0 {
		return nil, nil
	}
	quota, burst := knob.ID{Knob: knob.Find("quota")}, knob.ID{Knob: knob.Find("burst")}
	for _, id := range settings.IDs() {
		if _, _, err := g.Locate(id.Knob); err != nil {
			return nil, err
		}
	}
	p, err := g.part(CPU)
	if err != nil {
		return nil, err
	}
	s := scheduler{group: g, dir: g.dir(p)}
	burstFile := burst.FilesOf(p.Version)[0].Name
	oldBurst := s.number(burstFile, 0)
	newBurst := oldBurst
	if text, ok := settings[burst]; ok {
		newBurst, _ = strconv.ParseInt(text, 10, 64)
	}
	to, period, _ := strings.Cut(settings[quota], " ")
	if us, err := strconv.ParseInt(to, 10, 64); err == nil && newBurst > us {
		return nil, fmt.Errorf("limits of group %q: burst is %d us, more than the quota: set Burst too", g.rel, newBurst)
	}
	if newBurst < oldBurst {
		s.write(burstFile, newBurst)
	}
	switch {
	case to == "":
	case p.Version == 2:
		s.plan = append(s.plan, kernel.Step{Path: s.dir + "/" + quota.V2[0].Name, Value: settings[quota]})
	default:
		s.quotaV1(&quota.V1[0], to, period)
	}
	if newBurst > oldBurst {
		s.write(burstFile, newBurst)
	}
	return s.plan, s.err
}

// scheduler plans files of the CPU scheduler that hold one number. After an error it does
// nothing.
type scheduler struct {
	group Group
	dir   string
	plan  kernel.Plan
	err   error
}

// quotaV1 passes through the pair with the lower quota:period: it is at most the higher of
// old and new, so the parent allows it.
func (s *scheduler) quotaV1(f *knob.File, quota, period string) {
	q, err := strconv.ParseInt(quota, 10, 64)
	if err != nil {
		q = -1 // no limit
	}
	p, _ := strconv.ParseInt(period, 10, 64)
	oldQ, oldP := s.number(f.Name, -1), s.number(f.Beside, 100000)
	quotaFirst := q < 0 || oldQ >= 0 && q*p < oldQ*oldP
	if quotaFirst {
		s.write(f.Name, q)
	}
	if p != oldP {
		s.write(f.Beside, p)
	}
	if !quotaFirst {
		s.write(f.Name, q)
	}
}

func (s *scheduler) write(file string, n int64) {
	s.plan = append(s.plan, kernel.Step{Path: s.dir + "/" + file, Value: strconv.FormatInt(n, 10)})
}

// number returns the present value of a file, or what a new group has.
func (s *scheduler) number(file string, fresh int64) int64 {
	text, ok, err := s.group.base.host.read(s.dir + "/" + file)
	if err != nil && s.err == nil {
		s.err = err
	}
	if !ok {
		return fresh
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("read /%s/%s: %w", s.dir, file, err)
	}
	return n
}

// cpuset gives exclusive CPUs back before the set changes, and takes them after.
func (g Group) cpuset(settings knob.Settings) (kernel.Plan, error) {
	if len(settings) == 0 {
		return nil, nil
	}
	p, err := g.part(CPUSet)
	if err != nil {
		return nil, err
	}
	partition, cpus := knob.ID{Knob: knob.Find("partition")}, knob.ID{Knob: knob.Find("cpus")}
	if to, ok := settings[partition]; ok && to != partition.Default {
		if err := g.base.host.partitionable(g.dir(p)); err != nil {
			return nil, err
		}
	}
	set, err := cpuset.Parse(settings[cpus])
	if err == nil && p.Version == 2 {
		err = g.base.host.unpartitioned(g.dir(p), set)
	}
	if err != nil {
		return nil, err
	}
	plan, err := kernel.Set(g, settings)
	if last := len(plan) - 1; settings[partition] == partition.Default && last > 0 {
		plan = slices.Insert(plan[:last:last], 0, plan[last])
	}
	return plan, err
}
