package guarded

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/lab/stats"
)

// contrasts are those by which a covariate could be fitted without ten placebos: of each
// quadruplet that counts the later period alone over the earlier one, and those of the placebos.
func (a *ProtocolAnalysis) contrasts(p Protocol) (y []float64, x [][]float64) {
	for i := range a.Quadruplets {
		q := &a.Quadruplets[i]
		if q.Out != "" {
			continue
		}
		if c := laterAlone(q.of, p); c.Out == "" {
			y, x = append(y, c.pairs[0]), append(x, c.moved[0])
		}
		if q.Arm == Placebo {
			y, x = append(y, q.pairs[:]...), append(x, q.moved[:]...)
		}
	}
	return y, x
}

// laterAlone is a quadruplet whose first pair are its two periods alone, the later one over the earlier.
func laterAlone(q *Quadruplet, p Protocol) Quadruple {
	of, others := *q, []Period(nil)
	of.Periods = nil
	for i, period := range q.Periods {
		if q.second(i) {
			others = append(others, period)
		} else {
			of.Periods = append(of.Periods, period)
		}
	}
	of.Periods[1].Arm, others[0].Arm = Placebo, Alone
	of.Periods = append(of.Periods, others...)
	return quadruple(&of, p)
}

// explained is the share of the variance of contrasts that a covariate explains.
func explained(y []float64, x [][]float64, by float64) float64 {
	left, all := 0.0, 0.0
	for i := range y {
		rest := y[i] - by*x[i][0]
		left, all = left+rest*rest, all+y[i]*y[i]
	}
	return 1 - left/all
}

// byAlone is what a run's (a) would be if one of its covariates were fitted on the periods alone.
func (a *ProtocolAnalysis) byAlone(y []float64, x [][]float64, covariate string) string {
	guarded := func(q *Quadruple) bool { return q.Arm == Guarded }
	before := stats.Ratios(a.ratios(guarded, unadjusted)).Unrejected(a.Chance)
	if a.adjustBy(y, x, []string{covariate}); a.Coefficients == nil {
		return "it does not vary"
	}
	after := stats.Ratios(a.ratios(guarded, adjusted)).Unrejected(a.Chance)
	width := func(i stats.Interval) float64 { return math.Log(i.High / i.Low) }
	return fmt.Sprintf("%s | %d | %.0f %% | %.2f [%.2f, %.2f] | %.2f [%.2f, %.2f] | %+.0f %%", covariate, len(y), 100*explained(y, x, a.Coefficients[0]),
		before.Estimate, before.Low, before.High, after.Estimate, after.Low, after.High, math.Round(100*(width(after)/width(before)-1))+0)
}

// What a covariate would have done to runs 2 to 4 if the periods alone, in which nobody acted, said
// what it does.
func TestCovariatesByAlone(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("four stored runs are analysed")
	}
	var rows []string
	for run := 2; run <= 5; run++ {
		r, err := readProtocolFile(fmt.Sprintf("../../docs/measurements/results/guard-protocol-%d.json.gz", run))
		if err != nil {
			t.Fatal(err)
		}
		r.Experiment.Covariates = covariates()
		a := AnalyseProtocol(r)
		y, all := a.contrasts(r.Experiment)
		column := func(of []float64, k int) []float64 { return []float64{of[k]} }
		for k, covariate := range covariates() {
			var x [][]float64
			for _, moved := range all {
				x = append(x, column(moved, k))
			}
			of := *a
			of.Quadruplets = slices.Clone(a.Quadruplets)
			for i := range of.Quadruplets {
				for pair := range 2 {
					if q := &of.Quadruplets[i]; q.moved[pair] != nil {
						q.moved[pair] = column(q.moved[pair], k)
					}
				}
			}
			rows = append(rows, fmt.Sprintf("| %d | %s |", run, of.byAlone(y, x, covariate)))
		}
	}
	onPage(t, rows)
}

// How often the interval has the truth, and how much wider it is, if a covariate that explains so much
// of the variance is fitted on 24 pairs of periods alone.
func TestCovariateSimulated(t *testing.T) {
	t.Parallel()
	var rows []string
	for _, share := range []float64{0, 0.1, 0.5} {
		covers, width := [2]int{}, 0.0
		const runs = 400
		for seed := range uint64(runs) {
			r := rand.New(rand.NewPCG(seed, 5))
			a := &ProtocolAnalysis{}
			var y []float64
			var x [][]float64
			for n := range 24 {
				var logs, moved [4]float64
				for i := range logs {
					moved[i] = r.NormFloat64()
					logs[i] = 0.3 * (math.Sqrt(share)*moved[i] + math.Sqrt(1-share)*r.NormFloat64())
				}
				y, x = append(y, logs[3]-logs[0]), append(x, []float64{moved[3] - moved[0]})
				q := Quadruple{Arm: NoGuard, pairs: [2]float64{logs[1] - logs[0], logs[2] - logs[3]}, moved: [2][]float64{{moved[1] - moved[0]}, {moved[2] - moved[3]}}}
				if n%2 == 0 {
					q.Arm = Guarded
				}
				a.Quadruplets = append(a.Quadruplets, q)
			}
			arm := func(q *Quadruple) bool { return q.Arm == Guarded }
			before := stats.Ratios(a.ratios(arm, unadjusted)).Interval(0.95)
			a.adjustBy(y, x, []string{Offered})
			after := stats.Ratios(a.ratios(arm, adjusted)).Interval(0.95)
			for k, i := range []stats.Interval{before, after} {
				if i.Low <= 1 && i.High >= 1 {
					covers[k]++
				}
			}
			width += (math.Log(after.High/after.Low)/math.Log(before.High/before.Low) - 1) / runs
		}
		rows = append(rows, fmt.Sprintf("| %.0f %% | %.1f %% | %.1f %% | %+.0f %% |", 100*share, 100*float64(covers[0])/runs, 100*float64(covers[1])/runs, 100*width))
	}
	onPage(t, rows)
}

// onPage looks for rows of a table in docs/measurements/guard-covariates.md.
func onPage(t *testing.T, rows []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/measurements/guard-covariates.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if !strings.Contains(string(text), row+"\n") {
			t.Errorf("the page lacks %s", row)
		}
	}
}
