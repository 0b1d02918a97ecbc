package detect

import (
	"cmp"
	"math"
	"slices"

	"berth.dev/berth/watch"
)

// The figures below which there is too little to judge by.
const (
	leastUse    = 0.25    // CPUs, for cycles and for suspects on the CPU (CPI²)
	leastWait   = 0.01    // seconds waited per second
	leastGrowth = 0.1     // of the wait for a CPU that is beyond the usual
	leastMemory = 8 << 20 // bytes that others grew by
)

// The shares from which a cause is one.
const (
	mostly       = 0.6  // of what a workload may blame on itself
	antagonist   = 0.4  // of what one suspect must have
	nearly       = 0.8  // of what groups have, which one must have where others have more
	notable      = 0.2  // of the wait behind others, which a suspect must have had besides
	leastImposed = 0.2  // of run delay and run time, which others must impose where full CPUs are mostly its own
	ownFull      = 0.8  // of full CPUs, from which they are full by its own doing
	ownAll       = 0.9  // of full CPUs, from which others have too little of them to matter
	correlates   = 0.35 // CPI²
	fullDomain   = 0.8  // of the peak bandwidth (Heracles)
	busySibling  = 0.5
	nearMemory   = 0.8
	enoughValues = 10 // windows that a correlation, or what is usual, needs
	heldUp       = 2  // factor by which stolen time may hold up those who wait
)

// floor is the value below which a signal is never unusual, whatever its
// baseline; a signal without one is judged by its baseline alone.
func floor(s Signal) (float64, bool) { return signalInfos[s].floor, signalInfos[s].floor > 0 }

// compare holds a signal against its threshold. Known is false where it is
// missing, or has only a baseline to be judged by and none is learnt.
func (w *workload) compare(s Signal) (threshold float64, usual *float64, stands, known bool) {
	v := w.value[s]
	threshold, known = floor(s)
	if t, mean, ok := w.baseline.threshold(s, w.value[CPUUse]); ok {
		threshold = max(threshold, t)
		known = true
		usual = &mean
	}
	if math.IsNaN(v) || !known {
		return threshold, usual, false, false
	}
	if signalInfos[s].below {
		return threshold, usual, v <= threshold, true
	}
	return threshold, usual, v >= threshold, true
}

// stands says whether a signal is beyond its threshold.
func (w *workload) stands(s Signal) bool {
	_, _, stands, _ := w.compare(s)
	return stands
}

// normal says whether a signal is known not to be.
func (w *workload) normal(s Signal) bool {
	_, _, stands, known := w.compare(s)
	return known && !stands
}

// evidence returns those of the signals that stand out.
func (w *workload) evidence(of ...Signal) []Evidence {
	var all []Evidence
	for _, s := range of {
		if threshold, usual, stands, _ := w.compare(s); stands {
			e := w.fact(s, threshold)
			e.Baseline = usual
			all = append(all, e)
		}
	}
	return all
}

// fact is evidence by a signal of the workload that reached a fixed share.
func (w *workload) fact(s Signal, threshold float64) Evidence {
	subject := subjectOf(w.Group)
	switch s {
	case StealShare, DomainBandwidth:
		subject = watch.Subject{}
	case LinkUse, LinkWait, LinkLost:
		subject = watch.Subject{Part: w.link}
	}
	return Evidence{Subject: subject, Signal: s, Value: w.value[s], Threshold: threshold, From: w.from, To: w.to}
}

// missing returns those of the signals that are not there.
func (w *workload) missing(of ...Signal) []Signal {
	var all []Signal
	for _, s := range of {
		if math.IsNaN(w.value[s]) {
			all = append(all, s)
		}
	}
	return all
}

// Gap is a resource about which a window tells too little, and the signals that
// it lacks.
type Gap struct {
	Resource Resource `json:"resource"`
	Missing  []Signal `json:"missing"`
}

