package replay

import (
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

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
	var differences []float64
	for i := range base {
		if d := other[i] - base[i]; !math.IsNaN(d) {
			differences = append(differences, d)
		}
	}
	p := Paired{Pairs: len(differences), Half: math.NaN()}
	if p.Pairs > 0 {
		mean, deviation := stat.MeanStdDev(differences, nil)
		p.Mean = mean
		if n := float64(p.Pairs); n > 1 {
			p.Half = distuv.StudentsT{Sigma: 1, Nu: n - 1}.Quantile(0.975) * stat.StdErr(deviation, n)
		}
	}
	return p
}
