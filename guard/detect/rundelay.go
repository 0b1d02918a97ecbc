package detect

import (
	"math"
	"strings"

	"berth.dev/berth/watch"
)

// RunDelay is how long a workload's threads wait for a CPU, and for whom. Times are in
// seconds per second that the workload runs, so that they have no upper end: a workload
// that has a tenth of the CPU time it wants waits 9 seconds for each that it runs. NaN
// is unknown.
type RunDelay struct {
	// Run is the CPU time that it uses per second: how much the others weigh in a mean.
	Run float64
	// Wait is the whole of it.
	Wait float64
	// Others is the part in which others had the CPU, and Suspect that of one suspect.
	// Only the run-queue probe tells.
	Others, Suspect float64
	// UseShare is the suspect's share, from 0 to 1, of the CPU time that others than
	// the workload use on the host: its expected part of Wait without the probe.
	UseShare float64
	// Outside is the share of processes in no group, from 0 to 1: of Others or, without
	// the probe, of the CPU time that others use.
	Outside float64
}

// leastRun is the CPU time per second below which the run delay per second of it is
// not known.
const leastRun = 0.001

// RunDelay returns the run delay of a sensitive workload over the last windows, at most
// 11, and the suspect's part of it; false if the CPU time of the workload or its waits
// are not known.
func (d *Detector) RunDelay(group, suspect string, windows int) (RunDelay, bool) {
	w := d.byGroup[group]
	if w == nil || !w.Sensitive {
		return RunDelay{}, false
	}
	from, to := w.to-watch.Time(windows)*d.cfg.Window, w.to
	use := w.level(watch.CPUTime, from, to)
	if !(use >= leastRun) {
		return RunDelay{}, false
	}
	r := RunDelay{Run: use, Others: math.NaN(), Suspect: math.NaN(), UseShare: math.NaN(), Outside: math.NaN()}
	d.shareUse(&r, w, suspect, from, to, use)
	whole := w.level(watch.Queued, from, to)
	sum, others, its, outside := 0.0, 0.0, 0.0, 0.0
	for at, part := range w.queue() {
		v := at.level(from, to)
		if !(v >= 0) {
			continue
		}
		sum += v
		if part != ForeignQueued {
			continue
		}
		others += v
		switch {
		case at.quantity != watch.QueuedBy:
		case at.by == suspect:
			its += v
		case at.by == Outside:
			outside += v
		}
	}
	r.Wait = whole / use
	if math.IsNaN(whole) {
		r.Wait = w.level(watch.CPUWait, from, to) / use
	} else if sum >= 0.9*whole {
		r.Others, r.Suspect = others/use, its/use
		if others > 0 {
			r.Outside = outside / others
		}
	}
	return r, !math.IsNaN(r.Wait)
}

// shareUse finds the shares of the CPU time that others than a workload use.
func (d *Detector) shareUse(r *RunDelay, w *workload, suspect string, from, to watch.Time, use float64) {
	others := d.host.level(watch.CPUTime, from, to) - use
	if !(others > 0) {
		return
	}
	outside := others
	if v := d.useOf(suspect, from, to); v >= 0 {
		r.UseShare = min(v/others, 1)
	}
	for _, s := range d.workloads {
		v := s.level(watch.CPUTime, from, to)
		if s == w || math.IsNaN(v) {
			continue
		}
		if s.Group == suspect {
			r.UseShare = min(v/others, 1)
		}
		if up := strings.LastIndexByte(s.Group, '/'); up < 0 || d.byGroup[d.owner(s.Group[:up])] == nil {
			outside -= v
		}
	}
	r.Outside = max(outside, 0) / others
}