// silentWithout are signals that are missing also while nothing happens which they could
// tell of. Where what they are made of is told, they are no gap.
var silentWithout = map[Signal][]watch.Quantity{
	RunQueueP99: {watch.Queued}, RoundTrip: {watch.Segments}, ForeignQueued: {watch.Queued}, IdleQueued: {watch.Queued}, OwnIO: {watch.IORead},
	CPI: {watch.Cycles, watch.Instructions}, Clock: {watch.Cycles, watch.Instructions}, MPKI: {watch.LLCMisses, watch.Instructions},
}

// silent says whether a signal is missing only as there is nothing to tell.
func (w *workload) silent(s Signal) bool {
	of := silentWithout[s]
	for _, q := range of {
		if !slices.ContainsFunc(w.all, func(at meter) bool { return at.quantity == q && !math.IsNaN(at.level(w.from, w.to)) }) {
			return false
		}
	}
	return len(of) > 0
}

// Gaps returns what the last window could not tell about a workload.
func (d *Detector) Gaps(group string) []Gap {
	w := d.byGroup[group]
	if w == nil {
		return nil
	}
	var gaps []Gap
	for _, r := range Resources() {
		if missing := slices.DeleteFunc(w.missing(resourceInfos[r].useful...), w.silent); len(missing) > 0 {
			gaps = append(gaps, Gap{r, missing})
		}
	}
	return gaps
}

// diagnose files what the window says, and whether anything in it is unusual.
func (d *Detector) diagnose(w *workload) (unusual bool) {
	waits := w.stands(RunQueueP99) || w.stands(WaitRatio) || w.stands(CPUPressure) || w.stands(Imposed)
	w.excess.add(w.waitExcess())
	for _, s := range []Signal{ThrottledPeriods, Withheld, StealShare, MemoryPressure, IOPressure, CPI, Clock} {
		unusual = unusual || w.stands(s)
	}
	unusual = unusual || waits && !d.ownWaits(w)

	if w.stands(ThrottledPeriods) || w.stands(Withheld) || waits && w.value[ThrottledQueued] >= antagonist {
		w.own(OwnLimit, append(w.evidence(ThrottledPeriods, Withheld), w.above(ThrottledQueued, antagonist)...))
	}
	if w.stands(StealShare) && w.value[CPUUse] > 0 {
		w.conclude(Hypervisor, "", 1, w.evidence(StealShare))
	}
	d.diagnoseMemory(w)
	d.diagnoseIO(w)
	d.diagnoseNetwork(w)
	if w.value[LocalMemory] <= nearMemory && w.value[CPUUse] >= leastUse {
		w.conclude(NUMA, "", 1, append(w.above(LocalMemory, nearMemory), w.evidence(CPI)...))
	}
	throttled, stolen, known := w.explained()
	// What is known to have been waited for by far exceeds what the hypervisor took.
	plainly := w.value[ForeignQueued]*w.queued.net > heldUp*max(1, d.perCPU(w))*w.stolen
	if throttled || stolen {
		w.clear(MemoryBandwidth, LLC, SMT, Frequency)
	} else if known {
		d.diagnoseCycles(w)
	}
	if throttled || stolen && !plainly {
		w.clear(OwnLoad, CPU)
		w.takes.agree = 0
	} else if known {
		d.diagnoseUse(w, waits)
		unusual = d.diagnoseTaken(w, waits) || unusual
	}
	return unusual
}

// quotaSeen is for how long a quota that ran out may explain what is seen: it runs out once in
// its period, 100 ms if nobody chose another (Documentation/scheduler/sched-bwc.rst), and shorter
// windows between see the waiting that comes of it, but no throttling.
const quotaSeen = 250 * watch.Millisecond

// ownSeen is for how long a burst of the workload's own may be behind its waiting, and leastBurst how
// many of its threads have to wait for each other to be one: a few do so at any time. One whose threads are
// no more than its CPUs has its queue in the program, and uses leastMore times the CPU time that it usually
// does, or fills its CPUs. All are guesses, by simulation (docs/measurements/harder-truths.md, reaction.md).
const (
	ownSeen    = 1500 * watch.Millisecond
	leastBurst = 1
	leastMore  = 2
)

// fullWindows is for how many more windows it is remembered that others had most of the full CPUs.
const fullWindows = 2

