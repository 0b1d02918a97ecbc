package detect

import (
	"math"
	"math/bits"
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
	// Evident is how strong what speaks against the suspect is in them: no more than Typical, and
	// less where the run-queue probe tells that it is behind a small part of the wait, or by
	// chance. 0 stands for Typical, or for fewer windows than make a finding.
	Evident float64 `json:"evident,omitempty"`
	// Imposed is by what factor the wait behind others, as the run-queue probe tells,
	// is beyond its threshold; nil for other resources than the CPU and without it. Of
	// Strength it is what ends with the others' doing: a queue that built up meanwhile
	// lasts for a time.
	Imposed *float64 `json:"imposed,omitempty"`
}

// symptomsOf are the signals whose strength tells how much a resource is lacked.
func (w *workload) symptomsOf(r Resource) []Signal {
	if r == Frequency && w.value[IdleQueued] >= mostly {
		r = CPU // it waits, for CPUs to wake up
	}
	return resourceInfos[r].symptoms
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
	if bits.OnesCount8(w.history[r].agree) >= agree {
		s.Evident = w.history[r].evident()
	}
	if imposed := w.strengthOf(Imposed); r == CPU && !math.IsNaN(imposed) {
		s.Imposed = &imposed
	}
	return s, !math.IsNaN(s.Strength)
}

// strength is by what factor the strongest of a resource's signals is beyond its
// threshold; NaN if none is known.
func (w *workload) strength(r Resource) float64 {
	highest := math.NaN()
	for _, s := range w.symptomsOf(r) {
		if v := w.strengthOf(s); !(v <= highest) && !math.IsNaN(v) {
			highest = v
		}
	}
	return highest
}

// strengthOf is by what factor a signal is beyond its threshold; NaN if it is missing.
func (w *workload) strengthOf(s Signal) float64 {
	threshold, _, _, known := w.compare(s)
	switch {
	case !known:
		return math.NaN()
	case signalInfos[s].below:
		return threshold / w.value[s]
	}
	return w.value[s] / threshold
}

// typical is the median strength of the windows that agree.
func (h *history) typical() float64 {
	median, _ := h.agreeing(&h.strengths)
	return median
}

// evident is how strong what speaks against the suspect is: the median of the windows that agree. Where
// the run-queue probe tells of it, it is no more than their mean over all of the last windows,
// as 0 in those that do not: who happens to run while the workload waits is chance in a short window, and
// those that agree are the worst.
func (h *history) evident() float64 {
	median, sum := h.agreeing(&h.against)
	if h.last.probed {
		return min(median, sum/lookBack)
	}
	return median
}

// agreeing are the median and the sum of a figure of the windows that agree; 0 if none does.
func (h *history) agreeing(figure *[lookBack]float64) (median, sum float64) {
	var of [lookBack]float64
	values := of[:0]
	for i, v := range figure {
		if h.agree>>i&1 == 1 && !math.IsNaN(v) {
			values = append(values, v)
			sum += v
		}
	}
	if len(values) == 0 {
		return 0, 0
	}
	slices.Sort(values)
	return values[len(values)/2], sum
}
