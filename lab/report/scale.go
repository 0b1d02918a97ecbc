package report

import (
	"cmp"
	"math"
	"slices"
)

// scale maps values to coordinates, linearly or by their logarithm.
type scale struct {
	min, max float64 // values
	from, to float64 // coordinates
	log      bool
}

func (s scale) at(v float64) float64 {
	lo, hi := s.min, s.max
	if s.log {
		v, lo, hi = math.Log10(max(v, s.min)), math.Log10(lo), math.Log10(hi)
	}
	if hi == lo {
		return (s.from + s.to) / 2
	}
	return s.from + (v-lo)/(hi-lo)*(s.to-s.from)
}

// clamped is at, kept inside the scale.
func (s scale) clamped(v float64) float64 { return s.at(min(max(v, s.min), s.max)) }

// logScale covers the positive values with some air and at least a factor of
// ten thirds, so that noise does not look like a difference.
func logScale(values []float64, from, to float64) scale {
	lo, hi := math.Inf(1), 0.0
	for _, v := range values {
		if v > 1e-100 && v < 1e100 {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	if hi == 0 {
		lo, hi = 1, 10
	}
	if hi/lo < 10.0/3 {
		mid := math.Sqrt(lo * hi)
		lo, hi = mid/math.Sqrt(10.0/3), mid*math.Sqrt(10.0/3)
	}
	air := math.Pow(hi/lo, 0.05)
	return scale{min: lo / air, max: hi * air, from: from, to: to, log: true}
}

// ticks returns at most n round values inside the scale.
func (s scale) ticks(n int) []float64 {
	if s.log {
		return s.logTicks(n)
	}
	return s.linearTicks(n)
}

func (s scale) linearTicks(n int) []float64 {
	step := math.Pow(10, math.Floor(math.Log10((s.max-s.min)/float64(max(n, 2)))))
	for _, factor := range []float64{1, 2, 5, 10, 20} {
		if (s.max-s.min)/(step*factor) <= float64(n) {
			step *= factor
			break
		}
	}
	var out []float64
	for i := math.Ceil(s.min/step - 1e-9); i*step <= s.max*(1+1e-9)+1e-12; i++ {
		out = append(out, i*step+0) // + 0 makes a negative zero plain
	}
	return out
}

// logTicks uses as dense a set of mantissas as fits, then every k-th decade.
func (s scale) logTicks(n int) []float64 {
	first, last := int(math.Floor(math.Log10(s.min))), int(math.Ceil(math.Log10(s.max)))
	for _, mantissas := range [][]float64{{1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 1.5, 2, 3, 5, 7}, {1, 2, 3, 5}, {1, 2, 5}, {1, 3}, {1}} {
		var out []float64
		for e := first; e <= last; e++ {
			for _, m := range mantissas {
				if v := m * math.Pow(10, float64(e)); v >= s.min && v <= s.max {
					out = append(out, v)
				}
			}
		}
		if len(out) <= n {
			return out
		}
	}
	stride := (last-first)/max(n, 1) + 1
	var out []float64
	for e := first; e <= last; e += stride {
		if v := math.Pow(10, float64(e)); v >= s.min && v <= s.max {
			out = append(out, v)
		}
	}
	return out
}

// label is a text beside a plot that wants to stand at a height.
type label struct {
	want, y float64
	index   int
	x       float64 // of what it names
}

// spread moves labels apart so that neighbours are at least gap from each
// other, as near as they can to where they want to be and inside [top, bottom].
func spread(labels []label, gap, top, bottom float64) []label {
	out := slices.Clone(labels)
	slices.SortStableFunc(out, func(a, b label) int { return cmp.Compare(a.want, b.want) })
	for i := range out {
		out[i].y = out[i].want
	}
	// A few sweeps that share each overlap between the two settle a dozen labels.
	for range 200 {
		moved := false
		for i := 1; i < len(out); i++ {
			if over := gap - (out[i].y - out[i-1].y); over > 0.01 {
				out[i-1].y -= over / 2
				out[i].y += over / 2
				moved = true
			}
		}
		if n := len(out); n > 0 {
			out[0].y = max(out[0].y, top)
			out[n-1].y = min(out[n-1].y, bottom)
		}
		if !moved {
			break
		}
	}
	return out
}