// explained says whether throttling or steal may explain what is seen on the
// CPU; known is false where one of the two cannot be told.
func (w *workload) explained() (throttled, stolen, known bool) {
	// Half of what is a finding is enough to raise doubt about others.
	doubt := func(s Signal) bool {
		limit, _ := floor(s)
		return w.value[s] >= limit/2
	}
	throttled = doubt(ThrottledPeriods) || doubt(Withheld) || w.value[ThrottledQueued] >= antagonist
	if throttled {
		w.quotaUntil = w.to + quotaSeen
	}
	throttled = throttled || w.to < w.quotaUntil
	known = !math.IsNaN(w.value[ThrottledPeriods]) || !math.IsNaN(w.value[Withheld])
	return throttled, doubt(StealShare), known && !math.IsNaN(w.value[StealShare])
}

// above is evidence by a signal that reached a fixed share, if it did.
func (w *workload) above(s Signal, threshold float64) []Evidence {
	v := w.value[s]
	if signalInfos[s].below && v <= threshold || !signalInfos[s].below && v >= threshold {
		return []Evidence{w.fact(s, threshold)}
	}
	return nil
}

func (w *workload) conclude(r Resource, suspect string, share float64, evidence []Evidence) {
	w.file(r, verdict{suspect: suspect, share: share, evidence: evidence, missing: w.missing(resourceInfos[r].useful...)})
}

// own concludes that the workload itself is to blame.
func (w *workload) own(r Resource, evidence []Evidence) {
	w.file(r, verdict{share: 1, own: true, evidence: evidence, missing: w.missing(resourceInfos[r].useful...)})
}

// accuse concludes that a suspect is to blame, on one more piece of evidence.
func (w *workload) accuse(r Resource, c claim, s Signal, evidence []Evidence) {
	v := verdict{suspect: c.name, share: 1, evidence: evidence, missing: w.missing(resourceInfos[r].useful...)}
	if c.name != "" {
		v.share = cmp.Or(c.ofOthers, c.share)
		v.evidence = append(evidence, w.against(c.name, s, c.share, cmp.Or(c.least, antagonist)))
	}
	if v.probed = c.name != "" && s == QueueShare; v.probed {
		v.most = w.mostOf(c)
	}
	w.file(r, v)
}

// mostOf is the strength that what a suspect imposes has by itself, where it is the only symptom or a
// burst of the workload's own may be behind the others, and half of it then; else 0.
func (w *workload) mostOf(c claim) float64 {
	limit, _ := floor(Imposed)
	strength := w.imposed(c.share*w.queued.grown) / limit
	switch {
	case w.to < w.ownUntil:
		return strength / 2
	case w.stands(RunQueueP99) || w.stands(WaitRatio) || w.stands(CPUPressure):
		return 0
	}
	return strength
}

// against is evidence about a suspect.
func (w *workload) against(suspect string, s Signal, value, threshold float64) Evidence {
	return Evidence{Subject: subjectOf(suspect), Signal: s, Value: value, Threshold: threshold, From: w.from, To: w.to}
}

// ownWaits says that the workload waits for a CPU as it always does, however long that
// is: its threads wake up together while its CPUs are not full, or wait for each other,
// and no neighbour has a part worth speaking of. Until it is known what is usual, processes
// in no group may have theirs on CPUs that are not full.
func (d *Detector) ownWaits(w *workload) bool {
	q := &w.queued
	switch {
	case !(w.value[CPUUse] > 0) || w.value[IdleQueued] >= antagonist || w.value[ThrottledQueued] >= antagonist:
		return false
	case math.IsNaN(w.value[Imposed]):
		c, _ := d.correlated(w)
		return w.value[OwnUse] == 0 && c.name == "" && !c.known
	case q.byGroups >= antagonist*q.grown && min(q.byGroups, q.net) >= leastWait:
		return false
	}
	return w.value[OwnUse] == 0 && !w.usualUse.learnt() || !w.stands(Imposed) && w.value[ForeignQueued] < antagonist
}

