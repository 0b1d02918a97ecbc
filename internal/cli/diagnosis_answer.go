package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/proc"
)

// mostUsed is the workload that used most CPU time, but for one and those around it and in it, and
// those that may use none of some CPUs (an empty set is any). "" if none used enough to be looked at.
func (d *diagnosis) mostUsed(but string, of cpuset.Set) (most string) {
	for _, name := range slices.Sorted(maps.Keys(d.levels)) {
		comm, ok := programOf(name)
		if name == "" || ok && (comm == "" || comm == proc.KernelThreads || comm == proc.OtherPrograms) {
			continue
		}
		if kernel.Within(name, but) || kernel.Within(but, name) {
			continue
		}
		if cpus := d.cpus[name]; !of.IsEmpty() && !cpus.IsEmpty() && !cpus.Overlaps(of) {
			continue
		}
		if use := d.levels[name][watch.CPUTime]; use >= notable && (most == "" || use > d.levels[most][watch.CPUTime]) {
			most = name
		}
	}
	return most
}

// stalled is the part of the time from which tasks that wait for a CPU are a finding by
// themselves, as guard/detect has it for a group.
const stalled = 0.20

// short reports whether the host has too few CPUs for all that is to run, as far as that is
// asked.
func (d *diagnosis) short() bool {
	return d.Target == "" && d.Host.Stall != nil && *d.Host.Stall >= stalled
}

// unaccused reports whether the CPUs are short, and no finding says because of whom.
func (d *diagnosis) unaccused() bool {
	return d.short() && d.Sensitive == "" && !slices.ContainsFunc(d.Findings, func(f foundRow) bool { return f.Suspect != "" || len(f.Behind) > 0 })
}

// worstOff is the workload, but for who used most CPU time, whose threads waited longest for
// one by what they used: it may be the service that matters. Whoever used next to nothing has to
// have waited for long. It has no name if none waited.
func (d *diagnosis) worstOff() (worst programRow) {
	longest := 0.0
	for _, r := range d.longestWait {
		if r.workload == d.busiest || r.Used < notable && r.Wait < stalled {
			continue
		}
		if ratio := r.Wait / max(r.Used, notable); ratio > longest {
			worst, longest = r, ratio
		}
	}
	return worst
}

// worthTelling is the part of the time that it has work from which waiting for a CPU is told, as
// guard/detect has it for run delay.
const worthTelling = 0.10

// leastTaken is the part of the CPUs that a victim may use from which on a workload that takes them is
// named.
const leastTaken = 0.10

// answer names the workload that takes the CPUs and the victim that waits for one: the workload that
// is asked about, else the victim of the first finding or, without any, the worst off. It is what was
// counted, whether or not a rule is sure that the one is because of the other. A workload that takes
// less than the victim itself is not named.
func (d *diagnosis) answer(h *observe.Header) string {
	victim, taker := cmp.Or(d.about, d.victim, d.worst.workload), d.antagonist
	switch {
	case victim == "":
		return ""
	case victim != d.victim && (d.Host.Stall == nil || *d.Host.Stall < stalled):
		return "" // no rule found that it suffers, and the CPUs are not short
	case victim == d.victim && d.Findings[0].Resource != detect.CPU:
		return ""
	case victim != d.victim:
		taker = d.mostUsed(victim, d.cpus[victim])
	case taker == detect.Outside:
		return "" // many processes, of which the busiest need not be the one
	}
	use, wait, takes := d.levels[victim][watch.CPUTime], d.levels[victim][watch.CPUWait], d.levels[taker][watch.CPUTime]
	share, cpus := wait/(wait+use), d.Host.CPUs
	if own := d.cpus[victim].Len(); own > 0 {
		cpus = min(cpus, own)
	}
	if taker == "" || taker == victim || takes < max(use, leastTaken*float64(cpus)) || wait < notable || share < worthTelling {
		return ""
	}
	called := func(workload string) string {
		if comm, ok := programOf(workload); ok {
			return plain.Line(comm)
		}
		return plain.Line(shownName(h, workload))
	}
	return fmt.Sprintf("%s takes %.2f of %s; %s waits for one %.0f %% of the time in which it has work.", called(taker), takes, plain.Count(d.Host.CPUs, "CPU"), called(victim), 100*share)
}
