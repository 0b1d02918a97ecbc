package detect

import (
	"math"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

// claim is the group with the greatest part of something.
type claim struct {
	name     string // "" if nobody has enough
	share    float64
	known    bool    // there is something to have a part of
	least    float64 // what the share had to be; 0 is antagonist
	ofOthers float64 // its part of what is behind others, where that is its part of the damage; else 0
}

// claims adds up parts and keeps the greatest that is another's.
type claims struct {
	total, most float64
	who         string
	stale       bool // that part is of some time ago
}

func (c *claims) add(name string, amount float64, fresh bool) {
	if !(amount > 0) {
		return
	}
	c.total += amount
	if name != "" && amount > c.most {
		c.most, c.who, c.stale = amount, name, !fresh
	}
}

// claim names who has the greatest part if it is an antagonist's and known of this
// window.
func (c *claims) claim(total, least float64) claim {
	if !(total > 0) || total < least {
		return claim{}
	}
	if share := c.most / total; share >= antagonist && !c.stale {
		return claim{name: c.who, share: min(share, 1), known: true}
	}
	return claim{known: !c.stale}
}

// queuedMost returns the group that had the CPU for most of the workload's run delay above
// the baseline; else a group that makes it wait enough to be a symptom in itself, and has nearly all
// that groups have, or much of what all others have: those in no group, or a second one, may hide
// it. A group that had it for a small part of the run delay, or hardly more than usual, is not
// named.
func (w *workload) queuedMost() claim {
	var all, groups claims
	limit, _ := floor(Imposed)
	for i := range w.all {
		at := &w.all[i]
		if at.quantity != watch.QueuedBy || at.by == w.Group {
			continue
		}
		v := at.level(w.from, w.to)
		if !(v >= notable*w.queued.foreign) || w.asUsual(at, v) {
			continue
		}
		beyond := w.beyond(at, v)
		all.add(at.by, beyond, true)
		if !InNoGroup(at.by) && w.imposed(beyond) >= limit {
			groups.add(at.by, beyond, true)
		}
	}
	most := all.claim(w.queued.grown, leastWait)
	if most.name != "" && !InNoGroup(most.name) {
		return most
	}
	foreign := w.value[ForeignQueued] * w.queued.grown
	if groups.who == "" || groups.most < nearly*w.queued.byGroups && groups.most < antagonist*foreign {
		return most
	}
	least := limit * (w.queued.whole + w.value[CPUUse]) / w.queued.grown
	return claim{name: groups.who, share: min(groups.most/w.queued.grown, 1), known: true, least: least}
}

// queuedBehindOthers returns the group that had the CPU for most of what the workload waits for others above
// the baseline, and makes it wait for half of what is a symptom: what it waits for itself is due to them, too.
func (w *workload) queuedBehindOthers() claim {
	limit, _ := floor(Imposed)
	var all claims
	for i := range w.all {
		if at := &w.all[i]; at.quantity == watch.QueuedBy && at.by != w.Group {
			if v := at.level(w.from, w.to); v > 0 && !w.asUsual(at, v) {
				all.add(at.by, w.beyond(at, v), true)
			}
		}
	}
	c := all.claim(w.value[ForeignQueued]*w.queued.grown, leastWait)
	if c.name == "" || w.imposed(all.most) < limit/2 {
		return claim{}
	}
	c.ofOthers, c.share = c.share, all.most/w.queued.grown
	c.least = limit / 2 * (w.queued.whole + w.value[CPUUse]) / w.queued.grown
	return c
}

// mayUse says whether the workload may run on one of the CPUs.
func (w *workload) mayUse(cpus cpuset.Set) bool {
	return w.CPUs.IsEmpty() || cpus.IsEmpty() || w.CPUs.Overlaps(cpus)
}

// ring is the last values by window; NaN without one.
type ring struct {
	values [memory]float64
	next   int
	len    int
}

func (r *ring) add(v float64) {
	r.values[r.next] = v
	r.next = (r.next + 1) % memory
	r.len = min(r.len+1, memory)
}

// back returns the value i windows ago.
func (r *ring) back(i int) float64 {
	if i >= r.len {
		return math.NaN()
	}
	return r.values[(r.next-1-i+memory)%memory]
}

// correlated is the antagonist search of CPI² (section 4.2) with the excess of
// waiting in place of CPI: each window adds the part of the suspect's CPU time
// that fell in it, times 1-1/x if the symptom was x ≥ 1 times its threshold, and
// times x-1 if it was less. Among those above the limit the one that uses most
// is named.
func (d *Detector) correlated(w *workload) (c claim, r float64) {
	var use claims
	for _, s := range d.workloads {
		now := s.value[CPUUse]
		if s == w || now < leastUse || !s.mayUse(w.CPUs) {
			continue
		}
		if math.IsNaN(now) {
			if s.whole[watch.CPUTime] > 0 {
				return claim{}, 0 // it may be this one
			}
			continue
		}
		corr := correlation(&s.uses, &w.excess)
		if corr < correlates {
			continue
		}
		if use.add(s.Group, now, true); use.who == s.Group {
			r = corr
		}
	}
	return use.claim(use.total, 0), r
}

func correlation(use, excess *ring) float64 {
	sum, weighted, n := 0.0, 0.0, 0
	for i := range memory {
		u, x := use.back(i), excess.back(i)
		if math.IsNaN(u) || math.IsNaN(x) {
			continue
		}
		n++
		sum += u
		if x >= 1 {
			weighted += u * (1 - 1/x)
		} else {
			weighted += u * (x - 1)
		}
	}
	if n < enoughValues || sum == 0 {
		return 0
	}
	return weighted / sum
}

// grownMost says who grew most since nobody suffered, of what all grew by. A suspect whose
// present level is missing counts with that since the onset (of the last windows; of a cache the
// last one, heldWindows), and is not named; without one, nobody is: what it had before the
// onset says nothing of what it grew by.
func (d *Detector) grownMost(w *workload, q watch.Quantity, part watch.Part, least float64, near func(*workload) bool) claim {
	var c claims
	onset := w.onset
	if q == watch.Memory {
		onset = w.pressure
	}
	for _, s := range d.workloads {
		if s != w && near != nil && !near(s) {
			continue
		}
		at := s.find(q, part, "")
		if s.unseen() {
			return claim{}
		}
		if at == nil {
			continue
		}
		level, fresh := at.latelySince(w.from, w.to, onset)
		if q == watch.LLCOccupancy {
			level, fresh = at.held(w.from, w.to, onset)
		}
		if math.IsNaN(level) {
			return claim{}
		}
		name := s.Group
		if s == w {
			name = ""
		}
		c.add(name, at.growth(level), fresh)
	}
	return c.claim(c.total, least)
}

// trafficMost returns the group that causes most of the traffic to memory in the workload's
// busiest cache domain.
func (d *Detector) trafficMost(w *workload) claim {
	at := w.busiest(watch.Bandwidth)
	if at == nil {
		return claim{}
	}
	var c claims
	for _, s := range d.workloads {
		if m := s.find(watch.Bandwidth, at.part, ""); s != w && m != nil {
			v, fresh := m.lately(w.from, w.to)
			c.add(s.Group, v, fresh)
		}
	}
	return c.claim(w.value[DomainBandwidth]*d.cfg.PeakBandwidth, 0)
}

// sharesCache says which workloads may run on CPUs of a last-level cache; all,
// where the machine does not tell.
func (d *Detector) sharesCache(part watch.Part) func(*workload) bool {
	if d.cfg.Machine == nil {
		return nil
	}
	for _, cache := range d.cfg.Machine.ByKind(machine.L3) {
		if cache.KernelID == part.ID {
			return func(s *workload) bool { return s.mayUse(cache.CPUs) }
		}
	}
	return nil
}

// ownIO is the workload's part of the bytes to and from the devices it uses, 0
// while it is not under I/O pressure.
func (d *Detector) ownIO(w *workload) float64 {
	own, _ := w.io(w)
	if !(own > 0) {
		return math.NaN()
	}
	if !w.stands(IOPressure) {
		return 0
	}
	all := own
	for _, s := range d.workloads {
		if s != w {
			if v, _ := s.io(w); v > 0 {
				all += v
			}
		}
	}
	return own / all
}

// ioMost says whose bytes most of them are.
func (d *Detector) ioMost(w *workload) claim {
	var c claims
	for _, s := range d.workloads {
		v, fresh := s.io(w)
		if math.IsNaN(v) || s.unseen() {
			return claim{}
		}
		name := s.Group
		if s == w {
			name = ""
		}
		c.add(name, v, fresh)
	}
	return c.claim(c.total, 0)
}

// unseen reports whether nothing was ever told of the workload, which then may be the
// one.
func (w *workload) unseen() bool { return w.whole[watch.CPUTime] == 0 }

// io is the bytes per second that go between the workload and the devices of
// another; NaN if one of them has been silent for long.
func (w *workload) io(of *workload) (sum float64, fresh bool) {
	fresh = true
	for i := range w.all {
		at := &w.all[i]
		if at.quantity != watch.IORead && at.quantity != watch.IOWritten || of.find(at.quantity, at.part, "") == nil {
			continue
		}
		v, now := at.lately(of.from, of.to)
		sum += v
		fresh = fresh && now
	}
	return sum, fresh
}