// waitExcess is by what factor the signals of waiting are above their thresholds or,
// if they stand out, above what is usual, the highest of them.
func (w *workload) waitExcess() float64 {
	highest := math.NaN()
	for _, s := range [...]Signal{RunQueueP99, WaitRatio, CPUPressure} {
		over, usual, stands, known := w.compare(s)
		if limit, _ := floor(s); stands && usual != nil {
			over = max(limit, *usual)
		}
		if v := w.value[s] / over; known && !(v <= highest) {
			highest = v
		}
	}
	return highest
}

// perCPU is how many of its threads wait for a CPU, per CPU.
func (d *Detector) perCPU(w *workload) float64 {
	return w.queued.whole / float64(max(d.cpusOf(w), 1))
}

// diagnoseUse finds out who has the CPU time that a workload lacks. One that uses up
// its CPUs itself lacks some also where its threads do not wait; others have little of
// them then, and could not give it much.
func (d *Detector) diagnoseUse(w *workload, waits bool) {
	others := w.value[ForeignQueued] >= mostly && w.value[Imposed] >= leastImposed
	switch {
	case w.value[OwnUse] >= ownAll && !others && (waits || !w.stands(CPI)):
		w.own(OwnLoad, append(w.evidence(RunQueueP99, WaitRatio, CPUPressure), w.fact(OwnUse, ownAll)))
	case waits && w.value[OwnUse] >= ownFull && w.value[Imposed] < leastImposed: // its requests wait in its program
		w.ownUntil, w.ownFrom = w.to+ownSeen, 0
		w.own(OwnLoad, append(w.evidence(RunQueueP99, WaitRatio, CPUPressure), w.fact(OwnUse, ownFull)))
	case waits:
		d.diagnoseWait(w)
	}
}

// diagnoseWait finds out for whom a workload waits: by who had the CPU meanwhile
// where the run-queue probe tells, else by correlation.
func (d *Detector) diagnoseWait(w *workload) {
	symptoms := w.evidence(RunQueueP99, WaitRatio, CPUPressure, Imposed)
	if math.IsNaN(w.value[ForeignQueued]) {
		d.correlateWait(w, symptoms)
		return
	}
	w.noteCrowd()
	crowded := w.crowded()
	switch own := w.value[SelfQueued]; {
	case w.muchMore():
		w.ownUntil, w.ownFrom = w.to+ownSeen, 0
	case !crowded && own >= mostly && own*w.queued.net >= leastBurst:
		if w.to >= w.ownUntil {
			w.ownFrom = w.to
		}
		w.ownUntil = w.to + ownSeen
	}
	if crowded && w.value[ForeignQueued] < antagonist && w.value[SelfQueued] > w.value[ForeignQueued] {
		if c := w.queuedBehindOthers(); c.name != "" {
			w.accuse(CPU, c, QueueShare, symptoms)
			return
		}
	}
	switch {
	case w.value[SelfQueued] >= mostly && d.fills(w):
		w.own(OwnLoad, append(symptoms, w.fact(SelfQueued, mostly)))
	case w.value[SelfQueued] >= mostly:
		// Its threads wake up together; or others have driven them onto fewer CPUs,
		// where they wait for each other.
		d.correlateWait(w, symptoms)
	case w.value[IdleQueued] >= mostly:
		w.conclude(Frequency, "", 1, append(symptoms, w.fact(IdleQueued, mostly)))
	case w.value[ForeignQueued] >= antagonist:
		w.accuse(CPU, w.queuedMost(), QueueShare, append(symptoms, w.fact(ForeignQueued, antagonist)))
	}
}

// muchMore says whether it uses far more CPU time than it usually does.
func (w *workload) muchMore() bool {
	usual := &w.usualUse
	return usual.learnt() && w.value[CPUUse] >= max(leastMore*usual.Mean, usual.Mean+3*math.Sqrt(usual.Variance))
}

// crowded says whether others have most of its CPUs, which are full, or had in the last windows, as a short one
// is told in ticks of the clock. They drive its threads onto the same CPUs, where these wait for each other.
func (w *workload) crowded() bool {
	return w.to-w.full <= fullWindows*(w.to-w.from)
}

