package predict

import (
	"math"
	"time"

	"berth.dev/berth/kube/batch"
)

// scale is how a resource is counted: in buckets, of which the first is as wide as first and
// each next one wider by growth.
type scale struct {
	first    float64
	buckets  int
	half     time.Duration // after which a sample has half of its weight
	quantile float64       // of the samples, by weight, that the peak is
}

const growth = 0.05

// least is the least weight of a bucket that is not nothing.
const least = 1e-4

// The resources, as Koordinator counts them: CPU time in thousandths of a CPU, from 25 on, and
// memory in bytes, from 5 MiB on. Theirs end at 1,024 CPUs and 2 TiB, which a node can have more
// than.
var (
	cpu    = newScale(25, 8<<20, 12*time.Hour, 0.95)
	memory = newScale(5<<20, 64<<40, 24*time.Hour, 0.98)
)

func newScale(first, last float64, half time.Duration, quantile float64) *scale {
	s := &scale{first: first, half: half, quantile: quantile}
	for s.end(s.buckets) < last {
		s.buckets++
	}
	s.buckets++
	return s
}

// end is where a bucket ends.
func (s *scale) end(i int) float64 { return s.first * (math.Pow(1+growth, float64(i+1)) - 1) / growth }

// bucket is the one that a value is in: the last one for all that are larger.
func (s *scale) bucket(value int64) int {
	i := int(math.Log1p(float64(max(value, 0))*growth/s.first) / math.Log1p(growth))
	return min(i, s.buckets-1)
}

// peak is the end of the bucket up to which the quantile of the weights is; 0 without weights.
func (s *scale) peak(weights []float64) int64 {
	total := 0.0
	for _, w := range weights {
		total += w
	}
	last, sum := -1, 0.0
	for i, w := range weights {
		if w == 0 {
			continue
		}
		last, sum = i, sum+w
		if sum >= s.quantile*total {
			break
		}
	}
	if last < 0 {
		return 0
	}
	return int64(math.Round(s.end(last)))
}

// age has weights lose what they lose in a time.
func (s *scale) age(weights []float64, by time.Duration) {
	factor := math.Exp2(-float64(by) / float64(s.half))
	for i := range weights {
		if weights[i] *= factor; weights[i] < least {
			weights[i] = 0
		}
	}
}

// model is what somebody used: a pod, all prod pods, or the system.
type model struct {
	last        time.Time     // of its samples; the zero time without any
	seen        time.Duration // the time between samples, no more than gap of each
	cpu, memory []float64     // weights of buckets at the last sample
}

// add counts a sample. One that is older than the last, as the clock was set back, counts as if it
// came with that. What is too old is forgotten: a peak would be of few samples.
func (m *model) add(now time.Time, used batch.Amount) {
	by := now.Sub(m.last)
	if m.last.IsZero() || by.Abs() > old {
		*m = model{last: now, cpu: make([]float64, cpu.buckets), memory: make([]float64, memory.buckets)}
		by = 0
	}
	if by > 0 {
		cpu.age(m.cpu, by)
		memory.age(m.memory, by)
		m.seen += min(by, gap)
	}
	m.last = now
	m.cpu[cpu.bucket(used.Milli)]++
	m.memory[memory.bucket(used.Memory)]++
}

func (m *model) peak() batch.Amount {
	return batch.Amount{Milli: cpu.peak(m.cpu), Memory: memory.peak(m.memory)}
}
