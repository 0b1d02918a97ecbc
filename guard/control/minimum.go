package control

import (
	"context"
	"fmt"
	"math"
	"time"
)

const (
	starveFor = 10 * time.Second
	fullHost  = 0.95 // of the CPUs in use: whoever wants more goes short
)

// ensureMinimum gives a group that yields a weight instead, once it has had less
// than its floor for starveFor while the host was full: cpu.idle alone is no floor. A
// group that wanted no more than that before is not starved by having half of it.
func (l *Loop) ensureMinimum(ctx context.Context, at *escalation) {
	n := l.in.Host.CPUs.Len()
	for i := range at.steps {
		s := &at.steps[i]
		w := l.byGroup[s.action.Group]
		if !s.remedy.Yields || w == nil || l.cfg.Mode != Enforce {
			continue
		}
		floor := min(FloorQuota(n), s.use/2)
		switch {
		case !(w.Use < floor):
			s.starved = 0
		case l.in.Host.Use >= fullHost*float64(n):
			s.starved += at.passed
		default:
			s.starved = max(s.starved-at.passed, 0)
		}
		if s.starved < starveFor {
			continue
		}
		s.starved = 0
		fed := s.action
		fed.Limits.Idle, fed.Limits.Weight = 0, l.floorWeight(&s.action)
		if !s.remedy.stronger(s.action.Limits, fed.Limits) {
			continue // its own weight is no more
		}
		text := fmt.Sprintf("it had %.2f CPUs for %v while the host was full: its floor is %.2f", w.Use, starveFor, floor)
		changes, err := l.overrides.set(ctx, at.owner(), fed)
		if err != nil {
			l.report(s, err)
			continue
		}
		s.action = fed
		l.emit(Relaxed, s, Event{Changes: changes, Text: text})
	}
}

// floorWeight is the weight that leaves a group 5 % beside the victim's side, or the
// group's own if that is less.
func (l *Loop) floorWeight(a *Action) int {
	beside := 100
	if side, _, ok := Diverge(a.Victim, a.Suspect); ok {
		if w := l.byGroup[side]; w != nil {
			beside = weightOr(w.Limits.Weight)
		}
	}
	return min(int(math.Ceil(float64(beside)*0.05/0.95)), weightOr(l.byGroup[a.Group].Limits.Weight))
}
