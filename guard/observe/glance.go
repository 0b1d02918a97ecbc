package observe

import (
	"errors"

	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/proc"
)

// glanced is what a glance reads of a group whose threads do not tell how long they wait.
var glanced = cgroupstat.SetOf(cgroupstat.CPUPressure)

// Glance appends how long the groups in focus have waited for a CPU, and nothing else: the run
// delay of their threads or, of a group that does not tell it, its pressure. It costs a file or
// a few per group, and is to be read many times a second.
func (o *Observer) Glance(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	var errs []error
	for _, group := range sortedKeys(o.focus) {
		before := len(to)
		if to = o.focus[group].readOne(runDelay, now, to); len(to) > before {
			continue
		}
		var err error
		if to, err = o.stats.SampleGroup(now, group, cgroupstat.Request{Read: glanced, Fresh: glanced}, to); errors.Is(err, watch.ErrGone) {
			err = o.remove(group)
		}
		errs = append(errs, err)
	}
	return to, errors.Join(errs...)
}

// Outsiders appends what processes in no group used since the first call, by program.
func (o *Observer) Outsiders(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	if o.outside == nil {
		var err error
		if o.outside, err = proc.OpenPrograms(o.site.proc(), o.site.Tree); err != nil {
			return to, err
		}
	}
	return o.outside.Read(now, to)
}

// BusyOutsiders returns the processes in no group that used at least so many CPUs between the
// last two calls of Outsiders.
func (o *Observer) BusyOutsiders(least float64) []proc.Busy {
	if o.outside == nil {
		return nil
	}
	return o.outside.Busy(least)
}

// Interrupts reads the time that each CPU has spent with interrupts since boot, in seconds, and how
// often those of devices came.
func (o *Observer) Interrupts() (seconds map[int]float64, lines []proc.Interrupt, err error) {
	stat, err := proc.ReadStat(o.host)
	if err != nil {
		return nil, nil, err
	}
	seconds = map[int]float64{}
	for _, cpu := range stat.CPUs {
		seconds[cpu.ID] = (cpu.IRQ + cpu.SoftIRQ).Seconds()
	}
	lines, err = proc.ReadInterrupts(o.host)
	return seconds, lines, err
}
