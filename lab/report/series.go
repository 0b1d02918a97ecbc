package report

import (
	"cmp"
	"slices"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// round is one round as it is drawn.
type round struct {
	lab.Decoded
	// Merged over the round, in microseconds by quantile (see roundQuantiles);
	// nil where nothing was recorded.
	response, service, queue, lag []float64
}

// roundQuantiles are the percentiles given per round.
var roundQuantiles = []float64{50, 90, 95, 99, 99.9, 100}

// roundsOf are the rounds of a result in the order run.
func roundsOf(m *lab.Measured) []round {
	var rounds []round
	for _, d := range m.Decoded {
		rounds = append(rounds, round{d, quantilesOf(d.Response), quantilesOf(d.Service), quantilesOf(d.Queue), quantilesOf(d.Lag)})
	}
	slices.SortStableFunc(rounds, func(a, b round) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Block, b.Block), cmp.Compare(a.Position, b.Position))
	})
	return rounds
}

func quantilesOf(r stats.Round) []float64 {
	all := stats.Merge(r.Seconds...)
	if all.Requests() == 0 {
		return nil
	}
	out := make([]float64, len(roundQuantiles))
	for i, p := range roundQuantiles {
		out[i], _ = all.Quantile(p)
	}
	return out
}

// at is one of a round's quantiles; ok is false where nothing was recorded or p
// is not among roundQuantiles.
func at(quantiles []float64, p float64) (us float64, ok bool) {
	i := slices.Index(roundQuantiles, p)
	if i < 0 || quantiles == nil {
		return 0, false
	}
	return quantiles[i], true
}
