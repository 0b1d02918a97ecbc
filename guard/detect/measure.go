package detect

import (
	"math"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

// window is the signals of one workload in one window; NaN where one is missing.
type window struct {
	from, to watch.Time
	value    [signals]float64
	stolen   float64 // by the hypervisor, in CPUs
	queued   queued
	link     watch.Part // of LinkUse, LinkWait, LinkLost and OwnSent
}

// measure derives the signals; of suspects only their CPU use.
func (d *Detector) measure(w *workload, from, to watch.Time) {
	w.from, w.to = from, to
	for i := range w.value {
		w.value[i] = math.NaN()
	}
	use := w.level(watch.CPUTime, from, to)
	if use > 1.5*float64(d.cpus()) {
		use = math.NaN() // a counter that jumped
	}
	w.value[CPUUse] = use
	w.uses.add(use)
	if !w.Sensitive {
		return
	}
	d.measureCPU(w)
	w.measureQueue()
	w.measureCycles()
	d.measureMemory(w)
	share := func(s Signal, q watch.Quantity) {
		if v := w.level(q, from, to); v <= 1.5 {
			w.value[s] = min(v, 1)
		}
	}
	share(CPUPressure, watch.CPUSome)
	share(MemoryPressure, watch.MemorySome)
	share(IOPressure, watch.IOSome)
	w.value[OwnIO] = d.ownIO(w)
	d.measureNetwork(w)
}

// cpus is how many CPUs the host has, or more than any has.
func (d *Detector) cpus() int {
	if d.cfg.Machine == nil {
		return 1 << 16
	}
	return d.cfg.Machine.Online.Len()
}

func (d *Detector) measureCPU(w *workload) {
	from, to, use := w.from, w.to, w.value[CPUUse]
	busy := d.host.level(watch.CPUTime, from, to)
	if steal := d.host.level(watch.Steal, from, to); steal <= 1.5*float64(d.cpus()) {
		w.value[StealShare] = ratio(steal, steal+busy)
		w.stolen = steal
	}
	periods, out := w.level(watch.CPUPeriods, from, to), w.level(watch.CPUThrottledPeriods, from, to)
	if periods == 0 && out == 0 {
		w.value[ThrottledPeriods] = 0
	} else {
		w.value[ThrottledPeriods] = min(ratio(out, periods), 1)
	}
	withheld := w.level(watch.CPUThrottledAny, from, to)
	if math.IsNaN(withheld) {
		withheld = w.level(watch.CPUThrottled, from, to)
	}
	w.value[Withheld] = ratio(withheld, withheld+use)
	if wait := w.level(watch.CPUWait, from, to); wait >= 0 {
		w.value[WaitRatio] = ratio(wait, wait+use)
	}
	w.value[OwnUse] = d.ownUse(w, busy)
	w.value[SiblingUse] = d.siblingUse(w)
}

// ratio is part of whole: 0 where both are.
func ratio(part, whole float64) float64 {
	if part == 0 && whole == 0 {
		return 0
	}
	if whole == 0 {
		return math.NaN()
	}
	return part / whole
}

// ownUse is the workload's part of what runs on its CPUs if they are full.
func (d *Detector) ownUse(w *workload, busy float64) float64 {
	n, use := d.cpusOf(w), w.value[CPUUse]
	if n == 0 {
		return math.NaN()
	}
	if w.CPUs.Len() > 0 {
		busy = d.busy(w.CPUs, w.from, w.to)
	}
	if use >= 0.9*float64(n) {
		return 1
	}
	if math.IsNaN(busy) {
		return busy
	}
	if busy < 0.9*float64(n) {
		return 0
	}
	return min(ratio(use, busy), 1)
}

// busy is the CPU time used per second on some CPUs; NaN where that of one is
// unknown.
func (d *Detector) busy(cpus cpuset.Set, from, to watch.Time) float64 {
	sum, n := 0.0, 0
	for i := range d.host.all {
		at := &d.host.all[i]
		if at.quantity == watch.CPUTime && at.part.Kind == watch.CPU && cpus.Has(at.part.ID) {
			sum += at.level(from, to)
			n++
		}
	}
	if n < cpus.Len() {
		return math.NaN()
	}
	return sum
}

// siblingUse is how busy others keep the cores of the workload, of what it
// leaves of them. Without SMT, and without CPUs of its own, it is NaN.
func (d *Detector) siblingUse(w *workload) float64 {
	if w.cores.Len() == w.numCores {
		return math.NaN()
	}
	use := w.value[CPUUse]
	return ratio(max(d.busy(w.cores, w.from, w.to)-use, 0), float64(w.cores.Len())-use)
}

func (w *workload) measureCycles() {
	use := w.value[CPUUse]
	if !(use >= leastUse) {
		return // too little to tell
	}
	cycles, instructions := w.level(watch.Cycles, w.from, w.to), w.level(watch.Instructions, w.from, w.to)
	if cpi := cycles / instructions; cpi > 0.05 && cpi < 100 {
		w.value[CPI] = cpi
		w.value[Clock] = cycles / use
		w.value[MPKI] = 1000 * w.level(watch.LLCMisses, w.from, w.to) / instructions
	}
}

func (d *Detector) measureMemory(w *workload) {
	from, to := w.from, w.to
	w.value[Occupancy] = w.sum(watch.LLCOccupancy, watch.Cache, from, to)
	if at := w.busiest(watch.Bandwidth); at != nil && d.cfg.PeakBandwidth > 0 {
		if all := d.host.find(watch.Bandwidth, at.part, ""); all != nil {
			w.value[DomainBandwidth] = min(all.level(from, to)/d.cfg.PeakBandwidth, 1)
		}
	}
	high, most := w.level(watch.MemoryHigh, from, to), w.level(watch.MemoryMax, from, to)
	if math.IsNaN(high) && w.find(watch.MemoryLow, watch.Part{}, "") == nil {
		high = 0 // cgroup v1 has neither limit
	}
	w.value[LimitEvents] = high + most
	w.value[LocalMemory] = d.localMemory(w)
}

// busiest is the meter of the part with the highest level.
func (m *meters) busiest(q watch.Quantity) *meter {
	var found *meter
	highest := -1.0
	for i := range m.all {
		at := &m.all[i]
		if at.quantity != q || at.part.Kind == watch.Whole {
			continue
		}
		if last, _, ok := at.series.Last(0); ok && last > highest {
			found, highest = at, last
		}
	}
	return found
}

// localMemory is the part of a workload's anonymous memory and page cache that lies on
// nodes of its CPUs.
func (d *Detector) localMemory(w *workload) float64 {
	if d.cfg.Machine == nil || w.CPUs.IsEmpty() {
		return math.NaN()
	}
	local, all := 0.0, 0.0
	for i := range w.all {
		at := &w.all[i]
		if at.quantity != watch.MemoryAnon && at.quantity != watch.MemoryFile || at.part.Kind != watch.Node {
			continue
		}
		v, _ := at.lately(w.from, w.to) // read rarely
		all += v
		for _, node := range d.cfg.Machine.ByKind(machine.Node) {
			if node.ID == at.part.ID && node.CPUs.Overlaps(w.CPUs) {
				local += v
			}
		}
	}
	if all == 0 {
		return math.NaN()
	}
	return local / all
}
