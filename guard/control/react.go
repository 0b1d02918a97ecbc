package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
)

// cool leaves a suspect alone for some time.
func (l *Loop) cool(at *escalation, suspect string) {
	at.until = l.now.Add(coolDown)
	at.cooling.add(l.now, verdict{suspect: suspect, until: at.until})
	at.enter(Unresolved, l.now)
}

// explained reports whether a finding says that the victim lacks CPU time, or
// cycles, for a reason that is no neighbour. How much of a wait steal explains is for
// the detector to say.
func (l *Loop) explained(victim string, r detect.Resource) bool {
	switch r {
	case detect.CPU, detect.MemoryBandwidth, detect.LLC, detect.SMT:
	default:
		return false
	}
	return slices.ContainsFunc(l.in.Findings, func(f detect.Finding) bool {
		switch f.Resource {
		case detect.OwnLimit:
			return f.Victim == victim
		case detect.OwnLoad:
			return f.Victim == victim && r == detect.CPU
		case detect.Hypervisor:
			return f.Victim == victim && r != detect.CPU
		}
		return false
	})
}

// busy reports whether another escalation has a change under way whose effect could
// not be told from one here: to the same groups, or to the same cache domain.
func (l *Loop) busy(at *escalation, group string) bool {
	return slices.ContainsFunc(l.escalations, func(o *escalation) bool {
		if o == at || o.phase != Verifying && o.phase != Relaxing {
			return false
		}
		changing := o.changing()
		return related(changing.Group, group) || changing.Suspect != "" && related(changing.Suspect, group) ||
			at.ofCache() && o.ofCache() && l.shareCache(at.victim, o.victim)
	})
}

// changing is the action on probation or on trial.
func (at *escalation) changing() *Action {
	if at.trial != nil {
		return &at.trial.step.action
	}
	return &at.steps[len(at.steps)-1].action
}

func (at *escalation) ofCache() bool {
	return at.resource == detect.LLC || at.resource == detect.MemoryBandwidth
}

// shareCache reports whether two workloads may run in one last-level cache domain.
func (l *Loop) shareCache(a, b string) bool {
	x, y := l.byGroup[a], l.byGroup[b]
	if l.cfg.Machine == nil || x == nil || y == nil || x.CPUs.IsEmpty() || y.CPUs.IsEmpty() {
		return true
	}
	return slices.ContainsFunc(l.cfg.Machine.ByKind(machine.L3), func(d machine.Domain) bool {
		return d.CPUs.Overlaps(x.CPUs) && d.CPUs.Overlaps(y.CPUs)
	})
}

// react takes the next step about a finding, if one may and can be taken now.
func (l *Loop) react(ctx context.Context, f *detect.Finding) {
	if l.byGroup[f.Victim] == nil || !slices.ContainsFunc(f.Remedies, l.acts) || f.Suspect == "" && f.Resource != detect.OwnLimit {
		return
	}
	if l.explained(f.Victim, f.Resource) {
		return
	}
	at := l.escalation(f.Victim, f.Resource)
	if at.near != l.in.Near {
		return
	}
	f = l.heavier(at, f)
	symptom, known := l.symptom(f.Victim, f.Resource)
	evident := cmp.Or(symptom.Evident, symptom.Typical)
	weak := f.Suspect != "" && evident > 0 && evident < marked
	slight := f.Takes && (symptom.Evident < marked || symptom.Strength < 1)
	if slight {
		if f = l.cheaply(at, f); f == nil {
			return
		}
		weak, symptom.Typical = false, 0
	}
	if why := l.spares(at, f.Suspect); why != "" {
		if known && (slight || symptom.Strength >= 1) && !weak {
			l.tellSpared(at, f, why)
		}
		return
	}
	at.found = l.now
	if weak {
		return
	}
	if at.cured(f.Suspect, symptom) || at.holds(f.Suspect) && (l.freed(at) || at.onProbation(true)) {
		return
	}
	if !known || symptom.Strength < 1 && !slight || at.cooling.about(l.now, f.Suspect, "") != nil {
		return
	}
	outweighed := at.phase == Verifying && l.outweighed(at, f)
	if !outweighed && (at.phase == Verifying || at.phase == Relaxing) {
		return
	}
	if l.cfg.Mode == Preview && at.against(f.Suspect) {
		return
	}
	on := f.Suspect
	if on == "" {
		on = f.Victim
	}
	if l.busy(at, on) || l.overrides.pendingAt(on) {
		return
	}
	if outweighed {
		last := &at.steps[len(at.steps)-1]
		l.probation(at, last, l.effect(at, last), "the victim waits longer for "+f.Suspect)
	}
	l.escalate(ctx, at, f, symptom)
}

