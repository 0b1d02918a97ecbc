package agent

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
)

// limits plans a workload's settings beyond placing, as far as they are not
// what the kernel shows.
func (g *groups) limits(c *Transition, id string, fresh bool) (kernel.Plan, error) {
	to, from := c.After(id), c.Before(id)
	if to.Backend != g.host.Mode() {
		return g.ioLimits(c, to)
	}
	class, err := g.ofIO(&to.Spec)
	_, undefined := errors.AsType[*ClassError](err)
	if err != nil && (!undefined || c.asks(id)) {
		return nil, err
	}
	if s, ok := g.shown[id]; ok && from == to && !fresh && reflect.DeepEqual(s.class, class.limits) {
		if differs, err := g.differing(c, s.plan); err == nil && len(differs) == 0 {
			return nil, nil
		}
		delete(g.shown, id)
	}
	group := g.base.Child(to.Group)
	l, lack := g.settings(&to.Spec)
	if why := g.noIdle(); why != "" && l.Idle == cgroup.On {
		return nil, fmt.Errorf("limits of workload %q: %w", id, &kernel.NotSupportedError{Feature: "cpu.idle", Reason: why, Remedy: "give it a weight instead"})
	}
	all := g.values(&to.Spec)
	if err := g.addDefaults(all, c, id, fresh, undefined || class.weighs); err != nil {
		return nil, fmt.Errorf("limits of workload %q: %w", id, err)
	}
	plan, err := group.Plan(all)
	byClass(plan, &to.Spec, l, lack)
	if class.name != "" {
		byIOClass(plan, class.name)
	}
	if err != nil || fresh {
		return plan, err
	}
	whole := plan
	if plan, err = g.differing(c, plan); err != nil {
		return nil, fmt.Errorf("limits of workload %q: %w", id, err)
	}
	if len(plan) == 0 && from == to && !slices.ContainsFunc(all.IDs(), dynamic) {
		g.shown[id] = shown{to, class.limits, whole}
	}
	if plan, err = g.noteWeight(c, group, plan); err != nil {
		return nil, fmt.Errorf("limits of workload %q: %w", id, err)
	}
	return plan, nil
}

// addDefaults adds to a workload's settings the defaults of those that it had and is to have no
// more, or that somebody else gave its group, and of those that keep others from being written.
func (g *groups) addDefaults(all knob.Settings, c *Transition, id string, fresh, unweighted bool) error {
	to, from := c.After(id), c.Before(id)
	group := g.base.Child(to.Group)
	if from != nil && from != to {
		was := map[string]desired.Values{id: desired.Base("limits", g.values(&from.Spec))}
		for _, u := range desired.Diff(was, map[string]desired.Values{id: desired.Base("limits", all)}) {
			for _, change := range u.Changes {
				if change.Claim == nil {
					all[change.Setting] = change.Setting.Default
				}
			}
		}
	}
	if to.made() && !fresh {
		if err := g.unlimited(group, all, unweighted); err != nil {
			return err
		}
	}
	idle := knob.ID{Knob: knob.Find("idle")}
	if fresh || !all.Has(knob.Find("weight")) || all.Has(idle.Knob) || g.noIdle() != "" {
		return nil
	}
	// An idle group's weight is locked, whoever made it idle.
	awake, err := g.needs(c, group, knob.Settings{idle: idle.Default})
	if len(awake) > 0 {
		all[idle] = idle.Default
	}
	return err
}

// noteWeight adds to a plan what the undo log is to know of a group that becomes idle: the kernel
// forgets its weight, which is noted where it is written before.
func (g *groups) noteWeight(c *Transition, group cgroup.Group, plan kernel.Plan) (kernel.Plan, error) {
	i := slices.IndexFunc(plan, func(s kernel.Step) bool { return len(s.Disturbs) > 0 })
	if i < 0 {
		return plan, nil
	}
	weight := knob.ID{Knob: knob.Find("weight")}
	reset, err := g.needs(c, group, knob.Settings{weight: weight.Default})
	return slices.Insert(plan, i, reset...), err
}

// limitEach has workloads get their limits, each for itself: what the kernel refuses one that the
// transition does not ask for it goes without, and nobody else. A group that has just gone is no
// error.
func (g *groups) limitEach(c *Transition, ids []string) (undo func() error, err error) {
	var undos []func() error
	for _, id := range ids {
		back, err := g.limit(c, id)
		if err != nil {
			return nil, errors.Join(err, join(undos...)())
		}
		undos = append(undos, back)
	}
	return join(undos...), nil
}

