package detect

import (
	"maps"
	"math"

	"berth.dev/berth/watch"
)

// leastBegun is the part of a group's CPU use that has to be new for it to have begun to take CPUs of late.
const leastBegun = 0.5

// taker is a group that has begun of late to take the CPUs of a workload.
type taker struct {
	name  string  // "" is nobody
	share float64 // of the CPU time that others than the workload use there
	new   float64 // the part (0-1) of its use that it did not always have in the last minute
	all   bool    // what it uses it takes from the workload: it has no other CPUs, or the workload may use all
}

// takerOf returns the group that has begun of late to take the CPUs of a workload: they are full by the workload and the
// groups that it waits for, others have most of them, and of what these use it uses the most, 40 % at least and 0.25
// CPUs, over the last windows. Most of what it uses in this one is new. A group in the idle class takes nothing, and of a
// group that the workload does not wait for nothing is known.
func (d *Detector) takerOf(w *workload) (most taker) {
	d.noteTaken(w)
	if lately := w.to - fullWindows*(w.to-w.from); w.taken < lately || w.shared < lately {
		return taker{}
	}
	from := w.to - lookBack*(w.to-w.from)
	busy := d.host.level(watch.CPUTime, from, w.to)
	if !w.CPUs.IsEmpty() {
		busy = d.busy(w.CPUs, from, w.to)
	}
	others := busy - w.level(watch.CPUTime, from, w.to)
	highest := max(leastUse, antagonist*others) // NaN if that is not known
	for name := range d.uses {
		use := d.useOf(name, from, w.to)
		if !(use >= highest) || use == highest && name > most.name {
			continue
		}
		highest, most = use, taker{name: name, share: min(use/others, 1)}
	}
	if most.name == "" {
		return taker{}
	}
	if now := d.useOf(most.name, w.from, w.to); now >= 0 {
		highest = now
	}
	if most.new, most.all = d.far.begun(most.name, highest, w); most.new < leastBegun {
		return taker{}
	}
	return most
}

// noteTaken notes whether others have most of a workload's full CPUs, and whether it and the groups that it waits for
// use 90 % of them: what the idle class uses besides is there for whoever wants it.
func (d *Detector) noteTaken(w *workload) {
	if own := w.value[OwnUse]; own > 0 && own < mostly {
		w.taken = w.to
	}
	sum := w.value[CPUUse]
	for name := range d.uses {
		if use := d.useOf(name, w.from, w.to); use > 0 {
			sum += use
		}
	}
	if sum >= 0.9*float64(d.cpusOf(w)) {
		w.shared = w.to
	}
}

// begun returns which part of what a group uses is new, by the windows of the last minute, and whether it uses no CPUs
// but those of a workload; 0 for one that takes nothing from it.
func (d *Detector) begun(group string, use float64, from *workload) (part float64, all bool) {
	all = from.CPUs.IsEmpty() || from.CPUs.Len() >= d.cpus()
	s := d.byGroup[group]
	if s == nil { // so new that nothing was read of it
		return float64(bit(d.calm)), all
	}
	if s.Yields || !s.mayUse(from.CPUs) {
		return 0, false
	}
	all = all || !s.CPUs.IsEmpty() && from.CPUs.Contains(s.CPUs)
	least, known := math.Inf(1), 0
	for i := range memory {
		if v := s.uses.back(i); !math.IsNaN(v) {
			least, known = min(least, v), known+1
		}
	}
	if s.new && known < memory {
		least = 0
	}
	return max(1-least/use, 0), all
}

// diagnoseTaken notes what the window says against a group that has begun to take the workload's CPUs. Its use speaks
// against it already, so that less of a symptom is enough than where that is not known: half of it, by what the
// workload waits for that group, whoever it waits for less meanwhile; or the wait for its own threads, which have
// fewer CPUs now.
func (d *Detector) diagnoseTaken(w *workload, waits bool) (found bool) {
	if math.IsNaN(w.value[Imposed]) {
		return false
	}
	by := d.takerOf(w)
	if by.name == "" {
		return false
	}
	limit, _ := floor(Imposed)
	imposed := 0.0
	if at := w.find(watch.QueuedBy, watch.Part{}, by.name); at != nil {
		if v := at.level(w.from, w.to); v > 0 {
			imposed = by.new * v / (w.queued.whole + w.value[CPUUse])
		}
	}
	evidence := w.evidence(RunQueueP99, WaitRatio, CPUPressure)
	found = imposed >= limit/2
	if found {
		e := w.fact(Imposed, limit/2)
		e.Value = imposed
		evidence = append(evidence, e)
	}
	if waits && by.all && w.value[SelfQueued] >= mostly && !d.fills(w) && !w.muchMore() {
		found = true
		evidence = append(evidence, w.fact(SelfQueued, mostly))
	}
	if !found {
		return false
	}
	h := &w.takes
	h.agree |= 1
	h.suspects[0], h.shares[0] = by.name, by.share
	h.last = verdict{suspect: by.name, share: by.share, evidence: append(evidence, w.against(by.name, UseShare, by.share, antagonist))}
	return true
}

// takenBy returns whom enough of the last windows, the newest among them, accuse of having begun to take the
// workload's CPUs; "" is nobody.
func (w *workload) takenBy() string {
	h := &w.takes
	suspect, _, _ := h.accused()
	if h.agree&1 == 0 || suspect != h.suspects[0] {
		return ""
	}
	return suspect
}

// observeUse takes in the CPU time of a group that is no workload here: with short windows that of the groups is read
// for which workloads wait.
func (d *Detector) observeUse(s *watch.Sample) {
	if d.far == nil || s.Quantity != watch.CPUTime || s.Subject.Scope != watch.Group || s.Subject.Part != (watch.Part{}) {
		return
	}
	of := d.uses[s.Subject.Name]
	if of == nil {
		of = watch.NewSeries(watch.CPUTime, samples)
		d.uses[s.Subject.Name] = of
	}
	_ = of.Add(s.Time, s.Value) // one that was read twice is refused
}

// useOf is the CPU time per second of a group that is no workload here, in what is known of a time; NaN if nothing is.
func (d *Detector) useOf(group string, from, to watch.Time) float64 {
	of := d.uses[group]
	if of == nil {
		return math.NaN()
	}
	use, known := of.Mean(from, to)
	if known == 0 {
		return math.NaN()
	}
	return use
}

// forgetUses forgets the CPU time of groups that is not read any more.
func (d *Detector) forgetUses(now watch.Time) {
	maps.DeleteFunc(d.uses, func(_ string, of *watch.Series) bool {
		_, age, ok := of.Last(now)
		return !ok || age > samples*d.cfg.Window
	})
}
