package control

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/desired"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
)

// overrides are the active settings of the loop, which lie above those of the groups, and
// for which victims they are. Several victims may want the same; the strongest wish is active (desired.State).
type overrides struct {
	act      Actuator
	remedies []Remedy
	preview  bool // nothing is written for new wishes
	want     desired.State
	asked    map[claim]Action // behind the claims of want
	all      []*override
	drift    desired.Drift[target]
	began    time.Time // where drift and retries count from
	left     []left
}

// target names the setting that an action changes: a remedy of a group.
type target struct {
	group  string
	remedy detect.Remedy
}

// claim is an owner's wish for a target.
type claim struct {
	target
	owner string
}

// left is a process that is left alone for a time, as it was changed by somebody else, or by itself.
type left struct {
	Process
	until time.Time
}

// ours are the processes that are not left alone.
func (k *overrides) ours(of []Process) []Process {
	return slices.DeleteFunc(slices.Clone(of), func(p Process) bool {
		return slices.ContainsFunc(k.left, func(l left) bool { return l.Is(p) })
	})
}

// leave takes processes out of the wishes for a target, and leaves them alone for a time.
func (k *overrides) leave(at *override, of []Process, until time.Time) {
	for _, p := range of {
		k.left = append(k.left, left{p, until})
	}
	for c, a := range k.asked {
		if c.target == at.target {
			a.Processes = k.ours(a.Processes)
			k.asked[c] = a
		}
	}
}

// override is the active action of a target.
type override struct {
	target
	now *Action // nil is the original
	// dirty says that the kernel may differ from now: an error came between. It is
	// tried again when retry says so.
	dirty bool
	retry desired.Retry
}

func newOverrides(act Actuator, remedies []Remedy) overrides {
	return overrides{
		act: act, remedies: remedies, asked: map[claim]Action{},
		drift: desired.Drift[target]{Rule: desired.Rule{Limit: maxDrift - 1, Window: int64(driftSpan)}},
	}
}

// instant is a time as package desired counts it.
func (k *overrides) instant(now time.Time) desired.Instant {
	if k.began.IsZero() {
		k.began = now
	}
	return int64(now.Sub(k.began))
}

func compareTarget(k *override, a Action) int {
	return cmp.Or(strings.Compare(k.group, a.Group), cmp.Compare(k.remedy, a.Remedy))
}

func (k *overrides) find(a Action) *override {
	if i, ok := slices.BinarySearchFunc(k.all, a, compareTarget); ok {
		return k.all[i]
	}
	return nil
}

func (k *overrides) make(a Action) *override {
	i, ok := slices.BinarySearchFunc(k.all, a, compareTarget)
	if !ok {
		at := &override{target: target{a.Group, a.Remedy}, retry: desired.Retry{First: int64(firstRetry), Last: int64(lastRetry)}}
		k.all = slices.Insert(k.all, i, at)
	}
	return k.all[i]
}

// set makes an action an owner's wish, in place of an earlier one for the same target.
// After an error everything is as before, or is to be: see dirty.
func (k *overrides) set(ctx context.Context, owner string, a Action) ([]Change, error) {
	at := k.make(a)
	want, asked := k.want.Clone(), maps.Clone(k.asked)
	k.claim(owner, a)
	changes, err := k.settle(ctx, at)
	if err != nil {
		k.want, k.asked = want, asked
		if _, e := k.settle(ctx, at); e != nil {
			err = errors.Join(err, e)
		}
		k.tidy()
	}
	return changes, err
}

func (k *overrides) claim(owner string, a Action) {
	c := claim{target{a.Group, a.Remedy}, owner}
	a.Processes = k.ours(a.Processes)
	k.disclaim(c)
	k.asked[c] = a
	r := find(k.remedies, a.Remedy)
	for id, value := range a.settings() {
		k.want.Override(a.Group, id, desired.Claim{Owner: owner, Reason: a.Remedy.String(), Value: value, Widens: r.Gives})
	}
}

func (k *overrides) disclaim(c claim) {
	asked := k.asked[c]
	for id := range asked.settings() {
		k.want.Remove(c.group, id, c.owner)
	}
	delete(k.asked, c)
}

// unset takes an owner's wish back.
func (k *overrides) unset(ctx context.Context, owner string, a Action) ([]Change, error) {
	at := k.find(a)
	if at == nil {
		return nil, nil
	}
	k.disclaim(claim{at.target, owner})
	changes, err := k.settle(ctx, at)
	k.tidy()
	return changes, err
}

