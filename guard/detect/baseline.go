package detect

import (
	"errors"
	"fmt"
	"math"
)

// Mean is an exponentially weighted mean and variance of N values. Up to
// 1/forget values all weigh the same.
type Mean struct {
	N        int     `json:"n,omitempty"`
	Mean     float64 `json:"mean,omitempty"`
	Variance float64 `json:"variance,omitempty"`
}

const (
	forget = 0.02 // weight of the newest value
	enough = 20   // values before a mean is relied upon
)

func (m *Mean) add(v float64) {
	m.N = min(m.N+1, 1<<30)
	weight := max(1/float64(m.N), forget)
	d := v - m.Mean
	m.Mean += weight * d
	m.Variance = (1 - weight) * (m.Variance + weight*d*d)
}

// clip brings a value to within three standard deviations once there are enough:
// a single outlier must not hide the next.
func (m *Mean) clip(v float64) float64 {
	reach := 3 * max(math.Sqrt(m.Variance), 0.01*math.Abs(m.Mean))
	if !m.learnt() || reach == 0 {
		return v
	}
	return min(max(v, m.Mean-reach), m.Mean+reach)
}

func (m *Mean) learnt() bool { return m.N >= enough }

// levels is the number of load levels: below 1/8 CPU, and one per factor of two
// from there on.
const levels = 12

func level(use float64) int {
	if !(use >= 0.125) {
		return 0
	}
	return int(min(math.Log2(use/0.125)+1, levels-1))
}

// learned are the signals that have a baseline, and by which factor a value has
// to differ from it, however small the variance is.
var learned = [...]struct {
	signal Signal
	factor float64
}{
	{RunQueueP99, 4}, {WaitRatio, 1.25}, {CPUPressure, 1.25}, {MemoryPressure, 1.5}, {IOPressure, 1.5},
	{CPI, 1.1}, {MPKI, 1.2}, {Clock, 0.9}, {Occupancy, 0.8},
}

// Baseline is what is usual for one workload, by load level and signal.
type Baseline [levels][len(learned)]Mean

// add takes in the signals of a window in which nothing was wrong.
func (b *Baseline) add(w *window) {
	at := level(w.value[CPUUse])
	for i, l := range learned {
		if v := w.value[l.signal]; !math.IsNaN(v) {
			m := &b[at][i]
			m.add(m.clip(v))
		}
	}
}

// threshold returns the value from which a signal is unusual at this load, and
// its mean. The levels next to this one have a say too, as load is never
// exactly between two. Without a mean to rely upon ok is false.
func (b *Baseline) threshold(s Signal, use float64) (threshold, mean float64, ok bool) {
	at := level(use)
	for i, l := range learned {
		if l.signal != s {
			continue
		}
		for at := max(at-1, 0); at <= min(level(use)+1, levels-1); at++ {
			m := &b[at][i]
			if !m.learnt() {
				continue
			}
			t := max(m.Mean+2*math.Sqrt(m.Variance), l.factor*m.Mean)
			further := t > threshold
			if signalInfos[s].below {
				t = min(m.Mean-2*math.Sqrt(m.Variance), l.factor*m.Mean)
				further = t < threshold
			}
			if !ok || further {
				threshold, mean, ok = t, m.Mean, true
			}
		}
	}
	return threshold, mean, ok
}

// Baselines is what a Detector has learnt, by workload.
type Baselines map[string]*Baseline

// Validate says what no Detector can have learnt.
func (b Baselines) Validate() error {
	var errs []error
	for group, baseline := range b {
		if baseline == nil {
			errs = append(errs, fmt.Errorf("baseline of %q: none", group))
			continue
		}
		for at, means := range baseline {
			for i, m := range means {
				if m.N < 0 || !finite(m.Mean) || m.Mean < 0 || !finite(m.Variance) || m.Variance < 0 {
					errs = append(errs, fmt.Errorf("baseline of %q: %v at level %d: %+v", group, learned[i].signal, at, m))
				}
			}
		}
	}
	return errors.Join(errs...)
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
