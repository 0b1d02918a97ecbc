package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/stats"
)

// series is a result's rounds with their histograms decoded, as plots and
// tables need them.
type series struct {
	rounds []round // in the order run
	// byScenario holds the valid rounds for statistics, byBlock the same by
	// block, and merged their responses in one histogram.
	byScenario map[string][]stats.Round
	byBlock    map[string]map[int]stats.Round
	merged     map[string]*hdrhistogram.Histogram
}

// round is one round as it is drawn.
type round struct {
	*lab.Round
	seconds []stats.Distribution // of response time
	// Merged over the round, in microseconds by quantile (see roundQuantiles);
	// nil where nothing was recorded.
	response, service, queue, lag []float64
	// excluded says why the round does not count; "" for one that does.
	excluded string
}

// roundQuantiles are the percentiles given per round.
var roundQuantiles = []float64{50, 90, 95, 99, 99.9, 100}

func newSeries(r *lab.Result) (*series, error) {
	s := &series{byScenario: map[string][]stats.Round{}, byBlock: map[string]map[int]stats.Round{}, merged: map[string]*hdrhistogram.Histogram{}}
	excluded, err := lab.Exclusions(r)
	if err != nil {
		return nil, err
	}
	order := make([]int, len(r.Rounds))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := &r.Rounds[i], &r.Rounds[j]
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Block, b.Block), cmp.Compare(a.Position, b.Position))
	})
	for _, i := range order {
		stored := &r.Rounds[i]
		if err := s.add(stored, excluded[i]); err != nil {
			return nil, fmt.Errorf("read round %d of block %d (%s): %w", stored.Position, stored.Block, stored.Scenario, err)
		}
	}
	return s, nil
}

// add decodes one round, which is excluded for the reason given, if any. Only what is drawn is kept: a histogram takes 140 KiB
// and a long run has tens of thousands of them.
func (s *series) add(stored *lab.Round, excluded string) error {
	v := round{Round: stored, excluded: excluded}
	all := stats.NewHistogram()
	for i, sec := range stored.Load.Seconds {
		h, err := decode(sec.Response)
		if err != nil {
			return fmt.Errorf("response of second %d: %w", i+1, err)
		}
		if h != nil {
			all.Merge(h)
		}
		v.seconds = append(v.seconds, stats.Compact(h))
	}
	v.response = quantilesOf(all)
	for _, part := range []struct {
		name string
		text func(load.Second) string
		into *[]float64
	}{
		{"service", func(sec load.Second) string { return sec.Service }, &v.service},
		{"queue", func(sec load.Second) string { return sec.Queue }, &v.queue},
		{"lag", func(sec load.Second) string { return sec.Lag }, &v.lag},
	} {
		h := stats.NewHistogram()
		for i, sec := range stored.Load.Seconds {
			one, err := decode(part.text(sec))
			if err != nil {
				return fmt.Errorf("%s of second %d: %w", part.name, i+1, err)
			}
			if one != nil {
				h.Merge(one)
			}
		}
		*part.into = quantilesOf(h)
	}
	if excluded == "" {
		counted := stats.Round{Seconds: v.seconds}
		s.byScenario[stored.Scenario] = append(s.byScenario[stored.Scenario], counted)
		if s.merged[stored.Scenario] == nil {
			s.merged[stored.Scenario] = stats.NewHistogram()
			s.byBlock[stored.Scenario] = map[int]stats.Round{}
		}
		s.byBlock[stored.Scenario][stored.Block] = counted
		s.merged[stored.Scenario].Merge(all)
	}
	s.rounds = append(s.rounds, v)
	return nil
}

// ratio is a percentile of a scenario relative to the baseline's, over the
// blocks in which both count.
func (s *series) ratio(scenario string, p float64) stats.Interval {
	var base, other []stats.Round
	for _, block := range slices.Sorted(maps.Keys(s.byBlock[scenario])) {
		if alone, ok := s.byBlock[lab.Baseline][block]; ok {
			base, other = append(base, alone), append(other, s.byBlock[scenario][block])
		}
	}
	return stats.Ratio(base, other, p, stats.Options{})
}

// decode reads a stored histogram; an empty text is none.
func decode(text string) (*hdrhistogram.Histogram, error) {
	if text == "" {
		return nil, nil
	}
	return stats.Decode(text)
}

func quantilesOf(h *hdrhistogram.Histogram) []float64 {
	if h.TotalCount() == 0 {
		return nil
	}
	out := make([]float64, len(roundQuantiles))
	for i, p := range roundQuantiles {
		out[i] = float64(h.ValueAtPercentile(p))
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
