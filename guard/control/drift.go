package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"berth.dev/berth/kernel"
)

// Active settings are read back every driftCheck. A setting that another writer has changed
// is applied again; the maxDrift-th time within driftSpan it is yielded (desired.Rule).
const (
	driftCheck = 10 * time.Second
	driftSpan  = 5 * time.Minute
	maxDrift   = 3
)

// checkDrift reads active settings back.
func (l *Loop) checkDrift(ctx context.Context) {
	if l.cfg.Mode != Enforce || l.now.Sub(l.checked) < driftCheck {
		return
	}
	l.checked = l.now
	for _, k := range slices.Clone(l.real.all) {
		if k.now == nil || k.dirty {
			continue
		}
		// The next write reports a setting that cannot be read.
		if differs, err := l.act.Preview(ctx, *k.now); err == nil && len(differs) > 0 {
			l.drifted(ctx, k, differs[0])
		}
	}
}

// drifted handles a change by another writer. Reverting first leaves that writer's value,
// which is then the original one that is restored in the end.
func (l *Loop) drifted(ctx context.Context, k *override, found Change) {
	a := *k.now
	count, yielded := l.real.drift.Found(k.target, l.real.instant(l.now))
	text := fmt.Sprintf("somebody else has set %s to %q", found.Path, found.From)
	_, err := l.act.Revert(ctx, a)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, kernel.ErrChanged) {
		err = nil
	}
	if yielded {
		l.real.forget(k, err != nil)
		l.real.drift.Forget(k.target)
		l.yield(a, fmt.Sprintf("%s, %d times in %v: it is theirs", text, count, driftSpan))
		return
	}
	var changes []Change
	if err == nil {
		k.now = nil
		changes, err = l.real.settle(ctx, k)
	}
	e := Event{
		Time: l.now, Mode: l.cfg.Mode, Outcome: Restored, Victim: a.Victim, Suspect: a.Suspect, Resource: a.Resource,
		Action: &a, Changes: changes, Text: text,
	}
	if err != nil {
		k.dirty = true
		e.Outcome, e.Alert, e.Text = Failed, true, text+": "+err.Error()
	}
	l.events = append(l.events, e)
}

// yield forgets the actions on a knob that another writer owns.
func (l *Loop) yield(a Action, why string) {
	same := func(s step) bool { return s.action.Group == a.Group && s.action.Remedy == a.Remedy }
	for _, at := range l.escalations {
		changing := (at.phase == Verifying || at.phase == Relaxing) && same(step{action: *at.changing()})
		mine := slices.IndexFunc(at.steps, same)
		if !changing && mine < 0 {
			continue
		}
		v := verdict{suspect: a.Suspect, remedy: a.Remedy, until: l.now.Add(l.cfg.MaxHold), why: notOurs}
		if mine >= 0 {
			v.suspect = at.steps[mine].action.Suspect
		}
		at.failed = append(l.current(at.failed, v), v)
		at.steps = slices.DeleteFunc(at.steps, same)
		if changing || len(at.steps) == 0 {
			at.hold(l.now, at.wait)
		}
	}
	if s := l.limit.action; s != nil && same(step{action: *s}) {
		l.limit = suppressed{at: l.now, until: l.now.Add(l.cfg.MaxHold)}
	}
	l.events = append(l.events, Event{
		Time: l.now, Mode: l.cfg.Mode, Outcome: Yielded, Victim: a.Victim, Suspect: a.Suspect, Resource: a.Resource,
		Action: &a, Alert: true, Text: why,
	})
}
