// Package predict says how much of what the prod pods of a node request they will not use, from
// what they have used: Koordinator's prediction of peaks (koordlet's pkg/koordlet/prediction),
// which mid work is given the rest of. A peak is a quantile of a histogram whose samples have half
// of their weight after each half-life, and a margin. It reads no clock.
package predict

import (
	"time"

	"berth.dev/berth/kube/batch"
)

// Every is how often a Predictor wants to be told what is used, on average since.
const Every = time.Minute

const (
	maxPods = 2000             // of others nothing is predicted
	forget  = 30 * time.Minute // a pod of which there was no sample for so long
	gap     = 3 * Every        // between samples, of which no more counts as seen
	old     = 24 * time.Hour   // samples that nothing is said by; so far a clock may be set back
)

// Settings are what can be chosen. The zero value is Koordinator's default.
type Settings struct {
	// ColdStart is for how long somebody is to be seen before anything is predicted: a pod, all
	// prod pods, the system. Time without samples does not count. 0 is 24 h. (Koordinator counts
	// it from a pod's creation, so that after its own start one sample is enough.)
	ColdStart time.Duration
	// Margin is percent that a peak is raised by; 0 is 10.
	Margin int
}

// Pod is a pod of the node. Of one without Used nothing is learnt.
type Pod struct {
	// UID tells it from all others, over restarts, too.
	UID string
	// Ending pods are being deleted: what they request is given to nobody.
	Ending bool
	batch.Pod
}

// Predictor learns. It is for one goroutine.
type Predictor struct {
	settings     Settings
	prod, system model
	pods         map[string]*model // prod pods, by UID
}

// New makes a predictor that knows nothing.
func New(s Settings) *Predictor {
	if s.ColdStart == 0 {
		s.ColdStart = 24 * time.Hour
	}
	if s.Margin == 0 {
		s.Margin = 10
	}
	return &Predictor{settings: s, pods: map[string]*model{}}
}

// Learn notes what pods and the system used since the last time. It is to be called each Every.
func (p *Predictor) Learn(now time.Time, system batch.Amount, pods []Pod) {
	var prod batch.Amount
	for i := range pods {
		pod := &pods[i]
		if pod.Kind != batch.Prod || pod.Used == nil {
			continue
		}
		if m := p.pods[pod.UID]; m != nil {
			m.add(now, *pod.Used)
		} else if len(p.pods) < maxPods {
			m = &model{}
			m.add(now, *pod.Used)
			p.pods[pod.UID] = m
		}
		prod.Memory += pod.Used.Memory
		if !pod.LSE { // whose CPUs are taken, used or not
			prod.Milli += pod.Used.Milli
		}
	}
	p.prod.add(now, prod)
	p.system.add(now, system)
	for uid, m := range p.pods {
		if now.Sub(m.last).Abs() > forget {
			delete(p.pods, uid)
		}
	}
}

// Reclaimable returns what of the requests of prod pods will not be used: the smaller of what the
// peaks of the pods leave, added up, and of what the peak of all prod pods at once and that of the
// system leave; and never more than these peaks leave of the node's capacity. An LSE pod's CPUs
// are never reclaimable.
func (p *Predictor) Reclaimable(now time.Time, capacity batch.Amount, pods []Pod) batch.Amount {
	if !p.warm(&p.prod, now) || !p.warm(&p.system, now) {
		return batch.Amount{}
	}
	var one, all forecast // pod by pod, and all at once
	for i := range pods {
		pod := &pods[i]
		if pod.Kind != batch.Prod {
			continue
		}
		peak := pod.Request
		if m := p.pods[pod.UID]; m != nil && !pod.Ending && p.warm(m, now) {
			peak = p.raised(m.peak())
		}
		if pod.LSE {
			peak.Milli = pod.Request.Milli
			all.peak.Milli += pod.Request.Milli
		}
		one.add(pod.Request, peak)
		if !pod.Ending {
			all.left = plus(all.left, pod.Request)
		}
	}
	all.peak = plus(all.peak, p.raised(plus(p.prod.peak(), p.system.peak())))
	all.left = beyond(all.left, all.peak)
	return smaller(one.within(capacity), all.within(capacity))
}

// forecast is what is used at most, and what of the requests that leaves.
type forecast struct{ peak, left batch.Amount }

// add counts a request and what is used of it at most.
func (f *forecast) add(request, peak batch.Amount) {
	f.peak = plus(f.peak, peak)
	f.left = plus(f.left, beyond(request, peak))
}

// within is what is left, as far as there is so much beside the peak.
func (f *forecast) within(capacity batch.Amount) batch.Amount {
	return smaller(f.left, beyond(capacity, f.peak))
}

// warm reports whether somebody was seen for long enough, and not too long ago.
func (p *Predictor) warm(m *model, now time.Time) bool {
	return !m.last.IsZero() && m.seen >= p.settings.ColdStart && now.Sub(m.last).Abs() <= old
}

// raised is a peak with the margin.
func (p *Predictor) raised(peak batch.Amount) batch.Amount {
	by := int64(p.settings.Margin)
	return batch.Amount{Milli: peak.Milli + peak.Milli*by/100, Memory: peak.Memory + peak.Memory*by/100}
}

func plus(a, b batch.Amount) batch.Amount {
	return batch.Amount{Milli: a.Milli + b.Milli, Memory: a.Memory + b.Memory}
}

// beyond is what a has more than b.
func beyond(a, b batch.Amount) batch.Amount {
	return batch.Amount{Milli: max(a.Milli-b.Milli, 0), Memory: max(a.Memory-b.Memory, 0)}
}

func smaller(a, b batch.Amount) batch.Amount {
	return batch.Amount{Milli: min(a.Milli, b.Milli), Memory: min(a.Memory, b.Memory)}
}
