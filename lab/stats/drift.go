package stats

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// DriftKind is what a series of readings of something constant comes to.
type DriftKind string

// The kinds of drift.
const (
	Steady    DriftKind = "steady"
	Shifted   DriftKind = "shifted"   // one level before Index, another from there on
	Switching DriftKind = "switching" // back and forth between two levels
)

// Drift is what happened to a control probe during a run.
type Drift struct {
	Kind DriftKind
	// Index is the first reading at the new level (Shifted) or the first that is
	// at the other level than the one before (Switching).
	Index int
	// From and To are the median levels before and from Index (Shifted), or the
	// lower and the upper level (Switching), in the unit of the series.
	From, To float64
	// Serious: by more than 10 %, where 5 % is worth a warning.
	Serious bool
}

// Change is To relative to From: 0.15 is 15 % more.
func (d Drift) Change() float64 {
	if d.From == 0 {
		return 0
	}
	return d.To/d.From - 1
}

// String is a clause with the levels to three digits, without their unit.
func (d Drift) String() string {
	switch d.Kind {
	case Shifted:
		return fmt.Sprintf("went from %.3g to %.3g (%+.0f %%) at reading %d", d.From, d.To, 100*d.Change(), d.Index+1)
	case Switching:
		return fmt.Sprintf("switched between %.3g and %.3g", d.From, d.To)
	}
	return "steady"
}

// The limits of Drift's decisions.
const (
	minReadings  = 8    // fewer say nothing
	driftWarn    = 0.05 // relative change worth a warning
	driftSerious = 0.10
	driftLevel   = 0.01 // of the permutation test
	driftPerms   = 999
)

// FindDrift looks for a change in a series of positive readings taken in order,
// one between each two rounds. It is false where the series is too short to
// tell (fewer than 8 readings) or has a reading that is not positive.
//
// Two levels with nothing in between, visited alternately, are Switching (a fifth
// of the readings at either, or a tenth where no change of level is found).
// Otherwise the place is sought where the ranks before and after differ most;
// how much they would by chance is found by permuting the series (level 1 %).
// Ranks and medians make single outliers harmless. A gradual change is found as
// a Shifted one. A change of less than 5 % is Steady however certain.
func FindDrift(series []float64) (Drift, bool) {
	if len(series) < minReadings {
		return Drift{}, false
	}
	for _, x := range series {
		if !(x > 0) || math.IsInf(x, 1) {
			return Drift{}, false
		}
	}
	if d, ok := switching(series, 0.2); ok {
		return d, true
	}
	if d, ok := shifted(series); ok {
		return d, true
	}
	if d, ok := switching(series, 0.1); ok {
		return d, true
	}
	level := Median(series)
	return Drift{Kind: Steady, From: level, To: level}, true
}

// switching finds two levels that the series goes between more than once, with
// at least the given share of the readings at either.
func switching(series []float64, share float64) (Drift, bool) {
	sorted := slices.Clone(series)
	slices.Sort(sorted)
	cut, ok := gap(sorted, max(3, int(math.Ceil(share*float64(len(sorted))))))
	if !ok {
		return Drift{}, false
	}
	d := Drift{Kind: Switching, From: Median(sorted[:cut]), To: Median(sorted[cut:])}
	d.Serious = d.Change() > driftSerious
	changes := 0
	for i := 1; i < len(series); i++ {
		if (series[i] < sorted[cut]) != (series[i-1] < sorted[cut]) {
			if changes++; changes == 1 {
				d.Index = i
			}
		}
	}
	return d, changes > 1 && d.Change() > driftWarn
}

// gap finds where sorted falls into two clusters: the widest gap on the log
// scale that leaves the least number of readings on either side. It counts as
// one if it is at least half the distance of the two medians.
func gap(sorted []float64, least int) (cut int, ok bool) {
	widest := 0.0
	for i := least; i <= len(sorted)-least; i++ {
		if w := math.Log(sorted[i] / sorted[i-1]); w > widest {
			cut, widest = i, w
		}
	}
	if widest == 0 {
		return 0, false
	}
	distance := math.Log(Median(sorted[cut:]) / Median(sorted[:cut]))
	return cut, widest >= distance/2
}

// shifted finds the one change of level that the ranks show best.
func shifted(series []float64) (Drift, bool) {
	r := ranks(series)
	index, strength := split(r)
	d := Drift{Kind: Shifted, Index: index, From: Median(series[:index]), To: Median(series[index:])}
	change := math.Abs(d.Change())
	if change <= driftWarn {
		return Drift{}, false
	}
	d.Serious = change > driftSerious
	random := rand.New(rand.NewPCG(1, 0x6265727468))
	asStrong := 1 // the series itself
	for range driftPerms {
		random.Shuffle(len(r), func(i, j int) { r[i], r[j] = r[j], r[i] })
		if _, s := split(r); s >= strength {
			asStrong++
		}
	}
	return d, float64(asStrong) <= driftLevel*(driftPerms+1)
}

// split is the index where the ranks before and from it differ most, and how
// much: the rank-sum statistic in its standard deviations. Each side has at
// least three readings.
func split(ranks []float64) (index int, strength float64) {
	n := float64(len(ranks))
	sum := 0.0
	for i, r := range ranks[:len(ranks)-3] {
		sum += r
		if k := float64(i + 1); k >= 3 {
			z := math.Abs(sum-k*(n+1)/2) / math.Sqrt(k*(n-k)*(n+1)/12)
			if z > strength {
				index, strength = i+1, z
			}
		}
	}
	return max(index, 3), strength
}

// ranks are 1 to n by size; equal values share the mean of theirs.
func ranks(series []float64) []float64 {
	order := make([]int, len(series))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(series[a], series[b]) })
	out := make([]float64, len(series))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && series[order[j]] == series[order[i]] {
			j++
		}
		for _, o := range order[i:j] {
			out[o] = float64(i+j+1) / 2
		}
		i = j
	}
	return out
}

// Median is that of a series that is not empty.
func Median(series []float64) float64 {
	s := slices.Clone(series)
	slices.Sort(s)
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}
