package stats

import "math"

// Regress is the coefficients of y on the columns of x, by least squares through the origin; nil
// where x does not tell them: fewer rows than columns, or columns that depend on each other.
func Regress(y []float64, x [][]float64) []float64 {
	if len(x) == 0 || len(x) != len(y) {
		return nil
	}
	n := len(x[0])
	a := make([][]float64, n) // the normal equations, with their right side
	for i := range a {
		a[i] = make([]float64, n+1)
		for r, row := range x {
			for j := range n {
				a[i][j] += row[i] * row[j]
			}
			a[i][n] += row[i] * y[r]
		}
	}
	for i := range n {
		scale := 0.0
		for _, row := range x {
			scale += row[i] * row[i]
		}
		if a[i][i] <= 1e-9*scale || scale == 0 {
			return nil
		}
		for k := range n {
			if k == i {
				continue
			}
			f := a[k][i] / a[i][i]
			for j := i; j <= n; j++ {
				a[k][j] -= f * a[i][j]
			}
		}
	}
	coefficients := make([]float64, n)
	for i := range n {
		coefficients[i] = a[i][n] / a[i][i]
		if math.IsNaN(coefficients[i]) || math.IsInf(coefficients[i], 0) {
			return nil
		}
	}
	return coefficients
}