// limit is limitEach of one workload.
func (g *groups) limit(c *Transition, id string) (undo func() error, err error) {
	plan, err := g.ownLimits(c, id)
	for err == nil && len(plan) > 0 {
		if undo, err = kernel.Apply(g.root, plan, c.Log); err == nil {
			g.refused.written("", plan)
			return undo, nil
		}
		refused := onlyRefused(err)
		switch {
		case refused == nil:
		case !g.isDir(path.Dir(refused.Step.Path)):
			return nil, nil
		case !c.asks(id) && c.away(err):
			return nil, nil
		case !c.asks(id):
			if left := leaveOut(plan, refused.Step); len(left) < len(plan) {
				g.without(id, err)
				g.refused.failed("", refused.Step)
				plan, err = left, nil
			}
		}
	}
	if c.After(id).Backend != g.host.Mode() {
		err = refusal(IOClass, "", id, err)
	}
	return nil, err
}

// onlyRefused is what the kernel refused of a plan (kernel.Apply); nil where it is something else, or
// where what was done before could not be undone, too.
func onlyRefused(err error) *kernel.StepError {
	for {
		switch e := err.(type) {
		case *kernel.StepError:
			return e
		case interface{ Unwrap() []error }:
			all := e.Unwrap()
			if len(all) != 1 {
				return nil
			}
			err = all[0]
		default:
			return nil
		}
	}
}

// leaveOut returns a plan without a step, and without what prepares it.
func leaveOut(plan kernel.Plan, step kernel.Step) kernel.Plan {
	return slices.DeleteFunc(slices.Clone(plan), func(s kernel.Step) bool {
		return s.Path == step.Path && s.Value == step.Value || slices.Contains(step.Disturbs, s.Path)
	})
}

// planEach are the writes of limitEach.
func (g *groups) planEach(c *Transition, ids []string) (all kernel.Plan, err error) {
	for _, id := range ids {
		plan, err := g.ownLimits(c, id)
		if err != nil {
			return nil, err
		}
		all = append(all, plan...)
	}
	return all, nil
}

// ownLimits are the limits of a workload for itself: what cannot be planned of one that the
// transition does not ask for is told.
func (g *groups) ownLimits(c *Transition, id string) (kernel.Plan, error) {
	plan, err := g.limits(c, id, false)
	dirs := c.After(id).dirsIn(g.base.Dirs())
	switch {
	case err == nil:
		g.refused.planned("", plan, func(file string) bool { return slices.Contains(dirs, path.Dir(file)) })
	case !slices.ContainsFunc(dirs, g.isDir):
		return nil, nil // it has just gone
	case !c.asks(id):
		g.without(id, err)
		return nil, nil
	}
	if !c.asks(id) {
		for _, s := range plan {
			if g.refused.wait("", s) {
				plan = leaveOut(plan, s)
			}
		}
	}
	return plan, err
}

// ioLimits plans what a group that something else makes has by the I/O class of its workload;
// all else of it is not Berth's. A class that is not asked for by name, or not now, is left out
// where it cannot be: a note says so.
func (g *groups) ioLimits(c *Transition, w *Workload) (kernel.Plan, error) {
	if w.Group == "" || !slices.ContainsFunc(w.dirsIn(g.base.Dirs()), g.isDir) {
		return nil, nil // it is yet to come
	}
	class, err := g.ofIO(&w.Spec)
	var plan kernel.Plan
	if err == nil && !limitless(class.limits) {
		if plan, err = g.ioPlan(w, &class); err == nil {
			plan, err = g.differing(c, plan)
		}
	}
	_, undefined := errors.AsType[*ClassError](err)
	if (undefined || errors.Is(err, kernel.ErrNotSupported)) && !(c.asks(w.ID()) && w.Spec.asksFor(IOClass)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("I/O class %q of workload %q: %w", class.name, w.ID(), err)
	}
	return plan, nil
}

// ioPlan plans what a workload's group has by an I/O class.
func (g *groups) ioPlan(w *Workload, class *ioClass) (kernel.Plan, error) {
	plan, err := g.base.Child(w.Group).Plan(class.limits.Settings())
	byIOClass(plan, class.name)
	return plan, err
}

