package detect

import "math"

// Mean is an exponentially weighted mean and variance of N values. Up to
// 1/forget values all weigh the same.
type Mean struct {
	N        int
	Mean     float64
	Variance float64
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
	{CPI, 1.1}, {MPKI, 1.2}, {Clock, 0.9}, {Occupancy, 0.8}, {RoundTrip, 1.5}, {Resent, 2},
}

// Baseline has the usual values of one workload, by load level and signal.
type Baseline [levels][len(learned)]Mean

// add takes in those signals of a window that are wanted.
func (b *Baseline) add(w *window, wanted func(Signal) bool) {
	at := level(w.value[CPUUse])
	for i, l := range learned {
		if v := w.value[l.signal]; !math.IsNaN(v) && wanted(l.signal) {
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

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
