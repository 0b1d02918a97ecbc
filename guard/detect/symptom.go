package detect

import (
	"math"
	"slices"
)

// Symptom is how much the last window says that a workload lacks a resource. It
// is there too while nothing is wrong, so that what a remedy did can be measured.
type Symptom struct {
	// Strength is by what factor the strongest of the resource's signals is beyond
	// its threshold: from 1 on it stands out.
	Strength float64 `json:"strength"`
	// Typical is the median of the strengths in those of the last windows that
	// agree that the workload lacks the resource; 0 if none does.
	Typical float64 `json:"typical,omitempty"`
	// Suspect is whom the last window accuses, and of which share of the damage; ""
	// if nobody.
	Suspect string  `json:"suspect,omitempty"`
	Share   float64 `json:"share,omitempty"`
	// Foreign is the part of the wait for a CPU, beyond the usual, that is behind
	// others, as the run-queue probe tells; nil for other resources and without it.
	Foreign *float64 `json:"foreign,omitempty"`
}

// Imposed is how much of the strength is others' doing: the rest, such as a queue
// that built up meanwhile, lasts for a time after they are gone. False if that is
// not known.
func (s *Symptom) Imposed() (float64, bool) {
	if s.Foreign == nil {
		return 0, false
	}
	return s.Strength * *s.Foreign, true
}

// symptomsOf are the signals whose strength tells how much a resource is lacked.
func (w *workload) symptomsOf(r Resource) []Signal {
	if r == Frequency && w.value[IdleQueued] >= mostly {
		r = CPU // it waits, for CPUs to wake up
	}
	switch r {
	case OwnLimit:
		return []Signal{ThrottledPeriods, Withheld}
	case Hypervisor:
		return []Signal{StealShare}
	case OwnLoad, CPU:
		return []Signal{RunQueueP99, WaitRatio, CPUPressure}
	case Memory:
		return []Signal{MemoryPressure}
	case IO:
		return []Signal{IOPressure}
	case MemoryBandwidth, LLC, SMT:
		return []Signal{CPI}
	case Frequency:
		return []Signal{Clock}
	}
	return nil
}

// Symptom returns what the last window says about a workload and a resource;
// false if it lacks every signal of it, or if the workload is not a sensitive
// one. NUMA has no symptom: it is a fact about where memory lies.
func (d *Detector) Symptom(group string, r Resource) (Symptom, bool) {
	w := d.byGroup[group]
	if w == nil || !w.Sensitive || int(r) >= resources {
		return Symptom{}, false
	}
	s := Symptom{Strength: w.strength(r), Typical: w.history[r].typical()}
	if h := &w.history[r]; h.agree&1 == 1 {
		s.Suspect, s.Share = h.suspects[0], h.shares[0]
	}
	if foreign := w.value[ForeignQueued]; r == CPU && !math.IsNaN(foreign) {
		s.Foreign = &foreign
	}
	return s, !math.IsNaN(s.Strength)
}

// strength is by what factor the strongest of a resource's signals is beyond its
// threshold; NaN if none is known.
func (w *workload) strength(r Resource) float64 {
	highest := math.NaN()
	for _, s := range w.symptomsOf(r) {
		threshold, _, _, known := w.compare(s)
		if !known {
			continue
		}
		v := w.value[s] / threshold
		if signalInfos[s].below {
			v = threshold / w.value[s]
		}
		if !(v <= highest) {
			highest = v
		}
	}
	return highest
}

// typical is the median strength of the windows that agree.
func (h *history) typical() float64 {
	var of [lookBack]float64
	agreeing := of[:0]
	for i, v := range h.strengths {
		if h.agree>>i&1 == 1 && !math.IsNaN(v) {
			agreeing = append(agreeing, v)
		}
	}
	if len(agreeing) == 0 {
		return 0
	}
	slices.Sort(agreeing)
	return agreeing[len(agreeing)/2]
}
