package control

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// knobs are the settings that the loop has in force, and for whom. Several victims
// may want the same; the strongest wish is in force.
type knobs struct {
	act     Actuator
	virtual bool // nothing is written, as in mode preview
	all     []*knob
}

// knob is one remedy of one group.
type knob struct {
	group  string
	remedy detect.Remedy
	claims []claim
	now    *Action // in force; nil is the original
	// dirty says that the kernel may differ from now: an error came between. It is
	// tried again at retryAt.
	dirty   bool
	retryAt time.Time
	wait    time.Duration
	// rewritten is when somebody else was found to have changed it.
	rewritten []time.Time
}

type claim struct {
	owner  string
	action Action
}

func compareKnob(k *knob, a Action) int {
	return cmp.Or(strings.Compare(k.group, a.Group), cmp.Compare(k.remedy, a.Remedy))
}

func (k *knobs) find(a Action) *knob {
	if i, ok := slices.BinarySearchFunc(k.all, a, compareKnob); ok {
		return k.all[i]
	}
	return nil
}

func (k *knobs) make(a Action) *knob {
	i, ok := slices.BinarySearchFunc(k.all, a, compareKnob)
	if !ok {
		k.all = slices.Insert(k.all, i, &knob{group: a.Group, remedy: a.Remedy})
	}
	return k.all[i]
}

// set makes an action an owner's wish, in place of an earlier one for the same
// knob. After an error everything is as before, or is to be: see dirty.
func (k *knobs) set(ctx context.Context, owner string, a Action) ([]Change, error) {
	at := k.make(a)
	before := slices.Clone(at.claims)
	at.claims = slices.DeleteFunc(at.claims, func(c claim) bool { return c.owner == owner })
	at.claims = append(at.claims, claim{owner, a})
	changes, err := k.settle(ctx, at)
	if err != nil {
		at.claims = before
		if _, e := k.settle(ctx, at); e != nil {
			err = errors.Join(err, e)
		}
		k.tidy()
	}
	return changes, err
}

// unset takes an owner's wish back.
func (k *knobs) unset(ctx context.Context, owner string, a Action) ([]Change, error) {
	at := k.find(a)
	if at == nil {
		return nil, nil
	}
	at.claims = slices.DeleteFunc(at.claims, func(c claim) bool { return c.owner == owner })
	changes, err := k.settle(ctx, at)
	k.tidy()
	return changes, err
}

// adopt notes an action that is in force already.
func (k *knobs) adopt(owner string, a Action) {
	at := k.make(a)
	at.claims = append(at.claims, claim{owner, a})
	if at.now == nil || stronger(a, *at.now) {
		at.now = &a
	}
}

// settle drives the kernel to the strongest wish, if it is not there.
func (k *knobs) settle(ctx context.Context, at *knob) (changes []Change, err error) {
	want := at.strongest()
	if !at.dirty && same(want, at.now) {
		return nil, nil
	}
	switch {
	case k.virtual && want != nil:
		changes, err = k.act.Preview(ctx, *want)
	case k.virtual:
	case want != nil:
		changes, err = k.act.Apply(ctx, *want)
	case at.now != nil:
		changes, err = k.act.Revert(ctx, *at.now)
	case at.dirty: // the first Apply failed; what it left is taken back
		changes, err = k.act.Revert(ctx, Action{Remedy: at.remedy, Group: at.group})
	}
	if want == nil && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, kernel.ErrChanged)) {
		err = nil // the group is gone, and its settings with it; or the value is somebody else's by now
	}
	at.dirty = err != nil && !k.virtual
	if err == nil {
		at.now = want
		at.wait = 0
	}
	return changes, err
}

func (at *knob) strongest() *Action {
	var found *Action
	for i := range at.claims {
		if a := &at.claims[i].action; found == nil || stronger(*a, *found) {
			found = a
		}
	}
	if found == nil {
		return nil
	}
	a := *found
	return &a
}

// tidy forgets knobs that are as they were.
func (k *knobs) tidy() {
	k.all = slices.DeleteFunc(k.all, func(at *knob) bool { return len(at.claims) == 0 && at.now == nil && !at.dirty })
}

func (k *knobs) owes() bool {
	return slices.ContainsFunc(k.all, func(at *knob) bool { return at.dirty })
}

// owed are the actions whose knobs are dirty.
func (k *knobs) owed() []Action {
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

// has reports whether the knob of an action is in force or dirty, or one that is
// written with it.
func (k *knobs) has(a Action) bool {
	return slices.ContainsFunc(k.all, func(at *knob) bool { return sharesKnob(Action{Remedy: at.remedy, Group: at.group}, a) })
}

// sharesKnob reports whether two actions write the same files: on v1 a set of CPUs is
// written to all groups below as well.
func sharesKnob(a, b Action) bool {
	return a.Remedy == b.Remedy && (a.Group == b.Group || a.Remedy == detect.ShrinkCPUs && related(a.Group, b.Group))
}

// owesOf reports whether a knob of the group, or of one in or around it, is dirty.
func (k *knobs) owesOf(group string) bool {
	return slices.ContainsFunc(k.all, func(at *knob) bool { return at.dirty && related(at.group, group) })
}

func related(a, b string) bool { return Within(a, b) || Within(b, a) }

// retries are how long after a failure the kernel is told again: doubled each time.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// retry tells the kernel again what it has refused, where that is due or forced.
func (k *knobs) retry(ctx context.Context, now time.Time, force bool) (failed []*knob, errs []error) {
	for _, at := range slices.Clone(k.all) {
		if !at.dirty {
			continue
		}
		if at.retryAt.IsZero() && !force { // the failure was in the step before
			at.wait, at.retryAt = firstRetry, now.Add(firstRetry)
			continue
		}
		if !force && now.Before(at.retryAt) {
			continue
		}
		if _, err := k.settle(ctx, at); err != nil {
			at.wait = min(2*max(at.wait, firstRetry), lastRetry)
			at.retryAt = now.Add(at.wait)
			failed, errs = append(failed, at), append(errs, err)
			continue
		}
		at.retryAt = time.Time{}
	}
	k.tidy()
	return failed, errs
}

func (k *knobs) inForce() []Action {
	var all []Action
	for _, at := range k.all {
		if at.now != nil {
			all = append(all, *at.now)
		}
	}
	return all
}

// same reports whether two actions set a knob to the same.
func same(a, b *Action) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := a.Limits, b.Limits
	return a.Part == b.Part && x.Weight == y.Weight && x.Idle == y.Idle && x.Quota == y.Quota && x.Period == y.Period &&
		x.Burst == y.Burst && x.CPUs == y.CPUs && x.MemoryHigh == y.MemoryHigh && x.IOWeight == y.IOWeight
}

// stronger reports whether an action takes more away than another for the same
// knob.
func stronger(a, b Action) bool {
	x, y := a.Limits, b.Limits
	switch a.Remedy {
	case detect.Weight:
		if x.Idle != y.Idle {
			return x.Idle == cgroup.On
		}
		return x.Weight < y.Weight
	case detect.HeadroomCap:
		return cpusOf(x) < cpusOf(y)
	case detect.ShrinkCPUs:
		return x.CPUs.Len() < y.CPUs.Len()
	case detect.CacheWays, detect.BandwidthCap:
		return a.Part < b.Part
	case detect.MemoryHigh:
		return x.MemoryHigh < y.MemoryHigh
	case detect.IOWeight:
		return x.IOWeight < y.IOWeight
	}
	return false
}