// cheaply returns a finding by what its suspect has begun to take as one about a first step by which it yields: it is
// no evidence for more. It is nil if there is none.
func (l *Loop) cheaply(at *escalation, f *detect.Finding) *detect.Finding {
	cheap := *f
	cheap.Remedies = slices.DeleteFunc(slices.Clone(f.Remedies), func(name detect.Remedy) bool {
		r := l.remedy(name)
		return r == nil || !r.Yields || at.failed.about(l.now, f.Suspect, name) != nil
	})
	if at.against(f.Suspect) || !l.curable(at, &cheap, f.Suspect) {
		return nil
	}
	return &cheap
}

// cured reports whether the last step, against the suspect, has ended what others
// impose: what is left is the victim's own queue, and worth no further step.
func (at *escalation) cured(suspect string, now detect.Symptom) bool {
	return at.holds(suspect) && now.Imposed != nil && at.steps[len(at.steps)-1].imposed >= 1 && *now.Imposed < 1
}

// holds reports whether the last step is against the suspect.
func (at *escalation) holds(suspect string) bool {
	return len(at.steps) > 0 && at.steps[len(at.steps)-1].action.Suspect == suspect
}

// heavier returns a finding about the CPU as one about another group, if its suspect uses little beside that: by
// the short windows the other uses twice as much, the victim waits for it at least half as long, and something
// can be done about it.
func (l *Loop) heavier(at *escalation, f *detect.Finding) *detect.Finding {
	suspect := l.byGroup[f.Suspect]
	if at.resource != detect.CPU || suspect == nil || suspect.Recent == nil || at.against(f.Suspect) {
		return f
	}
	own := l.delayBefore(at, f.Suspect, agreeing)
	most, part := suspect, 0.0
	for i := range l.in.Workloads {
		w := &l.in.Workloads[i]
		if w.Group == at.victim || w.Recent == nil || *w.Recent < max(2**suspect.Recent, *most.Recent) {
			continue
		}
		other := l.delayBefore(at, w.Group, agreeing)
		if own.probed && other.probed && other.part >= half*own.part && l.curable(at, f, w.Group) {
			most, part = w, other.part/own.part
		}
	}
	if most == suspect {
		return f
	}
	about := *f
	about.Suspect, about.Share, about.Confidence = most.Group, min(part*f.Share, 1), min(part, 1)*f.Confidence
	about.Evidence = slices.Clone(f.Evidence)
	for i := range about.Evidence {
		if e := &about.Evidence[i]; e.Signal == detect.QueueShare {
			e.Subject.Name, e.Value = most.Group, about.Share
		}
	}
	return &about
}

// spares says why a suspect against which no step is taken is left alone: it uses less than 0.25 CPUs by the short
// windows. Or beside steps against others, of which the last is not on probation, it uses less than that by any
// window, or less than half of both what the group of that step did and what the victim does. It is "" of any
// other. What a hog uses grows once another yields to it.
func (l *Loop) spares(at *escalation, suspect string) (why string) {
	victim, w := l.byGroup[at.victim], l.byGroup[suspect]
	if at.resource != detect.CPU || w == nil || at.against(suspect) {
		return ""
	}
	use := w.recently()
	if w.Recent != nil && use < greedy {
		return fmt.Sprintf("it uses %.3f CPUs, and a group is acted on from %.3f on", use, greedy)
	}
	if len(at.steps) == 0 || at.onProbation(false) {
		return ""
	}
	last := &at.steps[len(at.steps)-1]
	if least := max(greedy, min(last.use, victim.Use)/2); use < least {
		return fmt.Sprintf("it uses %.3f CPUs, and beside a remedy against %s a group is acted on from %.3f on", use, last.action.Suspect, least)
	}
	return ""
}

// tellSpared tells of a suspect that would be acted on if it used more, once in a cool-down.
func (l *Loop) tellSpared(at *escalation, f *detect.Finding, why string) {
	if at.spared.about(l.now, f.Suspect, "") != nil {
		return
	}
	at.spared.add(l.now, verdict{suspect: f.Suspect, until: l.now.Add(coolDown)})
	l.events = append(l.events, Event{
		Time: l.now, Mode: l.cfg.Mode, Outcome: Spared, Victim: f.Victim, Suspect: f.Suspect, Resource: f.Resource,
		Confidence: f.Confidence, Evidence: f.Evidence, Text: why,
	})
}

