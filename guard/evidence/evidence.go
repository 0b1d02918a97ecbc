// Package evidence says when figures that come one after the other are enough to decide
// by, however often one looks.
//
// A test that is looked at again and again rejects a true hypothesis sooner or later. An
// e-value does not: by Ville's inequality the chance that it ever reaches 1/p is at most p
// while the hypothesis is true (Ramdas, Grünwald, Vovk, Shafer, "Game-theoretic statistics
// and safe anytime-valid inference", 2023). So one may stop as soon as it is large enough,
// and go on as long as it is not.
//
// It is pure.
package evidence

import "math"

// Enough is the e-value from which on a hypothesis is rejected: a true one is in 5 % of
// cases at most.
const Enough = 20

// scale is by how many standard deviations of one figure the truth may differ from the
// hypothesis, for which the e-value is made (the standard deviation of its prior).
const scale = 3

// Against is the e-value against the hypothesis that a difference is 0 or less, from its
// estimate, in standard deviations of one figure, and the information in it: of a mean
// the number of independent figures, of the difference of two means see Information.
//
// It is the likelihood ratio of normal figures, averaged over differences above 0 by half
// a normal distribution. Values of no information, or that are no numbers, give 1, which
// says nothing.
func Against(difference, information float64) float64 {
	if !(information > 0) || math.IsNaN(difference) || math.IsInf(information, 0) {
		return 1
	}
	spread := math.Sqrt(1 + information*scale*scale)
	u := difference * information * scale / spread
	// 2Φ(u) is Erfc(-u/√2). Without the bound the two factors would be 0 and infinite far below 0.
	return math.Erfc(-u/math.Sqrt2) * math.Exp(min(u*u/2, 700)) / spread
}

// Information is that in the difference of the means of m and n independent figures of
// the same standard deviation. It grows with each of them, and is less than either.
func Information(m, n float64) float64 {
	if !(m > 0) || !(n > 0) {
		return 0
	}
	return m * n / (m + n)
}

// Mean is the running mean of figures and what they vary by.
type Mean struct {
	N       int
	Mean    float64
	squares float64 // of the deviations from the mean
}

// Add takes in a figure.
func (m *Mean) Add(v float64) {
	m.N++
	from := v - m.Mean
	m.Mean += from / float64(m.N)
	m.squares += from * (v - m.Mean)
}

// Join takes in the figures of another.
func (m *Mean) Join(o *Mean) {
	if o.N == 0 {
		return
	}
	n := float64(m.N + o.N)
	from := o.Mean - m.Mean
	m.squares += o.squares + from*from*float64(m.N)*float64(o.N)/n
	m.Mean += from * float64(o.N) / n
	m.N += o.N
}

// Deviation is the standard deviation of one figure. A guess counts as that of so many
// figures, so that a few that happen to agree do not pass for certain.
func (m *Mean) Deviation(guess float64, weight int) float64 {
	return math.Sqrt((m.squares + float64(weight)*guess*guess) / float64(max(m.N-1, 0)+weight))
}
