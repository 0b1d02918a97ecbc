package stats

// firstShare is what the figure by which people decide has of its comparison's chance of a false verdict.
const firstShare = 0.7

// Among is for Judge: as one of how many a figure counts, of so many comparisons by so many figures each. The first has 0.7
// of its comparison, the others have the rest evenly. What a decided figure had is not handed on: a figure has two
// hypotheses, no difference and the margin or more, and to reject one says nothing of the other.
func Among(comparisons, figures int, first bool) float64 {
	share := (1 - firstShare) / float64(figures-1)
	switch {
	case figures == 1:
		share = 1
	case first:
		share = firstShare
	}
	return float64(comparisons) / share
}
