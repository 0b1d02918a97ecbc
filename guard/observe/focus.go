package observe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// Focus looks closely at some groups from the next tick on, MaxFocus at most and
// none within another. What cannot be had for one of them, Signals tells. A group that
// cannot be opened is an error, and does not keep the others out; the next call tries it again.
func (o *Observer) Focus(groups []string) error {
	if len(groups) > MaxFocus {
		return fmt.Errorf("focus on %d groups: at most %d", len(groups), MaxFocus)
	}
	var errs []error
	for group := range o.focus {
		if !slices.Contains(groups, group) {
			if err := o.unfocus(group); err != nil {
				errs = append(errs, fmt.Errorf("take %s out of focus: %w", group, err))
			}
		}
	}
	for _, group := range groups {
		if _, there := o.focus[group]; there {
			continue
		}
		if err := o.add(group); err != nil {
			errs = append(errs, fmt.Errorf("focus on %s: %w", group, err))
			continue
		}
		o.focus[group] = o.site.Open(group, o.usable(group), Sources(InFocus, o.cfg.Sources...))
		o.focus[group].Retry()
	}
	if o.hostwide == nil && len(groups) > 0 {
		o.openHostwide()
	}
	if o.cfg.Probe && len(groups)+len(o.programs) > 0 || o.armed {
		o.arm(sortedKeys(o.focus))
	}
	return errors.Join(errs...)
}

func (o *Observer) openHostwide() {
	o.hostwide = o.site.Open("", cpuset.Set{}, Sources(OfHost, o.cfg.Sources...))
	o.hostwide.Retry()
}

// unfocus closes what is open of a group in focus alone.
func (o *Observer) unfocus(group string) error {
	err := o.focus[group].Close()
	if o.queue != nil {
		_ = o.queue.probe.Remove("/" + group) // it may have gone when the probe was armed
	}
	delete(o.focus, group)
	return err
}

// renew opens anew what is of other CPUs now, and what could not be opened before. It has the probe watch groups that
// were made anew under their names, and those made below groups in focus.
func (o *Observer) renew() error {
	var errs []error
	for group, r := range o.focus {
		errs = append(errs, r.Move(o.usable(group)))
		r.Retry()
	}
	if o.queue != nil && (o.armed || o.cfg.Probe) {
		o.queue.watch(sortedKeys(o.focus), o.last)
	}
	return errors.Join(errs...)
}

// usable are the CPUs that are online and that a group may use; those online where
// the host does not tell the group's.
func (o *Observer) usable(group string) cpuset.Set {
	online, own := o.site.online(), o.CPUs(group)
	switch {
	case own.IsEmpty():
		return online
	case online.IsEmpty():
		return own
	}
	return own.Intersect(online)
}

// near are the signals that are worth reading several times a second.
func near() cgroupstat.Set {
	return cgroupstat.SetOf(cgroupstat.Usage, cgroupstat.Throttling, cgroupstat.ThrottlingAny, cgroupstat.CPUPressure)
}

// TickNear appends the samples of now that are worth reading several times a second: of
// the host, and of the groups in focus CPU use, throttling, pressure, run delay, and
// what the run-queue probe tells while it is armed by Arm. Of the groups for which those
// wait longest it appends CPU use. What Tick has read of a group at the same time is not
// read a second time.
func (o *Observer) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	to, err := o.files.read(now, to)
	errs := []error{err}
	groups := sortedKeys(o.focus)
	for _, group := range groups {
		if to, err = o.stats.SampleGroup(now, group, cgroupstat.Request{Read: near(), Fresh: near()}, to); errors.Is(err, watch.ErrGone) {
			err = o.remove(group)
		}
		errs = append(errs, err)
	}
	for _, group := range groups {
		to = o.focus[group].readOne(runDelay, now, to)
	}
	if o.armed {
		to, err = o.readQueue(now, to)
		errs = append(errs, err)
		to, err = o.readSuspects(now, to)
		errs = append(errs, err)
	}
	o.last = now
	return to, errors.Join(errs...)
}

// readQueue appends what the run-queue probe tells. One that fails is detached for good.
func (o *Observer) readQueue(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	before := o.queueAt
	o.queueAt = now
	if o.queue == nil {
		return to, nil
	}
	to, err := o.queue.read(now, before, to)
	if err != nil {
		err = errors.Join(err, o.queue.close())
		o.noRun, o.queue = err, nil
		return to, err
	}
	return to, o.queue.tell()
}

const (
	// maxSuspects is of how many groups that one in focus waits for longest the CPU use is read, and
	// suspected for how long it is read on.
	maxSuspects = 2
	suspected   = 400 * watch.Millisecond
)

// readSuspects appends the CPU use of the groups for which those in focus waited longest of late.
func (o *Observer) readSuspects(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	if o.queue == nil {
		return to, nil
	}
	for _, waits := range o.queue.waits {
		lately := slices.DeleteFunc(sortedKeys(waits), func(group string) bool {
			w := waits[group]
			return w.grown < now || w.lately == 0 || !o.groups[group] || o.focus[group] != nil
		})
		slices.SortStableFunc(lately, func(a, b string) int { return cmp.Compare(waits[b].lately, waits[a].lately) })
		for _, group := range lately[:min(maxSuspects, len(lately))] {
			o.suspects[group] = now
		}
	}
	maps.DeleteFunc(o.suspects, func(_ string, last watch.Time) bool { return now-last > suspected })
	var errs []error
	use := cgroupstat.SetOf(cgroupstat.Usage)
	for _, group := range sortedKeys(o.suspects) {
		var err error
		to, err = o.stats.SampleGroup(now, group, cgroupstat.Request{Read: use, Fresh: use}, to)
		errs = append(errs, ignoreGone(err)) // the next tick finds it gone
	}
	return to, errors.Join(errs...)
}

// Arm attaches the run-queue probe for the groups in focus, or detaches it. An error
// says why it cannot be had, or that it was detached since it cost more than it may
// (runq.CostError); it is never attached again then.
func (o *Observer) Arm(on bool) error {
	switch {
	case o.noRun != nil:
		return o.noRun
	case on == o.armed:
		return nil
	case on:
		o.arm(sortedKeys(o.focus))
	case o.queue != nil:
		if err := o.queue.probe.Disarm(); err != nil {
			return err
		}
	}
	o.armed = on && o.noRun == nil
	return o.noRun
}

// Probe says why the probe cannot be had, or was detached; nil if it can be armed.
func (o *Observer) Probe() error {
	if o.noRun != nil {
		return o.noRun
	}
	return o.probeAvailable()
}

// Probes reports whether the probe, if it is armed, tells of a group in focus: it
// does not of one that has too many groups below it.
func (o *Observer) Probes(group string) bool {
	if o.queue == nil {
		return true
	}
	_, refused := o.queue.refused[group]
	return !refused
}

// ProbeCost is the CPU time that the probe took per second while it was measured, in
// CPUs; 0 where it was not.
func (o *Observer) ProbeCost() float64 {
	if o.queue == nil {
		return 0
	}
	return o.queue.before.Cost.Share()
}
