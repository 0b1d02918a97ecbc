package detect

import (
	"math"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

const (
	samples  = 12  // kept by quantity
	covered  = 0.5 // of a window must be known
	maxParts = 512 // meters of parts and culprits of one subject
)

// meter is the history of one quantity.
type meter struct {
	quantity watch.Quantity
	part     watch.Part
	by       string
	series   *watch.Series
	// usual is the level while nobody suffered.
	usual Mean
	// pending are the levels of the last windows, which are not usual yet.
	pending []float64
}

// meters are the histories of one subject.
type meters struct {
	whole [256]int16 // by quantity: its place in all, plus one
	all   []meter
	new   bool // the subject started after a time in which nobody suffered
}

func (m *meters) add(s *watch.Sample, by string) {
	at := m.find(s.Quantity, s.Subject.Part, by)
	if at == nil {
		if at = m.make(s, by); at == nil {
			return
		}
	}
	// A late or repeated sample is refused, which is what it is worth.
	_ = at.series.Add(s.Time, s.Value)
}

func (m *meters) find(q watch.Quantity, part watch.Part, by string) *meter {
	if part == (watch.Part{}) && by == "" {
		if i := m.whole[q]; i > 0 {
			return &m.all[i-1]
		}
		return nil
	}
	for i := range m.all {
		if at := &m.all[i]; at.quantity == q && at.part == part && at.by == by {
			return at
		}
	}
	return nil
}

// make adds a meter; the culprits of long ago give way to new ones.
func (m *meters) make(s *watch.Sample, by string) *meter {
	made := meter{quantity: s.Quantity, part: s.Subject.Part, by: by, series: watch.NewSeries(s.Quantity, samples)}
	if _, ok := queuePart(&made, ""); m.new && !ok {
		made.usual.N = enough // of nothing
	}
	if len(m.all) >= maxParts {
		for i := range m.all {
			if _, age, ok := m.all[i].series.Last(s.Time); m.all[i].by != "" && ok && age > samples*watch.Second {
				m.all[i] = made
				return &m.all[i]
			}
		}
		return nil
	}
	m.all = append(m.all, made)
	if made.part == (watch.Part{}) && by == "" {
		m.whole[s.Quantity] = int16(len(m.all))
	}
	return &m.all[len(m.all)-1]
}

// level is the mean level of a whole quantity in a window; NaN where it is
// missing.
func (m *meters) level(q watch.Quantity, from, to watch.Time) float64 {
	i := m.whole[q]
	if i == 0 {
		return math.NaN()
	}
	return m.all[i-1].level(from, to)
}

func (m *meter) level(from, to watch.Time) float64 {
	v, known := m.series.Mean(from, to)
	if known < covered {
		return math.NaN()
	}
	return v
}

// lately is the level in the window or, where that is missing, over the last ten;
// fresh says which.
func (m *meter) lately(from, to watch.Time) (v float64, fresh bool) {
	if v := m.level(from, to); !math.IsNaN(v) {
		return v, true
	}
	v, known := m.series.Mean(to-10*(to-from), to)
	if known == 0 {
		return math.NaN(), false
	}
	return v, false
}

// refer takes the window into what is usual of a quantity by whose growth
// suspects are found, so many windows later: who grows is often felt only when
// there is nothing left.
func (m *meters) refer(q watch.Quantity, from, to watch.Time, later int) {
	for i := range m.all {
		at := &m.all[i]
		if at.quantity != q {
			continue
		}
		if v := at.level(from, to); !math.IsNaN(v) {
			at.refer(v, later)
		}
	}
}

// refer takes in a level. The first are usual at once, as there is nothing yet to
// tell growth by.
func (m *meter) refer(v float64, later int) {
	if m.usual.N >= enoughValues {
		m.pending = append(m.pending, v)
		if len(m.pending) <= later {
			return
		}
		v = m.pending[0]
		m.pending = slices.Delete(m.pending, 0, 1)
	}
	m.usual.add(v)
}

// doubt forgets the levels of a quantity that are not usual yet: somebody suffers,
// perhaps from them.
func (m *meters) doubt(q watch.Quantity) {
	for i := range m.all {
		if at := &m.all[i]; at.quantity == q {
			at.pending = at.pending[:0]
		}
	}
}

// growth is by how much a level is above what is usual; 0 if that is within three
// standard deviations, or not known.
func (m *meter) growth(level float64) float64 {
	if m.usual.N < enoughValues || level < m.usual.Mean+3*math.Sqrt(m.usual.Variance) {
		return 0
	}
	return level - m.usual.Mean
}

// sum adds up the levels of all parts of a kind; NaN if one is missing, or all.
func (m *meters) sum(q watch.Quantity, kind watch.PartKind, from, to watch.Time) float64 {
	sum := math.NaN()
	for i := range m.all {
		at := &m.all[i]
		if at.quantity != q || at.part.Kind != kind || at.by != "" {
			continue
		}
		v := at.level(from, to)
		if math.IsNaN(v) {
			return v
		}
		if math.IsNaN(sum) {
			sum = 0
		}
		sum += v
	}
	return sum
}

// window is the signals of one workload in one window; NaN where one is missing.
type window struct {
	from, to watch.Time
	value    [signals]float64
	stolen   float64 // by the hypervisor, in CPUs
	queued   queued
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
	n, use := w.CPUs.Len(), w.value[CPUUse]
	switch {
	case n > 0:
		busy = d.busy(w, w.CPUs)
	case d.cfg.Machine != nil:
		n = d.cpus()
	default:
		return math.NaN()
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
func (d *Detector) busy(w *workload, cpus cpuset.Set) float64 {
	sum, n := 0.0, 0
	for i := range d.host.all {
		at := &d.host.all[i]
		if at.quantity == watch.CPUTime && at.part.Kind == watch.CPU && cpus.Has(at.part.ID) {
			sum += at.level(w.from, w.to)
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
	return ratio(max(d.busy(w, w.cores)-use, 0), float64(w.cores.Len())-use)
}

// measureQueue splits what the workload waits for a CPU, if the parts of its wait make
// up the whole: what one culprit lacks must not be the others' guilt. The parts of itself
// and of others are of what is beyond the usual for its CPU use, and 0 where it waits
// hardly more than that, whoever has the CPU now that was another's before.
func (w *workload) measureQueue() {
	w.value[RunQueueP99] = w.level(watch.QueueP99, w.from, w.to)
	w.queued = queued{whole: w.level(watch.Queued, w.from, w.to)}
	q := &w.queued
	use := w.value[CPUUse]
	var level, grown [signals]float64
	sum, net, more := 0.0, 0.0, 0.0
	for i := range w.all {
		at := &w.all[i]
		part, ok := queuePart(at, w.Group)
		if !ok {
			continue
		}
		v := at.level(w.from, w.to)
		if !(v >= 0) {
			continue
		}
		beyond := w.beyond(at, v)
		sum += v
		net += v - w.usually(at)
		more += beyond
		level[part] += v
		grown[part] += beyond
		if at.quantity == watch.QueuedBy && part == ForeignQueued && at.by != Outside {
			q.byGroups += beyond
		}
	}
	if math.IsNaN(use) || math.IsNaN(q.whole) || sum < 0.9*q.whole {
		return
	}
	q.foreign, q.grown, q.net = level[ForeignQueued], more, max(net, 0)
	w.value[Imposed] = 0
	if q.net >= leastWait {
		w.value[Imposed] = min(grown[ForeignQueued], q.net) / (q.whole + use)
	}
	if q.whole < leastWait {
		return
	}
	w.value[IdleQueued], w.value[ThrottledQueued] = level[IdleQueued]/sum, level[ThrottledQueued]/sum
	w.value[SelfQueued], w.value[ForeignQueued] = 0, 0
	if q.net >= max(leastWait, leastGrowth*q.whole) {
		w.value[SelfQueued], w.value[ForeignQueued] = grown[SelfQueued]/more, grown[ForeignQueued]/more
	}
}

// queued is the wait for a CPU in one window, as the run-queue probe tells, in threads.
type queued struct {
	whole    float64
	foreign  float64 // behind others
	grown    float64 // the parts that are beyond the usual
	byGroups float64 // of that, behind other groups
	net      float64 // the whole beyond the usual
}

// queuePart says to which part of a group's wait a meter belongs.
func queuePart(at *meter, group string) (Signal, bool) {
	switch at.quantity {
	case watch.QueuedBy:
		if at.by == group {
			return SelfQueued, true
		}
		return ForeignQueued, true
	case watch.QueuedKernel:
		return ForeignQueued, true
	case watch.QueuedIdle:
		return IdleQueued, true
	case watch.QueuedThrottled:
		return ThrottledQueued, true
	}
	return 0, false
}

// usually is the level of waiting that is usual for the CPU use of the window, given
// what is usual for the usual use; 0 where that is not known.
func (w *workload) usually(at *meter) float64 {
	if at.usual.N < enoughValues || !(w.usualUse.Mean > 0) {
		return 0
	}
	return at.usual.Mean * w.value[CPUUse] / w.usualUse.Mean
}

// beyond is by how much a level of waiting is above the usual.
func (w *workload) beyond(at *meter, level float64) float64 { return max(level-w.usually(at), 0) }

// asUsual says whether a level of waiting is within three standard deviations of the
// usual.
func (w *workload) asUsual(at *meter, level float64) bool {
	if usual := w.usually(at); usual > 0 {
		return level < usual+3*math.Sqrt(at.usual.Variance)*usual/at.usual.Mean
	}
	return false
}

// referQueue takes the window into what is usual of each part of the wait.
func (w *workload) referQueue() {
	use := w.value[CPUUse]
	if math.IsNaN(use) || math.IsNaN(w.value[Imposed]) {
		return
	}
	w.usualUse.add(w.usualUse.clip(use))
	for i := range w.all {
		at := &w.all[i]
		if _, ok := queuePart(at, w.Group); ok {
			if v := at.level(w.from, w.to); !math.IsNaN(v) {
				if most := at.usual.Mean + max(3*math.Sqrt(at.usual.Variance), leastWait); at.usual.learnt() {
					v = min(v, most)
				}
				at.usual.add(v)
			}
		}
	}
}

// forgetQueue has the usual parts of the wait learnt anew.
func (w *workload) forgetQueue() {
	w.usualUse = Mean{}
	for i := range w.all {
		if _, ok := queuePart(&w.all[i], w.Group); ok {
			w.all[i].usual = Mean{}
		}
	}
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