// against reports whether a step is taken against a suspect.
func (at *escalation) against(suspect string) bool {
	return slices.ContainsFunc(at.steps, func(s step) bool { return s.action.Suspect == suspect })
}

// onProbation reports whether the last step has not shown that it helps; of one by which
// a group yields, unless costly, that it has not either.
func (at *escalation) onProbation(costly bool) bool {
	n := len(at.steps)
	return n > 0 && at.steps[n-1].undecided && !(costly && at.steps[n-1].remedy.Yields)
}

// outweighed reports whether the victim waits longer for a suspect than it did, before the step that is being
// verified, for the suspect of that, and something can be done about it. What the step does is not told meanwhile,
// and if the group only yields it need not be.
func (l *Loop) outweighed(at *escalation, f *detect.Finding) bool {
	last := &at.steps[len(at.steps)-1]
	if !last.remedy.Yields || last.action.Suspect == f.Suspect || !last.delay.probed || at.seen.windows < lookBack {
		return false
	}
	now := l.delayBefore(at, f.Suspect, lookBack)
	return now.probed && now.part > last.delay.part && l.curable(at, f, f.Suspect)
}

// curable reports whether one of the remedies of a finding can be applied next to a group.
func (l *Loop) curable(at *escalation, f *detect.Finding, group string) bool {
	return slices.ContainsFunc(f.Remedies, func(name detect.Remedy) bool {
		_, reason := l.propose(at, name, group, at.held(group, name))
		return reason == ""
	})
}

// escalate takes the next step of the escalation.
func (l *Loop) escalate(ctx context.Context, at *escalation, f *detect.Finding, symptom detect.Symptom) {
	var skipped []Skip
	tried := len(at.steps) > 0
	for _, name := range l.order(at, f) {
		if v := at.failed.about(l.now, f.Suspect, name); v != nil {
			skipped, tried = append(skipped, Skip{name, v.why}), true
			continue
		}
		held := at.held(f.Suspect, name)
		a, reason := l.propose(at, name, f.Suspect, held)
		if reason != "" {
			skipped = append(skipped, Skip{name, reason})
			continue
		}
		w := l.byGroup[a.Group]
		s := step{
			action: a, remedy: l.remedy(name), strength: symptom.Strength, confidence: f.Confidence, evidence: f.Evidence, use: w.recently(), memory: w.Memory,
		}
		if symptom.Typical > 0 {
			s.strength = symptom.Typical
		}
		if symptom.Imposed != nil {
			s.imposed = *symptom.Imposed
		}
		s.delay = l.delayBefore(at, f.Suspect, agreeing)
		if held != nil {
			before := held.action
			s.before, s.memory = &before, held.memory
		}
		done, again := l.take(ctx, at, s, skipped)
		if done || !again {
			return
		}
		skipped, tried = append(skipped, Skip{name, notApplied}), true
	}
	l.cool(at, f.Suspect)
	outcome, text := Refused, fmt.Sprintf("left alone for %v", coolDown)
	if tried {
		outcome = GaveUp
	}
	if len(at.steps) > 0 && l.cfg.Mode == Enforce {
		text += "; what is active for the victim stays"
	}
	l.events = append(l.events, Event{
		Time: l.now, Mode: l.cfg.Mode, Outcome: outcome, Victim: f.Victim, Suspect: f.Suspect, Resource: f.Resource,
		Confidence: f.Confidence, Evidence: f.Evidence, Skipped: skipped, Alert: tried, Text: text,
	})
}

