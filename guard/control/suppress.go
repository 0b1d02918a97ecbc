package control

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Suppression limits all best-effort work by what the node has left, whether
// somebody suffers or not, by the formula of Koordinator's CPU suppression:
//
//	best effort = CPUs × Threshold − use of all others − max(use of the system, Reserve)
//
// The system is what no workload accounts for. The limit is lowered at once, and
// raised by at most a tenth of the node a second.
// As that does, the cpuset policy takes whole cores of all NUMA nodes in turn (Pick), and the
// quota policy leaves changes of less than 1 % of the node. Unlike it, best-effort work
// keeps Berth's floors (FloorCPUs, FloorQuota), which are higher, and nobody is evicted.
type Suppression struct {
	// Group holds all best-effort work and nothing else, "berth-idle". It must be
	// among the workloads, as BE.
	Group string
	// ByQuota limits it by a CFS quota, in place of fewer CPUs in its cpuset.
	ByQuota bool
	// Threshold is the part of the node's CPUs that may be in use; 0 is 0.65.
	Threshold float64
	// Reserve is kept for the system, in CPUs.
	Reserve float64
}

// Validate reports what cannot be.
func (s *Suppression) Validate() error {
	var errs []error
	if s.Group == "" {
		errs = append(errs, errors.New("suppression: no group; name the one that holds all best-effort work"))
	}
	if !(s.Threshold >= 0 && s.Threshold <= 1) {
		errs = append(errs, fmt.Errorf("suppression threshold %v: not from 0 to 1", s.Threshold))
	}
	if !(s.Reserve >= 0) || math.IsInf(s.Reserve, 0) {
		errs = append(errs, fmt.Errorf("suppression reserve %v: not a number of CPUs", s.Reserve))
	}
	return errors.Join(errs...)
}

// Limit is how many CPUs best-effort work may use on a node with that many CPUs
// whose other workloads and system use so much. It may be negative.
func (s *Suppression) Limit(cpus int, others, system float64) float64 {
	threshold := s.Threshold
	if threshold == 0 {
		threshold = 0.65
	}
	return float64(cpus)*threshold - others - max(system, s.Reserve)
}

// Quota is the next limit by quota, in CPUs: at least the floor of 5 % of the node
// and 0.1 CPUs, at most a tenth of the node above the present one, and the
// present one itself if that is within 1 % of the node. Present 0 means none, from
// which any step down is allowed.
func (s *Suppression) Quota(limit, present float64, cpus int) float64 {
	next := max(limit, FloorQuota(cpus))
	if present == 0 {
		return next
	}
	node := float64(cpus)
	if math.Abs(next-present) < 0.01*node {
		return present
	}
	return min(next, present+0.1*node)
}

// CPUs is the next limit by cpuset, in CPUs: a whole number, at least FloorCPUs, at
// most a tenth of the node (rounded up) above the present number. Present 0 is
// none.
func (s *Suppression) CPUs(limit float64, present, cpus int) int {
	next := min(max(int(math.Ceil(limit)), FloorCPUs(cpus)), cpus)
	if present == 0 {
		return next
	}
	return min(next, present+(cpus+9)/10)
}

// suppressed is where the policy stands.
type suppressed struct {
	action *Action
	at     time.Time // of the last change or look
	until  time.Time // until when it is left to somebody else
	lost   int
}

const suppressionOwner = "\x00suppression"

// suppress applies the policy, once a second.
func (l *Loop) suppress(ctx context.Context) {
	s := l.cfg.Suppression
	if s == nil || l.now.Before(l.limit.until) || l.now.Sub(l.limit.at) < time.Second-l.window/2 {
		return
	}
	l.limit.at = l.now
	group, known := l.byGroup[s.Group]
	others, system, ok := l.useOfOthers(s.Group)
	if !known || !ok || l.late {
		if l.limit.lost++; l.limit.lost > maxLost || !known {
			l.releaseSuppression(ctx, "what the node uses is not known")
		}
		return
	}
	l.limit.lost = 0
	reason := l.protects(s.Group)
	if reason == "" && !group.Class.Traits().Squeezed {
		reason = fmt.Sprintf("%s is %v, not BE", s.Group, group.Class)
	}
	if reason != "" {
		l.releaseSuppression(ctx, reason)
		return
	}
	next, change := l.suppressTo(s, group, s.Limit(l.in.Host.CPUs.Len(), others, system))
	if !change {
		return
	}
	l.setSuppression(ctx, next, fmt.Sprintf("others use %.2f CPUs, the system %.2f", others, system))
}

// useOfOthers adds up what is not best effort; false if something is not known.
func (l *Loop) useOfOthers(be string) (others, system float64, ok bool) {
	group := l.byGroup[be]
	if group == nil || l.in.Host.CPUs.IsEmpty() {
		return 0, 0, false
	}
	all := 0.0
	for i := range l.in.Workloads {
		w := &l.in.Workloads[i]
		if l.inner(w) {
			continue // it is part of another
		}
		all += w.Use
		if !w.Class.Traits().Squeezed {
			others += w.Use
		}
	}
	system = max(l.in.Host.Use-all, 0)
	return others, system, !math.IsNaN(others) && !math.IsNaN(system)
}

