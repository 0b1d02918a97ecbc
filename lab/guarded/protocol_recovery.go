package guarded

import (
	"math/rand/v2"
	"slices"
)

// Recoveries is the pooled p99 of an arm's onsets by the time since, over a band of placebos.
type Recoveries struct {
	Arm    string  `json:"arm"`
	Fault  string  `json:"fault"`
	Demand float64 `json:"demand"`
	Onsets int     `json:"onsets"`
	// Curve is the p99 in microseconds of the requests due within half a second from each
	// instant, 50 ms apart; Low and High are the band: between them lie 95 of 100 sets of half
	// seconds of as many placebos. 0 without placebos.
	Curve []float64 `json:"curve"`
	Low   float64   `json:"low"`
	High  float64   `json:"high"`
	// Harmed says whether the curve was above the band, Recovered from when on, in seconds, it
	// was not above it for half a second; nil is not within the period.
	Harmed    bool     `json:"harmed"`
	Recovered *float64 `json:"recovered,omitempty"`
}

// recover pools the onsets of each row. A placebo onset is the start of a period of a placebo.
func (a *ProtocolAnalysis) recover(r *ProtocolResult) {
	placebos, onsets := map[float64][]curve{}, map[rowKey][]curve{}
	for _, q := range a.Quadruplets {
		for n, p := range q.of.Periods {
			switch key := q.of.row(); {
			case q.invalid:
			case q.Arm == Placebo && !q.queued:
				placebos[key.demand] = append(placebos[key.demand], q.of.from(p))
			case q.Arm != Placebo && q.of.second(n):
				onsets[key] = append(onsets[key], q.of.from(p))
			}
		}
	}
	for _, row := range a.Arms {
		all := onsets[row.key()]
		rec := Recoveries{Arm: row.Arm, Fault: row.Fault, Demand: row.Demand, Onsets: len(all), Curve: halves(all)}
		if pool := placebos[row.Demand]; len(pool) > 0 && len(all) > 0 {
			rec.Low, rec.High = band(pool, len(all), r.Experiment.Seed)
			rec.judge()
		}
		a.Recoveries = append(a.Recoveries, rec)
	}
}

// from is the requests of a period from its start, or the onset.
func (q *Quadruplet) from(p Period) curve {
	first, last := bins(max(p.Onset, p.From), p.To, len(q.Bins))
	return curve{bins: q.Bins[first:last]}
}

// halves is the p99 of all requests within half a second from each bin on.
func halves(all []curve) (out []float64) {
	pool := merge(all)
	for i := 0; i+ahead <= len(pool.bins); i++ {
		out = append(out, pool.p99(i, i+ahead))
	}
	return out
}

// placeboSets is how many sets of placebo onsets a band is of.
const placeboSets = 1000

// band is where the p99 of half a second of n placebos lies in 95 of 100 sets. Nothing begins in a
// placebo, so that any of its half seconds stands for any.
func band(placebos []curve, n int, seed uint64) (low, high float64) {
	random := rand.New(rand.NewPCG(seed, placeboSets))
	var seen []float64
	for range placeboSets {
		var set []int64
		for range n {
			c := placebos[random.IntN(len(placebos))]
			if last := len(c.bins) - ahead; last >= 0 {
				at := random.IntN(last + 1)
				for _, b := range c.bins[at : at+ahead] {
					set = append(set, b.Response...)
				}
			}
		}
		if v := p99(set); v > 0 {
			seen = append(seen, v)
		}
	}
	if len(seen) == 0 {
		return 0, 0
	}
	slices.Sort(seen)
	return seen[len(seen)*25/1000], seen[len(seen)*975/1000]
}

// judge says when the curve came back into the band, to stay for half a second.
func (rec *Recoveries) judge() {
	within := 0
	for i, v := range rec.Curve {
		if v > rec.High {
			rec.Harmed, within = true, 0
			continue
		}
		if within++; rec.Harmed && within == ahead && rec.Recovered == nil {
			at := float64(i+1-ahead) * binLength.Seconds()
			rec.Recovered = &at
		}
	}
}