// propose returns what a remedy would do next about a suspect, or why it cannot.
// Held is this escalation's last step by the same remedy, or nil.
func (l *Loop) propose(at *escalation, name detect.Remedy, suspect string, held *step) (a Action, reason string) {
	r := l.remedy(name)
	if r == nil {
		return a, advice(name)
	}
	if why := l.in.Host.Unavailable[name]; why != "" {
		return a, why
	}
	a = Action{Remedy: name, Victim: at.victim, Suspect: suspect, Resource: at.resource, Group: suspect}
	if r.Target != nil {
		if a.Group, reason = r.Target(at.victim, suspect); reason != "" {
			return a, reason
		}
	}
	if reason = l.permits(a); reason != "" {
		return a, reason
	}
	if held == nil && l.overrides.has(a) {
		return a, "it is active already, for another victim or resource"
	}
	c := l.caseOf(&a)
	if held != nil {
		c.Held, c.HeldShare, c.MemoryBefore = &held.action.Limits, &held.action.Share, held.memory
	}
	if r.Divide != nil {
		a.Share, reason = r.Divide(&c)
		return a, reason
	}
	if r.Processes {
		if a.Processes = l.overrides.ours(c.Group.Processes); len(a.Processes) == 0 {
			return a, "the processes in no group have set themselves otherwise, or somebody else has"
		}
		c.More = held != nil && slices.ContainsFunc(a.Processes, func(p Process) bool { return !slices.ContainsFunc(held.action.Processes, p.Is) })
	}
	a.Limits, reason = r.Propose(&c)
	return a, reason
}

// caseOf has the facts about an action's victim and group.
func (l *Loop) caseOf(a *Action) Case {
	c := Case{Host: l.in.Host, Machine: l.cfg.Machine, BestEffort: l.bestEffort(a.Group)}
	if w := l.byGroup[a.Victim]; w != nil {
		c.Victim = *w
	}
	if w := l.byGroup[a.Group]; w != nil {
		c.Group = *w
	}
	return c
}

// weaker returns a weaker action on the way back to the one before a step; nil stands for the
// original settings.
func (l *Loop) weaker(s *step) *Action {
	c := l.caseOf(&s.action)
	if s.remedy.Widen != nil {
		var before *Share
		if s.before != nil {
			before = &s.before.Share
		}
		a := s.action
		to, ok := s.remedy.Widen(&c, a.Share, before)
		if a.Share = to; !ok {
			return s.before
		}
		return &a
	}
	if s.remedy.Weaker == nil {
		return s.before
	}
	var before *cgroup.Limits
	if s.before != nil {
		before = &s.before.Limits
	}
	to, ok := s.remedy.Weaker(&c, s.action.Limits, before)
	if !ok {
		return s.before
	}
	a := s.action
	a.Limits = to
	return &a
}

// acts reports whether a remedy is one that the loop carries out, and not advice.
func (l *Loop) acts(name detect.Remedy) bool { return l.remedy(name) != nil }

// remedy returns one of the loop's by its name, or nil.
func (l *Loop) remedy(name detect.Remedy) *Remedy { return find(l.cfg.Remedies, name) }

// order returns the remedies in the order in which they are tried: those first that have helped against the
// suspect before.
func (l *Loop) order(at *escalation, f *detect.Finding) []detect.Remedy {
	order := slices.Clone(f.Remedies)
	slices.SortStableFunc(order, func(a, b detect.Remedy) int {
		return rank(at.helped.about(l.now, f.Suspect, a) != nil) - rank(at.helped.about(l.now, f.Suspect, b) != nil)
	})
	return order
}

func rank(helped bool) int {
	if helped {
		return 0
	}
	return 1
}

// take applies a step. Done is true if it is; again if another may be tried
// instead.
func (l *Loop) take(ctx context.Context, at *escalation, s step, skipped []Skip) (done, again bool) {
	if !l.bucket.take(l.now) {
		if l.now.Sub(at.refused) >= time.Minute {
			at.refused = l.now
			l.emit(Refused, &s, Event{Alert: true, Text: fmt.Sprintf("more than %d actions a minute", l.cfg.PerMinute)})
		}
		return false, false
	}
	changes, err := l.overrides.set(ctx, at.owner(), s.action)
	if err != nil {
		at.failed.add(l.now, verdict{suspect: s.action.Suspect, remedy: s.action.Remedy, until: l.now.Add(coolDown), why: notApplied})
		l.report(&s, err)
		return false, !l.overrides.pendingAt(s.action.Group)
	}
	if !at.relaxed.IsZero() {
		if at.soonAfter(l.now) {
			at.wait = min(2*at.wait, l.maxHold())
		} else {
			at.wait = l.cfg.Hold
		}
		at.relaxed = time.Time{}
	}
	s.at = l.cfg.Now()
	at.steps = append(at.steps, s)
	if l.cfg.Mode == Preview {
		l.emit(WouldApply, &s, Event{Changes: changes, Skipped: skipped})
		at.hold(l.now, at.wait)
		return true, false
	}
	l.emit(Applied, &s, Event{Changes: changes, Skipped: skipped})
	at.enter(Verifying, l.now)
	return true, false
}