// inner reports whether a workload lies in another.
func (l *Loop) inner(w *Workload) bool {
	for at := path.Dir(w.Group); at != "." && at != "/"; at = path.Dir(at) {
		if l.byGroup[at] != nil {
			return true
		}
	}
	return false
}

// suppressTo is the next action, and whether it differs from the present one.
func (l *Loop) suppressTo(s *Suppression, group *Workload, limit float64) (Action, bool) {
	n := l.in.Host.CPUs.Len()
	if s.ByQuota {
		present := 0.0
		if l.limit.action != nil {
			present = cpusOf(l.limit.action.Limits)
		}
		a := Action{Remedy: detect.HeadroomCap, Group: s.Group, Resource: detect.CPU, Limits: quota(s.Quota(limit, present, n))}
		return a, l.limit.action == nil || !same(&a, l.limit.action)
	}
	have := group.CPUs
	if have.IsEmpty() {
		have = l.in.Host.CPUs
	}
	present := 0
	if l.limit.action != nil {
		present = l.limit.action.Limits.CPUs.Len()
	}
	ls, lsr := l.lendable(have)
	want := min(s.CPUs(limit, present, n), ls.Len()+lsr.Len())
	if present == want {
		return Action{}, false
	}
	a := Action{Remedy: detect.ShrinkCPUs, Group: s.Group, Resource: detect.CPU}
	a.Limits.CPUs = s.Pick(l.cfg.Machine, ls, lsr, want)
	return a, true
}

// lendable are the CPUs, of some, that best-effort work may use: those of no workload, and
// those that LSR workloads own. LSE and SYSTEM do not lend theirs, unless nothing else is left.
func (l *Loop) lendable(have cpuset.Set) (ls, lsr cpuset.Set) {
	var kept cpuset.Set
	for i := range l.in.Workloads {
		switch w := &l.in.Workloads[i]; w.Class {
		case place.LSE, place.System:
			kept = kept.Union(w.CPUs)
		case place.LSR:
			lsr = lsr.Union(w.CPUs)
		}
	}
	if have.Minus(kept).IsEmpty() {
		return have, cpuset.Set{}
	}
	have = have.Minus(kept)
	return have.Minus(lsr), have.Intersect(lsr)
}

// Pick chooses n CPUs for best-effort work as Koordinator does: of those that LSR workloads
// own, and of the others, in the ratio of their numbers; whole cores, of the NUMA nodes in
// turn. More CPUs are always the same ones and others beside.
func (*Suppression) Pick(m *machine.Machine, ls, lsr cpuset.Set, n int) cpuset.Set {
	all := ls.Len() + lsr.Len()
	if all == 0 {
		return cpuset.Set{}
	}
	n = min(n, all)
	owned := n * lsr.Len() / all
	return pick(m, ls, n-owned).Union(pick(m, lsr, owned))
}

// pick chooses n of some CPUs, core by core, the last first, of the NUMA nodes in turn.
func pick(m *machine.Machine, from cpuset.Set, n int) (chosen cpuset.Set) {
	var nodes [][]cpuset.Set
	if m != nil {
		for _, node := range m.ByKind(machine.Node) {
			if cores := coresIn(m, from.Intersect(node.CPUs)); len(cores) > 0 {
				slices.Reverse(cores)
				nodes = append(nodes, cores)
			}
		}
	}
	for i := 0; chosen.Len() < n && len(nodes) > 0; i++ {
		at := i % len(nodes)
		next := nodes[at][0].Slice()
		for _, cpu := range next[:min(len(next), n-chosen.Len())] {
			chosen = chosen.Union(cpuset.MustOf(cpu))
		}
		if nodes[at] = nodes[at][1:]; len(nodes[at]) == 0 {
			nodes = slices.Delete(nodes, at, at+1)
			i = at - 1
		}
	}
	// What is no whole core, or on a machine without nodes.
	return chosen.Union(choose(m, from.Minus(chosen), cpuset.Set{}, n-chosen.Len()))
}

func (l *Loop) setSuppression(ctx context.Context, a Action, why string) {
	changes, err := l.overrides.set(ctx, suppressionOwner, a)
	outcome := Applied
	switch {
	case err != nil:
		outcome, why = Failed, err.Error()
	case l.cfg.Mode == Preview:
		outcome = WouldApply
	}
	if err == nil {
		l.limit.action = &a
	}
	l.file(outcome, a, Event{Changes: changes, Text: why})
}

func (l *Loop) releaseSuppression(ctx context.Context, why string) {
	if l.limit.action == nil {
		return
	}
	a := *l.limit.action
	changes, err := l.overrides.unset(ctx, suppressionOwner, a)
	outcome := Reverted
	if err != nil {
		outcome, why = Failed, err.Error()
	}
	l.limit = suppressed{at: l.limit.at}
	l.file(outcome, a, Event{Changes: changes, Text: why})
}
