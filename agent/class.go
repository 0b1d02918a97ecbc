package agent

import (
	"fmt"
	"path"
	"slices"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
)

// Settings are the limits of a workload with what its class does where they say nothing
// (place.Traits). A weight or cpu.idle that the workload is given decides both, as an
// idle group has no weight. It is the one place where a class becomes settings.
func (s *Spec) Settings() cgroup.Limits {
	l := s.Limits
	if l.Idle == cgroup.Leave && l.Weight == 0 && s.Request.Class.Traits().Idle {
		l.Idle = cgroup.On
	}
	return l
}

// ofIO is what a spec has by its I/O class.
func (g *groups) ofIO(s *Spec) (ioClass, error) {
	if g.io == nil {
		return ioClass{}, nil
	}
	return g.io(s)
}

// lowest is the weight that stands in for cpu.idle where the kernel has none.
const lowest = 1

// settings are the Settings of a spec as far as this host has them; lack says what of
// the class is missing. What the spec itself asks for is not replaced. An I/O class that is
// not defined adds nothing: limits tells the error.
func (g *groups) settings(s *Spec) (l cgroup.Limits, lack string) {
	l = s.Settings()
	if class, _ := g.ofIO(s); !limitless(class.limits) {
		l = withIO(l, class.limits)
	}
	if l.Idle == s.Limits.Idle {
		return l, ""
	}
	if err := g.base.Has(cgroup.CPU); err != nil {
		l.Idle = cgroup.Leave
		return l, fmt.Sprintf("class %s: cpu.idle is not set: %v", s.Request.Class, err)
	}
	if why := g.noIdle(); why != "" {
		l.Idle, l.Weight = cgroup.Leave, lowest
		return l, fmt.Sprintf("class %s: the lowest weight stands in for cpu.idle: %s", s.Request.Class, why)
	}
	return l, ""
}

// noIdle says why the kernel has no cpu.idle; "" if it has, or as long as no group is
// there to tell.
func (g *groups) noIdle() string {
	if t, ok := g.host.Hierarchy(cgroup.CPU); ok && !g.idleKnown {
		why, known := t.Lacks(g.root, knob.Find("idle"))
		if g.idleKnown = known; why != nil {
			g.idleWhy = why.Reason + ": " + why.Remedy
		}
	}
	return g.idleWhy
}

// byClass writes into the steps that a class takes which class it is.
func byClass(plan kernel.Plan, s *Spec, l cgroup.Limits, lack string) {
	if l.Idle == s.Limits.Idle && l.Weight == s.Limits.Weight {
		return
	}
	why := lack
	if why == "" {
		why = "class " + s.Request.Class.String()
	}
	idle := knob.Find("idle")
	files := append(idle.Files(), idle.Besides()...)
	for i := range plan {
		if slices.Contains(files, path.Base(plan[i].Path)) {
			plan[i].Why = why
		}
	}
}

// byIOClass writes into the steps about block devices which class takes them.
func byIOClass(plan kernel.Plan, class string) {
	for i := range plan {
		if row, _ := knob.OfFile(path.Base(plan[i].Path)); row != nil && row.Controller == cgroup.IO {
			plan[i].Why = "I/O class " + class
		}
	}
}