// forget takes every owner's wish for a target back, as if nothing were active.
func (k *overrides) forget(at *override, dirty bool) {
	for c := range k.asked {
		if c.target == at.target {
			k.disclaim(c)
		}
	}
	at.now, at.dirty = nil, dirty
	k.tidy()
}

// settle drives the kernel to the strongest wish, if it is not there.
func (k *overrides) settle(ctx context.Context, at *override) (changes []Change, err error) {
	want := k.strongest(at)
	if !at.dirty && same(want, at.now) {
		return nil, nil
	}
	switch {
	case k.preview && want != nil && k.act != nil:
		changes, err = k.act.Preview(ctx, *want)
	case k.preview && !at.dirty:
	case want != nil:
		changes, err = k.act.Apply(ctx, *want)
	case at.now != nil:
		changes, err = k.act.Revert(ctx, *at.now)
	case at.dirty: // the first Apply failed; what it left is reverted
		changes, err = k.act.Revert(ctx, Action{Remedy: at.remedy, Group: at.group})
	}
	if want == nil && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, kernel.ErrChanged)) {
		err = nil // the group is gone, and its settings with it; or the value is somebody else's by now
	}
	if k.preview && want != nil {
		if err == nil {
			at.now = want
		}
		return changes, err
	}
	at.dirty = err != nil
	if err == nil {
		at.now = want
		at.retry.Done()
	}
	return changes, err
}

// strongest is the wish whose setting is effective, or nil.
func (k *overrides) strongest(at *override) *Action {
	values := k.want.Of(at.group)
	rows := find(k.remedies, at.remedy).rows()
	for _, row := range rows {
		for _, id := range values.Settings().IDs() {
			if id.Knob == row {
				a := k.asked[claim{at.target, values[id].Owner}]
				return &a
			}
		}
	}
	return nil
}

// tidy forgets targets that are as they were.
func (k *overrides) tidy() {
	k.all = slices.DeleteFunc(k.all, func(at *override) bool {
		done := at.now == nil && !at.dirty && k.strongest(at) == nil
		if done {
			k.drift.Forget(at.target)
		}
		return done
	})
}

func (k *overrides) pending() bool {
	return slices.ContainsFunc(k.all, func(at *override) bool { return at.dirty })
}

// pendingActions are those whose targets are dirty.
func (k *overrides) pendingActions() []Action {
	var all []Action
	for _, at := range k.all {
		switch {
		case at.dirty && at.now != nil:
			all = append(all, *at.now)
		case at.dirty:
			all = append(all, Action{Remedy: at.remedy, Group: at.group})
		}
	}
	return all
}

// has reports whether the target of an action is active or dirty, or one that is
// written with it.
func (k *overrides) has(a Action) bool {
	return slices.ContainsFunc(k.all, func(at *override) bool { return k.shares(Action{Remedy: at.remedy, Group: at.group}, a) })
}

// shares reports whether two actions may write the same files.
func (k *overrides) shares(a, b Action) bool {
	if a.Remedy != b.Remedy {
		return false
	}
	r := find(k.remedies, a.Remedy)
	return a.Group == b.Group || r != nil && r.Below && related(a.Group, b.Group)
}

// pendingAt reports whether a target of the group, or of one in or around it, is dirty.
func (k *overrides) pendingAt(group string) bool {
	return slices.ContainsFunc(k.all, func(at *override) bool { return at.dirty && related(at.group, group) })
}

func related(a, b string) bool { return kernel.Within(a, b) || kernel.Within(b, a) }

// A change that the kernel refused is tried again after firstRetry, then after twice as long
// each time, up to lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// retried is an action that was reverted when the kernel was asked again.
type retried struct {
	action  Action
	changes []Change
}

// retry repeats the changes that the kernel has refused, if they are due or forced.
func (k *overrides) retry(ctx context.Context, now time.Time, force bool) (reverted []retried, failed []*override, errs []error) {
	for _, at := range slices.Clone(k.all) {
		if !at.dirty {
			continue
		}
		if !at.retry.Failing() && !force { // the failure was in the step before
			at.retry.Failed(k.instant(now))
			continue
		}
		if !force && !at.retry.Due(k.instant(now)) {
			continue
		}
		was := at.now
		changes, err := k.settle(ctx, at)
		switch {
		case err != nil:
			at.retry.Failed(k.instant(now))
			failed, errs = append(failed, at), append(errs, err)
		case was != nil && at.now == nil:
			reverted = append(reverted, retried{*was, changes})
		}
	}
	k.tidy()
	return reverted, failed, errs
}

func (k *overrides) active() []Action {
	var all []Action
	for _, at := range k.all {
		if at.now != nil {
			all = append(all, *at.now)
		}
	}
	return all
}
