package control

import (
	"fmt"
	"math"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// The amounts of remedies, the first step first.
const (
	headroom   = 0.2 // of the node, that a cap leaves idle (resctl-demo's sideloader)
	shrinkBy   = 0.5 // of what is left, for caps and sets after the first step
	growBy     = 0.1 // of the node, at most, when something is given back
	highStep   = 0.9 // of the memory in use
	leastHigh  = 64 << 20
	leastHighs = 0.5 // of what was in use at the first step
)

func partSteps(r detect.Remedy) []float64 {
	if r == detect.CacheWays {
		return []float64{0.3, 0.2, 0.1}
	}
	return []float64{0.5, 0.3, 0.1} // of the memory bandwidth; its throttles are coarse
}

// FloorCPUs is the least number of CPUs that a cpuset of best-effort work keeps on
// a node: 5 %, and two, or one where two would be more than half of the node.
func FloorCPUs(cpus int) int {
	return max(1, min(2, cpus/2), int(math.Ceil(0.05*float64(cpus))))
}

// FloorQuota is the least CPU time that best-effort work keeps, in CPUs: 5 % of the
// node, and 0.1, as the kernel takes no quota below 1 ms (here of 10).
func FloorQuota(cpus int) float64 { return max(0.05*float64(cpus), 0.1) }

// propose returns what a remedy would do next about a suspect, or why it cannot.
// Held is this ladder's last step by the same remedy, nil if there is none.
func (l *Loop) propose(at *ladder, r detect.Remedy, suspect string, held *step) (a Action, reason string) {
	if why := l.in.Host.Unavailable[r]; why != "" {
		return a, why
	}
	if !acts(r) {
		return a, "it is not for the loop to decide"
	}
	a = Action{Remedy: r, Victim: at.victim, Suspect: suspect, Resource: at.resource, Group: suspect}
	switch r {
	case detect.Burst, detect.ExclusiveCPUs:
		a.Group = at.victim
	case detect.Weight, detect.IOWeight:
		_, group, ok := Diverge(at.victim, suspect)
		if !ok {
			return a, "the two lie within each other"
		}
		a.Group = group
	}
	if reason = l.permits(a); reason != "" {
		return a, reason
	}
	if held == nil {
		switch {
		case l.book().find(a) != nil && l.book().find(a).now == nil:
			return a, "an earlier one could not be taken back yet"
		case l.book().has(a):
			return a, "it is in force already, for another victim or resource"
		case l.elsewhere(a):
			return a, "it is in force already, by another loop"
		}
	}
	switch r {
	case detect.Weight:
		return l.proposeWeight(a, held)
	case detect.HeadroomCap:
		return l.proposeCap(a, held)
	case detect.ShrinkCPUs:
		return l.proposeShrink(a, held)
	case detect.CacheWays, detect.BandwidthCap:
		return proposePart(a, held)
	case detect.MemoryHigh:
		return l.proposeHigh(a, held)
	case detect.IOWeight:
		return l.proposeIOWeight(a, held)
	case detect.Burst:
		return l.proposeBurst(a, held)
	case detect.ExclusiveCPUs:
		return l.proposeExclusive(a, held)
	}
	if held != nil {
		return a, furthest
	}
	return a, "" // CoreSched is on or off
}

const furthest = "it goes no further"

// acts reports whether a remedy is one that the loop takes. The others change
// what the victim was promised.
func acts(r detect.Remedy) bool {
	switch r {
	case detect.RaiseLimit, detect.GrowCPUs, detect.PlaceMemory, detect.Power:
		return false
	}
	return true
}

func (l *Loop) proposeWeight(a Action, held *step) (Action, string) {
	if held != nil {
		return a, furthest
	}
	g := l.byGroup[a.Group]
	switch {
	case g.Limits.Idle:
		return a, a.Group + " is idle already"
	case l.bestEffort(a.Group) && l.in.Host.NoIdle == "":
		a.Limits.Idle = cgroup.On
	case l.bestEffort(a.Group):
		a.Limits.Weight = 1
	default:
		a.Limits.Weight = max(weightOr(g.Limits.Weight)/4, 1)
	}
	if weightOr(g.Limits.Weight) == a.Limits.Weight {
		return a, fmt.Sprintf("%s has weight %d already", a.Group, a.Limits.Weight)
	}
	return a, ""
}

func weightOr(w int) int {
	if w == 0 {
		return 100
	}
	return w
}

// proposeCap caps the suspect to what it uses and what is idle less the headroom;
// further steps halve that.
func (l *Loop) proposeCap(a Action, held *step) (Action, string) {
	n := l.in.Host.CPUs.Len()
	use := l.byGroup[a.Group].Use
	if n == 0 || math.IsNaN(l.in.Host.Use) || !(use > 0) {
		return a, "how much CPU time the host and the suspect use is not known"
	}
	floor := FloorQuota(n)
	idle := max(float64(n)-l.in.Host.Use, 0)
	to := max(floor, idle+use-headroom*float64(n))
	if held != nil {
		have := cpusOf(held.action.Limits)
		to = max(floor, min(to, shrinkBy*have))
		if to > have-0.01*float64(n) {
			return a, furthest
		}
	}
	if own := l.byGroup[a.Group].Limits; own.Quota > 0 && own.Period > 0 && to >= float64(own.Quota)/float64(own.Period) {
		return a, "its own quota is below that"
	}
	if held == nil && to >= use {
		return a, fmt.Sprintf("%.2f CPUs are idle: a cap that leaves %.0f %% of the node would not bind", idle, 100*headroom)
	}
	a.Limits = quota(to)
	return a, ""
}

// proposeShrink takes the CPUs of the victim away from the suspect, or half of
// what it has.
func (l *Loop) proposeShrink(a Action, held *step) (Action, string) {
	n := l.in.Host.CPUs.Len()
	if n == 0 {
		return a, "the host's CPUs are not known"
	}
	have := l.byGroup[a.Group].CPUs
	if held != nil {
		have = held.action.Limits.CPUs
	} else if have.IsEmpty() {
		have = l.in.Host.CPUs
	}
	have = have.Intersect(l.in.Host.CPUs)
	var avoid cpuset.Set
	if victim := l.byGroup[a.Victim]; victim != nil {
		avoid = victim.CPUs
	}
	floor := min(FloorCPUs(n), have.Len())
	to := max(floor, int(math.Ceil(shrinkBy*float64(have.Len()))))
	if outside := have.Minus(avoid).Len(); outside < have.Len() && outside >= floor {
		to = outside
	}
	if to >= have.Len() || to == 0 {
		return a, fmt.Sprintf("%s is the least that best-effort work keeps", count(have.Len(), "CPU"))
	}
	a.Limits.CPUs = choose(l.cfg.Machine, have, avoid, to)
	return a, ""
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func proposePart(a Action, held *step) (Action, string) {
	for _, part := range partSteps(a.Remedy) {
		if held == nil || part < held.action.Part {
			a.Part = part
			return a, ""
		}
	}
	return a, furthest
}

func (l *Loop) proposeHigh(a Action, held *step) (Action, string) {
	in := l.byGroup[a.Group].Memory
	if in <= 0 {
		return a, "how much memory the suspect uses is not known"
	}
	floor := max(int64(leastHighs*float64(in)), leastHigh)
	to := int64(highStep * float64(in))
	if held != nil {
		floor = held.floor
		to = int64(highStep * float64(held.action.Limits.MemoryHigh))
	}
	if to < floor {
		return a, fmt.Sprintf("%d MiB is the least that best-effort work keeps", floor>>20)
	}
	a.Limits.MemoryHigh = to
	return a, ""
}

func (l *Loop) proposeIOWeight(a Action, held *step) (Action, string) {
	have := weightOr(l.byGroup[a.Group].Limits.IOWeight)
	if held != nil {
		have = held.action.Limits.IOWeight
	}
	if have <= 1 {
		return a, furthest
	}
	a.Limits.IOWeight = max(have/10, 1)
	return a, ""
}

// proposeBurst lets the victim save up a whole quota for later periods, which is
// the most that the kernel takes.
func (l *Loop) proposeBurst(a Action, held *step) (Action, string) {
	w := l.byGroup[a.Victim]
	if held != nil {
		return a, furthest
	}
	if w.Limits.Quota <= 0 || w.Limits.Period <= 0 {
		return a, "the quota is not its own, but that of a group around it"
	}
	a.Limits.Burst = w.Limits.Quota
	return a, ""
}

// proposeExclusive gives the victim its CPUs for itself, if enough is left for
// all others.
func (l *Loop) proposeExclusive(a Action, held *step) (Action, string) {
	if held != nil {
		return a, furthest
	}
	own := wholeCores(l.cfg.Machine, l.byGroup[a.Victim].CPUs)
	if own.IsEmpty() {
		return a, "the victim may run everywhere: there are no CPUs to keep for it"
	}
	left := l.in.Host.CPUs.Minus(own).Len()
	if least := FloorCPUs(l.in.Host.CPUs.Len()); left < max(least, 1) {
		return a, fmt.Sprintf("%s would be left for all others", count(left, "CPU"))
	}
	a.Limits.CPUs = own
	return a, ""
}

// wholeCores is a set with all threads of its cores.
func wholeCores(m *machine.Machine, cpus cpuset.Set) cpuset.Set {
	if m == nil {
		return cpus
	}
	for _, core := range m.ByKind(machine.Core) {
		if core.CPUs.Overlaps(cpus) {
			cpus = cpus.Union(core.CPUs)
		}
	}
	return cpus
}

// weaker is the step before an action, on the way back to the original (before,
// nil for none): sets, caps and parts grow by at most a tenth; nil is the
// original itself.
func (l *Loop) weaker(a Action, before *Action) *Action {
	n := l.in.Host.CPUs.Len()
	switch a.Remedy {
	case detect.HeadroomCap:
		to, most := cpusOf(a.Limits)+growBy*float64(n), float64(n)
		if before != nil {
			most = cpusOf(before.Limits)
		}
		if to < most {
			a.Limits = quota(to)
			return &a
		}
	case detect.ShrinkCPUs:
		w := l.byGroup[a.Group]
		if w == nil || n == 0 {
			return before
		}
		target := w.CPUs
		if target.IsEmpty() {
			target = l.in.Host.CPUs
		}
		if before != nil {
			target = before.Limits.CPUs
		}
		more := target.Minus(a.Limits.CPUs)
		if step := (n + 9) / 10; more.Len() > step {
			a.Limits.CPUs = a.Limits.CPUs.Union(choose(l.cfg.Machine, more, cpuset.Set{}, step))
			return &a
		}
	case detect.CacheWays, detect.BandwidthCap:
		most := 1.0
		if before != nil {
			most = before.Part
		}
		if to := a.Part + growBy; to < most {
			a.Part = to
			return &a
		}
	}
	return before
}

// bestEffort reports whether a group may be squeezed: it is BE, or allowed.
func (l *Loop) bestEffort(group string) bool {
	w := l.byGroup[group]
	return w != nil && (w.Class == place.BE || l.allowed(group))
}

func (l *Loop) allowed(group string) bool {
	for _, glob := range l.cfg.Allowed {
		if matches(glob, group) {
			return true
		}
	}
	return false
}

// permits says why an action must not be taken; "" if it may.
func (l *Loop) permits(a Action) string {
	if reason := l.protects(a.Group); reason != "" {
		return reason
	}
	w := l.byGroup[a.Group]
	if w == nil {
		return a.Group + " is not a known workload"
	}
	if a.Group == a.Victim {
		if a.Remedy == detect.ExclusiveCPUs { // CPUs that the suspect loses
			return l.permits(Action{Remedy: a.Remedy, Group: a.Suspect})
		}
		return ""
	}
	weight := l.cfg.Weigh && (a.Remedy == detect.Weight || a.Remedy == detect.IOWeight)
	for _, o := range l.spared {
		if !Within(o.group, a.Group) || o.class == place.BE || l.allowed(o.group) {
			continue
		}
		if weight && o.class != place.LSE && o.class != place.LSR {
			continue
		}
		if o.group == a.Group {
			return fmt.Sprintf("%s is %v, not BE: it is reported and left alone", o.group, o.class)
		}
		return fmt.Sprintf("%s holds %s, which is %v, not BE", a.Group, o.group, o.class)
	}
	return ""
}

// protects says why a group must not be touched; "" if it may be.
func (l *Loop) protects(group string) string {
	if group == "" || group == detect.Outside {
		return "the root group / holds the processes outside of any group, and is never acted on"
	}
	for _, own := range [...]string{"init.scope", l.cfg.Own} {
		if own != "" && related(group, own) {
			return fmt.Sprintf("%s is, holds or lies in %s, which is never acted on", group, own)
		}
	}
	for _, glob := range l.cfg.Protected {
		if matches(glob, group) || below(glob, group) {
			return fmt.Sprintf("%s is protected by %q", group, glob)
		}
	}
	for _, o := range l.spared {
		if o.protected && related(o.group, group) {
			return fmt.Sprintf("%s is, holds or lies in %s, which is protected", group, o.group)
		}
	}
	return ""
}
