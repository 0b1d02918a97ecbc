package replay

import "math"

// Paired is the mean of the differences between pairs of figures that belong
// together, such as of two policies on the same stream, with its 95 % interval by
// Student's t: Mean ± Half. The unit of replication is the pair, not the
// values averaged into its figures.
type Paired struct {
	Pairs int
	Mean  float64
	Half  float64 // NaN for less than two pairs
}

// Pair compares other with base, pair by pair. A pair with a NaN is left out.
func Pair(base, other []float64) Paired {
	p := Paired{Half: math.NaN()}
	squares := 0.0 // of distances from the mean, by Welford's method
	for i := range base {
		d := other[i] - base[i]
		if math.IsNaN(d) {
			continue
		}
		p.Pairs++
		before := d - p.Mean
		p.Mean += before / float64(p.Pairs)
		squares += before * (d - p.Mean)
	}
	if n := float64(p.Pairs); p.Pairs > 1 {
		p.Half = student95(p.Pairs-1) * math.Sqrt(squares/(n-1)/n)
	}
	return p
}

// student95 returns t of which Student's distribution has 95 % within ±t.
func student95(freedom int) float64 {
	low, high := 0.0, 16.0 // 12.7 with one degree of freedom
	for range 60 {
		if mid := (low + high) / 2; within(mid, freedom) < 0.95 {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// within returns how much of Student's distribution is within ±t (Abramowitz and
// Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
func within(t float64, freedom int) float64 {
	angle := math.Atan(t / math.Sqrt(float64(freedom)))
	sin, cos := math.Sincos(angle)
	sum, term := 0.0, 1.0
	if freedom%2 == 1 {
		term = cos
	}
	for k := freedom%2 + 2; k <= freedom; k += 2 {
		sum += term
		term *= cos * cos * float64(k-1) / float64(k)
	}
	if freedom%2 == 1 {
		return 2 / math.Pi * (angle + sin*sum)
	}
	return sin * sum
}
