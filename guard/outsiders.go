package guard

import (
	"maps"
	"slices"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/proc"
)

const (
	// mostOutsiders is how many programs a finding names, of those that use leastOutsider CPUs.
	mostOutsiders, leastOutsider = 3, 0.05
	// askedFor is how long the processes in no group are read after they were last accused.
	askedFor = 10 * watch.Second
)

// outsideReader are Sensors that can tell what processes in no group use, by program: CPUTime of
// subjects of the scope watch.Process. It costs two files per process, so it is asked only while
// they are accused.
type outsideReader interface {
	Outsiders(now watch.Time, to []watch.Sample) ([]watch.Sample, error)
	// BusyOutsiders are the processes behind them that used at least so many CPUs.
	BusyOutsiders(least float64) []proc.Busy
}

// outsiders has what processes in no group use.
type outsiders struct {
	until watch.Time // they are read until then
	at    watch.Time
	used  map[string]float64
	now   []detect.Outsider // of the time between the last two readings
	// actable are those that may be acted on, as the operator allows it, and use what they use
	// together, in CPUs.
	actable []control.Process
	use     float64
}

// mostActable bounds the processes that are acted on at once.
const mostActable = 32

// take takes in a reading.
func (o *outsiders) take(now watch.Time, samples []watch.Sample) {
	used := map[string]float64{}
	var all []detect.Outsider
	for i := range samples {
		s := &samples[i]
		if s.Subject.Scope != watch.Process || s.Subject.Name == "" || s.Quantity != watch.CPUTime || s.Time != now {
			continue
		}
		used[s.Subject.Name] = s.Value
		if cpus := (s.Value - o.used[s.Subject.Name]) / (now - o.at).Seconds(); o.used != nil && cpus >= leastOutsider {
			all = append(all, detect.Outsider{Program: s.Subject.Name, CPUs: cpus})
		}
	}
	slices.SortStableFunc(all, func(a, b detect.Outsider) int {
		if a.CPUs > b.CPUs {
			return -1
		}
		return 1
	})
	o.used, o.at, o.now = used, now, all[:min(len(all), mostOutsiders)]
}

// nameOutsiders says in findings who the accused processes in no group are, and what interrupts
// take, and asks for it.
func (r *Runner) nameOutsiders(found []detect.Finding, now watch.Time) {
	for i := range found {
		f := &found[i]
		if f.Suspect == detect.Outside {
			f.Outsiders = r.outside.now
		}
		if f.Suspect == detect.Outside || f.Suspect == "" && f.Resource == detect.CPU {
			r.outside.until = now + askedFor
			f.Interrupts = r.interrupts.now
		}
	}
}

// readOutsiders reads them in a slow window while they are asked for.
func (r *Runner) readOutsiders(now watch.Time) {
	s, ok := r.o.Sensors.(outsideReader)
	held := r.heldOutsiders()
	if len(held) > 0 {
		r.outside.until = now + askedFor
	}
	if !ok || now >= r.outside.until {
		r.outside = outsiders{until: r.outside.until}
		return
	}
	samples, err := s.Outsiders(now, nil)
	r.failed(err)
	if err != nil {
		return
	}
	first := r.outside.used == nil // what it tells of processes is an average over the time without readings
	r.outside.take(now, samples)
	if first || len(r.o.Outsiders) == 0 || r.o.Actuator == nil {
		return
	}
	busy := s.BusyOutsiders(leastOutsider)
	r.outside.actable, r.outside.use = chosen(busy, held, r.o.Actuator.Actable), 0
	used := map[int]float64{}
	for _, p := range busy {
		used[p.PID] = p.CPUs
	}
	for _, p := range r.outside.actable {
		r.outside.use += used[p.PID]
	}
}

// chosen are the processes to act on: those that use most, then those that are acted on already,
// busy or not, as long as there is room. Those that have ended are not actable.
func chosen(busy []proc.Busy, held []control.Process, actable func([]control.Process) []control.Process) []control.Process {
	var all []control.Process
	for _, p := range busy[:min(len(busy), 2*mostActable)] { // some may not be acted on
		all = append(all, control.Process{PID: p.PID, Start: p.Start, Program: p.Program})
	}
	for _, p := range held {
		if !slices.ContainsFunc(all, p.Is) {
			all = append(all, p)
		}
	}
	all = actable(all)
	return all[:min(len(all), mostActable)]
}

// heldOutsiders are the processes that an active action is about.
func (r *Runner) heldOutsiders() (all []control.Process) {
	for _, a := range r.loop.Active() {
		all = append(all, a.Processes...)
	}
	return all
}

// allowOutsiders gives findings against processes in no group the remedies that the operator
// allows, if there is somebody to act on.
func (r *Runner) allowOutsiders(found []detect.Finding) {
	for i := range found {
		if f := &found[i]; f.Suspect == detect.Outside && len(r.outside.actable) > 0 {
			f.Remedies = detect.RemediesOutside(f.Resource)
		}
	}
}

// outsideWorkload is what the loop has to know of the processes in no group that may be acted on;
// false if there are none.
func (r *Runner) outsideWorkload() (w control.Workload, ok bool) {
	w = control.Workload{Group: detect.Outside, Class: place.BE, Use: r.outside.use, Processes: r.outside.actable}
	if !slices.Contains(r.o.Outsiders, OutsidersIdle) {
		w.NoIdle = "the configuration does not allow SCHED_IDLE for processes in no group"
	}
	return w, len(w.Processes) > 0
}

// OutsiderUse is what may be done to processes in no group.
type OutsiderUse string

// The ways.
const (
	OutsidersIdle     OutsiderUse = "idle"     // SCHED_IDLE, and nice for their floor
	OutsidersNice     OutsiderUse = "nice"     // nice 19
	OutsidersAffinity OutsiderUse = "affinity" // fewer CPUs
)

// OutsiderUses returns all ways.
func OutsiderUses() []OutsiderUse {
	return []OutsiderUse{OutsidersIdle, OutsidersNice, OutsidersAffinity}
}

// notAllowed says of remedies, beside what the host lacks, that the operator does not allow them.
func (r *Runner) notAllowed(lacks map[detect.Remedy]string) map[detect.Remedy]string {
	all := maps.Clone(lacks)
	if all == nil {
		all = map[detect.Remedy]string{}
	}
	for remedy, ways := range map[detect.Remedy][]OutsiderUse{
		detect.ProcessWeight: {OutsidersIdle, OutsidersNice}, detect.ProcessCPUs: {OutsidersAffinity},
	} {
		if !slices.ContainsFunc(ways, func(w OutsiderUse) bool { return slices.Contains(r.o.Outsiders, w) }) {
			all[remedy] = "the configuration does not allow it (guard.outsiders)"
		}
	}
	return all
}
