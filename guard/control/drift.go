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
	l.overrides.left = slices.DeleteFunc(l.overrides.left, func(p left) bool { return !l.now.Before(p.until) })
	for _, k := range slices.Clone(l.overrides.all) {
		if k.now == nil || k.dirty {
			continue
		}
		// The next write reports a setting that cannot be read.
		differs, err := l.act.Preview(ctx, *k.now)
		switch {
		case err != nil || len(differs) == 0:
		case differs[0].Process.PID != 0:
			l.spare(ctx, k, differs)
		default:
			l.drifted(ctx, k, differs[0])
		}
	}
}

// drifted handles a change by another writer. Reverting first leaves that writer's value,
// which is then the original one that is restored in the end. A group that was made anew under
// its name has its own settings, and nobody has changed them.
func (l *Loop) drifted(ctx context.Context, k *override, found Change) {
	a := *k.now
	_, err := l.act.Revert(ctx, a)
	anew := errors.Is(err, fs.ErrNotExist) && !l.remedy(a.Remedy).Sends() // a class may have been removed alone
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, kernel.ErrChanged) {
		err = nil
	}
	var text string
	count, yielded := 0, false
	if anew {
		text = a.Group + " was made anew"
	} else {
		count, yielded = l.overrides.drift.Found(k.target, l.overrides.instant(l.now))
		who := "somebody else"
		if w := l.byGroup[a.Group]; w != nil && w.Writer != "" {
			who = "somebody else, most likely " + w.Writer + ","
		}
		text = fmt.Sprintf("%s has set %s to %q", who, found.Path, found.From)
	}
	if yielded {
		l.overrides.forget(k, err != nil)
		l.overrides.drift.Forget(k.target)
		l.abandon(a, Yielded, notOurs, fmt.Sprintf("%s, %d times in %v: it is theirs", text, count, driftSpan))
		return
	}
	var changes []Change
	if err == nil {
		k.now = nil
		changes, err = l.overrides.settle(ctx, k)
	}
	if err != nil {
		k.dirty = true
		l.file(Failed, a, Event{Changes: changes, Alert: true, Text: text + ": " + err.Error()})
		return
	}
	l.file(Restored, a, Event{Changes: changes, Text: text})
}

// spare leaves the processes alone that have another value by now, at once and for long, and goes
// on with the others: any process may change its own affinity, as often as it likes.
func (l *Loop) spare(ctx context.Context, k *override, differs []Change) {
	a := *k.now
	a.Processes = slices.DeleteFunc(slices.Clone(a.Processes), func(p Process) bool {
		return !slices.ContainsFunc(differs, func(c Change) bool { return c.Process.Is(p) })
	})
	l.overrides.leave(k, a.Processes, l.now.Add(l.maxHold()))
	text := fmt.Sprintf("%s is %q and not what was set, by itself or by somebody else: it is left alone", differs[0].Path, differs[0].From)
	if len(a.Processes) > 1 {
		text += fmt.Sprintf(", and so are %d others", len(a.Processes)-1)
	}
	if len(a.Processes) < len(k.now.Processes) {
		changes, err := l.overrides.settle(ctx, k)
		if err == nil {
			l.file(Yielded, a, Event{Changes: changes, Text: text})
			return
		}
		if !errors.Is(err, fs.ErrNotExist) { // else the others have ended
			l.file(Failed, a, Event{Changes: changes, Alert: true, Text: text + ": " + err.Error()})
			return
		}
	}
	_, err := l.act.Revert(ctx, *k.now)
	l.overrides.forget(k, err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, kernel.ErrChanged))
	l.abandon(a, Yielded, notOurs, text)
}

// Reapply applies again what is active, as the writer of the base values has removed the
// overrides for a change below them. What does not fit any more is given up; what is to be
// reverted still, or would be active in mode Preview, is not applied.
func (l *Loop) Reapply(ctx context.Context) []Event {
	l.now, l.events = l.cfg.Now(), nil
	for _, k := range slices.Clone(l.overrides.all) {
		if k.now == nil || l.overrides.preview || l.overrides.strongest(k) == nil {
			continue // it is not active, or to be reverted
		}
		a := *k.now
		_, err := l.act.Apply(ctx, a)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue // gone: the next look at the groups finds out
		}
		_, left := l.act.Revert(ctx, a)
		l.overrides.forget(k, left != nil)
		l.abandon(a, Failed, notApplied, fmt.Sprintf("it is not active any more after a change of the placement: %v", err))
	}
	return l.events
}

// abandon forgets the actions on a knob, and files an event that says why.
func (l *Loop) abandon(a Action, outcome Outcome, failed, why string) {
	until := l.now.Add(l.maxHold())
	if outcome == Failed {
		until = l.now.Add(coolDown)
	}
	same := func(s step) bool { return s.action.Group == a.Group && s.action.Remedy == a.Remedy }
	for _, at := range l.escalations {
		changing := (at.phase == Verifying || at.phase == Relaxing) && same(step{action: *at.changing()})
		mine := slices.IndexFunc(at.steps, same)
		if !changing && mine < 0 {
			continue
		}
		v := verdict{suspect: a.Suspect, remedy: a.Remedy, until: until, why: failed}
		if mine >= 0 {
			v.suspect = at.steps[mine].action.Suspect
		}
		at.failed.add(l.now, v)
		at.steps = slices.DeleteFunc(at.steps, same)
		if changing || len(at.steps) == 0 {
			at.hold(l.now, at.wait)
		}
	}
	if s := l.limit.action; s != nil && same(step{action: *s}) {
		l.limit = suppressed{at: l.now, until: until}
	}
	l.file(outcome, a, Event{Alert: true, Text: why})
}