// noteCrowd notes whether others have most of its full CPUs. If a burst of its own has just begun, by what its
// threads wait for each other, it was theirs: a window in which others begin is not full.
func (w *workload) noteCrowd() {
	switch own := w.value[OwnUse]; {
	case own >= mostly:
		w.full = 0
	case own > 0:
		w.full = w.to
		if w.to-w.ownFrom <= fullWindows*(w.to-w.from) {
			w.ownUntil, w.ownFrom = 0, 0
		}
	}
}

// fills says whether the workload uses most of its CPUs, as far as is known.
func (d *Detector) fills(w *workload) bool {
	return w.value[CPUUse] >= mostly*float64(d.cpusOf(w))
}

// cpusOf is how many CPUs the workload may use, 0 where that is not known.
func (d *Detector) cpusOf(w *workload) int {
	n := w.CPUs.Len()
	if n == 0 && d.cfg.Machine != nil {
		n = d.cpus()
	}
	return n
}

func (d *Detector) correlateWait(w *workload, symptoms []Evidence) {
	switch own := w.value[OwnUse]; {
	case math.IsNaN(own), own == 0:
		// It may be its own doing, or its CPUs are not full: nobody is accused.
	case own >= ownFull:
		w.own(OwnLoad, append(symptoms, w.fact(OwnUse, ownFull)))
	default:
		c, r := d.correlated(w)
		if c.name != "" {
			w.accuse(CPU, c, UseShare, append(symptoms, w.against(c.name, Correlation, r, correlates)))
		}
	}
}

func (d *Detector) diagnoseMemory(w *workload) {
	if !w.stands(MemoryPressure) || math.IsNaN(w.value[LimitEvents]) {
		return
	}
	symptoms := w.evidence(MemoryPressure)
	if w.value[LimitEvents] > 0 {
		w.own(Memory, append(symptoms, w.fact(LimitEvents, 0)))
		return
	}
	w.accuse(Memory, d.grownMost(w, watch.Memory, watch.Part{}, leastMemory, nil), MemoryGrowth, symptoms)
}

func (d *Detector) diagnoseIO(w *workload) {
	if !w.stands(IOPressure) || math.IsNaN(w.value[OwnIO]) {
		return
	}
	symptoms := w.evidence(IOPressure)
	if w.value[OwnIO] >= mostly {
		w.own(IO, append(symptoms, w.fact(OwnIO, mostly)))
		return
	}
	if c := d.ioMost(w); c.known {
		w.accuse(IO, c, IOShare, symptoms)
	}
}

// diagnoseCycles tells apart what makes instructions or cycles slower.
func (d *Detector) diagnoseCycles(w *workload) {
	if w.stands(Clock) && w.normal(CPI) {
		w.conclude(Frequency, "", 1, w.evidence(Clock))
	}
	if !w.stands(CPI) {
		return
	}
	switch {
	case w.value[DomainBandwidth] >= fullDomain:
		if c := d.trafficMost(w); c.name != "" {
			w.accuse(MemoryBandwidth, c, BandwidthShare, append(w.evidence(CPI, MPKI), w.fact(DomainBandwidth, fullDomain)))
		}
	case w.stands(MPKI):
		if at := w.busiest(watch.LLCOccupancy); w.stands(Occupancy) && at != nil {
			c := d.grownMost(w, watch.LLCOccupancy, at.part, 0, d.sharesCache(at.part))
			if c.name != "" {
				w.accuse(LLC, c, OccupancyGrowth, w.evidence(CPI, MPKI, Occupancy))
			}
		}
	case w.normal(MPKI) && w.value[SiblingUse] >= busySibling:
		c := d.grownMost(w, watch.CPUTime, watch.Part{}, leastUse, func(s *workload) bool { return s.mayUse(w.cores) })
		if c.name != "" {
			w.accuse(SMT, c, UseGrowth, append(w.evidence(CPI), w.fact(SiblingUse, busySibling)))
		}
	}
}