// shown is a workload with a plan for its limits, those of its I/O class included.
type shown struct {
	of    *Workload
	class cgroup.Limits
	plan  kernel.Plan
}

// unlimited adds to settings of a group that Berth made that block devices which they do not
// name are not limited: by an I/O class that was another one, or that now means other devices.
// unweighted says that its I/O weight is the kernel's unless they name it, too: where its I/O class
// is not defined any more, and where there are I/O classes, one of which may have had a weight.
func (g *groups) unlimited(group cgroup.Group, all knob.Settings, unweighted bool) error {
	weight := knob.Find("ioWeight")
	for _, k := range knob.All() {
		if k.Key == nil && !(unweighted && k == weight) {
			continue
		}
		dir, f, err := group.Locate(k)
		if errors.Is(err, kernel.ErrNotSupported) {
			continue
		}
		if err != nil {
			return err
		}
		text, err := kernel.ReadText(g.root.FS(), path.Join(dir, f.Name))
		if kernel.Absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		if k == weight {
			if value, ok := f.Value("", text); ok && value != k.Default && !all.Has(k) {
				all[knob.ID{Knob: k}] = k.Default
			}
			continue
		}
		for line := range strings.Lines(text) {
			key, _, _ := strings.Cut(line, " ")
			id := knob.ID{Knob: k, Key: key}
			if value, ok := f.Value(key, text); ok && k.Key(key) == nil && value != k.Default && all[id] == "" {
				all[id] = k.Default
			}
		}
	}
	return nil
}

// dynamic reports whether the steps for a setting depend on what the kernel shows.
func dynamic(id knob.ID) bool {
	return id.Controller == cgroup.CPUSet || id.Name == "quota" || id.Name == "burst"
}

// ofLimits are the settings of limits but for those of placing.
func ofLimits(l cgroup.Limits) knob.Settings {
	settings := l.Settings()
	maps.DeleteFunc(settings, func(id knob.ID, _ string) bool { return id.Controller == cgroup.CPUSet })
	return settings
}

// formerLimits reports whether a step made a setting that its workload, one of those
// that c is about, has no more.
func (g *groups) formerLimits(c *Transition) func(kernel.Step) bool {
	settings := map[string]knob.Settings{}
	for _, id := range c.Limited() {
		if w := c.After(id); w != nil && !w.made() {
			for _, dir := range w.dirsIn(g.base.Dirs()) {
				settings[dir] = g.values(&w.Spec)
			}
		}
	}
	return func(s kernel.Step) bool {
		has, ok := settings[path.Dir(s.Path)]
		row, _ := knob.OfFile(path.Base(s.Path))
		if !ok || s.Op != kernel.Write || row == nil || row.Controller == cgroup.CPUSet {
			return false
		}
		key, _, _ := strings.Cut(s.Value, " ")
		return !has.Named(path.Base(s.Path), key)
	}
}

// idle plans that idleGroup is idle where it holds a workload.
func (g *groups) idle(c *Transition) (kernel.Plan, error) {
	holds := func(id string) bool { return kernel.Within(c.After(id).Group, idleGroup) }
	if !slices.ContainsFunc(c.Limited(), holds) {
		return nil, nil
	}
	l := cgroup.Limits{Idle: cgroup.On}
	if g.noIdle() != "" {
		l = cgroup.Limits{Weight: lowest}
	}
	plan, err := g.needs(c, g.base.Child(idleGroup), l.Settings())
	if err != nil {
		return nil, fmt.Errorf("make group %s idle: %w", idleGroup, err)
	}
	return plan, nil
}

func (g *groups) needs(c *Transition, group cgroup.Group, settings knob.Settings) (kernel.Plan, error) {
	plan, err := group.Plan(settings)
	if err != nil {
		return nil, err
	}
	return g.differing(c, plan)
}

// differing are the steps of a plan that the kernel does not show yet. A group that
// is yet to be made shows nothing.
func (g *groups) differing(c *Transition, plan kernel.Plan) (differs kernel.Plan, err error) {
	for _, s := range plan {
		_, same, err := g.root.Shows(s)
		if kernel.IgnoreAbsent(err) != nil {
			return nil, err
		}
		if !same && !c.Yielded(s.Path) {
			differs = append(differs, s)
		}
	}
	return differs, nil
}
