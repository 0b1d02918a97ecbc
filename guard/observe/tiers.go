package observe

import (
	"errors"
	"maps"
	"slices"

	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// The tiers of groups.
const (
	everybody = iota // all groups, before it is known which are looked at closely
	closely
	others
)

// few is how many ticks lie between readings of what changes slowly.
const few = 5

// sampled are the signals of groups before it is known which are looked at closely:
// those that the detector uses, and what is cheap.
func sampled() []cgroupstat.Signal {
	return slices.Concat(watched(), []cgroupstat.Signal{cgroupstat.MemoryEvents, cgroupstat.IO, cgroupstat.NUMA, cgroupstat.Tasks})
}

// watched are those that tell which group suffers.
func watched() []cgroupstat.Signal {
	return []cgroupstat.Signal{
		cgroupstat.Usage, cgroupstat.Throttling, cgroupstat.ThrottlingAny, cgroupstat.Memory,
		cgroupstat.CPUPressure, cgroupstat.MemoryPressure, cgroupstat.IOPressure,
	}
}

// suspected are those of groups that may be suspects and no more: what the agent's
// metrics show every second, too.
func (o *Observer) suspected() []cgroupstat.Signal {
	v1 := slices.ContainsFunc(o.site.Trees, func(t cgroupstat.Tree) bool { return t.Version == 1 && t.Dir == o.site.Tree })
	return slices.DeleteFunc(cgroupstat.Always(), func(s cgroupstat.Signal) bool { return v1 && s == cgroupstat.CPUPressure })
}

// stall follows the pressure on one resource from tick to tick: that of the host, and the
// sum of all that tell it.
type stall struct {
	quantity watch.Quantity
	of       cgroupstat.Signal // of groups
	// explains are signals that are of interest only while tasks wait for the part least
	// of the time, half of what the detector takes for a symptom.
	explains cgroupstat.Set
	least    float64

	host, sum float64
	at        watch.Time
}

func stalls() [3]stall {
	return [...]stall{
		{quantity: watch.CPUSome, of: cgroupstat.CPUPressure},
		{quantity: watch.MemorySome, of: cgroupstat.MemoryPressure, explains: cgroupstat.SetOf(cgroupstat.MemoryEvents), least: 0.01},
		{quantity: watch.IOSome, of: cgroupstat.IOPressure, explains: cgroupstat.SetOf(cgroupstat.IO), least: 0.05},
	}
}

// calm is for which part of the time tasks may wait, by the host's figure times the
// number of its CPUs, while the pressure of groups is taken not to move. The kernel
// weighs CPUs by the time in which they had something to do: the wait of a group on one
// CPU counts for less on a host with many.
const calm = 1e-4

// still reports whether no task of the host has waited since the last tick, as the
// samples of the host tell.
func (s *stall) still(now watch.Time, host []watch.Sample) bool {
	total, cpus, told := 0.0, 0, false
	for i := range host {
		switch {
		case host[i].Subject.Part.Kind == watch.CPU:
			cpus++
		case host[i].Quantity == s.quantity:
			total, told = host[i].Value, true
		}
	}
	grown := total - s.host
	s.host = total
	return told && grown >= 0 && grown*float64(max(cpus, 1)) <= calm*(now-s.at).Seconds()
}

// seen reports whether tasks have waited since the last tick, as the samples of the host
// and of the groups that are looked at closely tell; where none tells, they may have.
func (s *stall) seen(now watch.Time, samples []watch.Sample) bool {
	sum, told := 0.0, false
	for i := range samples {
		if samples[i].Quantity == s.quantity {
			sum += samples[i].Value
			told = true
		}
	}
	grown, since := sum-s.sum, now-s.at
	s.sum, s.at = sum, now
	return !told || grown < 0 || grown >= s.least*since.Seconds()
}

// readGroups appends the samples of the host and of all groups.
func (o *Observer) readGroups(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	before := len(to)
	to, err := o.files.read(now, to)
	errs := []error{err}
	sample := func(tiers ...cgroupstat.Request) {
		var failed []cgroupstat.Failure
		to, failed = o.stats.Sample(now, to, tiers...)
		for _, f := range failed {
			if errors.Is(f.Err, watch.ErrGone) {
				errs = append(errs, o.remove(f.Group))
			} else {
				errs = append(errs, f.Err)
			}
		}
	}
	var pressures, still cgroupstat.Set
	for i := range o.stalls {
		s := &o.stalls[i]
		pressures |= cgroupstat.SetOf(s.of)
		if s.still(now, to[before:]) {
			still |= cgroupstat.SetOf(s.of)
		}
	}
	sample(
		cgroupstat.Request{Read: cgroupstat.SetOf(sampled()...), Fresh: pressures, Still: still},
		cgroupstat.Request{Read: cgroupstat.SetOf(watched()...), Fresh: pressures, Still: still},
		cgroupstat.Request{Read: cgroupstat.SetOf(o.suspected()...), Still: still, Quiet: cgroupstat.SetOf(cgroupstat.Throttling)},
	)
	var slow, explains cgroupstat.Set
	if o.ticks%few == 1 {
		slow = cgroupstat.SetOf(cgroupstat.NUMA, cgroupstat.Tasks, cgroupstat.MemoryEvents, cgroupstat.IO)
	}
	for i := range o.stalls {
		if o.stalls[i].seen(now, to[before:]) && len(o.closely) > 0 {
			explains |= o.stalls[i].explains
		}
	}
	if o.closely != nil && slow|explains != 0 {
		suspects := cgroupstat.SetOf(cgroupstat.IO)
		sample(
			cgroupstat.Request{},
			cgroupstat.Request{Read: slow | explains, Fresh: explains},
			cgroupstat.Request{Read: (slow | explains) & suspects, Fresh: explains},
		)
	}
	return to, errors.Join(errs...)
}

// Closely has everything read of these groups, those in focus among them, and of the
// others only what may make them suspects: all of it of all is most of what a tick costs.
func (o *Observer) Closely(groups []string) error {
	now := map[string]bool{}
	for _, group := range groups {
		now[group] = true
	}
	if o.closely != nil && maps.Equal(now, o.closely) {
		return nil
	}
	o.closely = now
	var errs []error
	for _, group := range sortedKeys(o.groups) {
		errs = append(errs, o.add(group))
	}
	return errors.Join(errs...)
}

func (o *Observer) tierOf(group string) int {
	switch {
	case o.closely == nil:
		return everybody
	case o.closely[group]:
		return closely
	}
	return others
}
