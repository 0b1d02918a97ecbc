package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// The shares of all figures are those of their comparisons together, and the first has most.
func TestAmong(t *testing.T) {
	t.Parallel()
	for figures := 1; figures <= 5; figures++ {
		sum := 32 / Among(32, figures, true)
		for range figures - 1 {
			sum += 32 / Among(32, figures, false)
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%d figures have %g of a comparison", figures, sum)
		}
	}
	// So many blocks that all agree, with so many references, decide one of so many; one block less does not.
	for _, tc := range []struct {
		among              float64
		references, blocks int
	}{
		{Among(32, 4, true), 1, 11}, {Among(32, 4, true), 2, 7}, {Among(32, 4, false), 1, 14}, {128, 1, 13}, {128, 2, 8}, {1, 1, 6},
	} {
		for less := range 2 {
			j := Ratios(noisy(1, tc.blocks-less, tc.references, 30, 0.1)).Judge(tc.among)
			if want := []Verdict{Worse, Inconclusive}[less]; j.Verdict != want || less == 1 && j.MoreBlocks != 1 {
				t.Errorf("one of %g, %d blocks: %s (%s), %d more", tc.among, tc.blocks-less, j.Verdict, j.Why, j.MoreBlocks)
			}
		}
	}
}

// TestLeadingFigure: where one of four figures leads, a run finds more of what people decide by, and less of the others, but
// not much: they vary less. Its rows are a table of docs/measurements/statistics.md.
func TestLeadingFigure(t *testing.T) {
	t.Parallel()
	runs, lengths := 50, []int{12, 25}
	if fullSimulation() {
		runs, lengths = 300, []int{12, 18, 25, 50}
	}
	names := []string{"p50", "p95", "p99", "rate"}
	spread, times := []float64{0.1, 0.25, 0.4, 0.05}, []float64{1.2, 1.4, 1.6, 1.2}
	for _, blocks := range lengths {
		for _, comparisons := range []int{4, 16, 40} {
			var found [2][4]int // by whether one leads
			for seed := range uint64(runs) {
				r := rand.New(rand.NewPCG(seed, 12))
				var samples []Sample
				for block := range blocks {
					for _, cell := range []string{"alone", "again", "bad"} {
						values := map[string]float64{}
						for i, name := range names {
							values[name] = math.Exp(spread[i] * r.NormFloat64())
							if cell == "bad" {
								values[name] *= times[i]
							}
						}
						samples = append(samples, Sample{Cell: cell, Block: block, Figures: values})
					}
				}
				family := make([]Versus, comparisons) // the others have no samples
				family[0] = Versus{Cell: "bad", Against: "alone", References: []string{"alone", "again"}}
				for lead := range found {
					var figures []Figure
					for _, name := range names {
						figures = append(figures, Figure{Name: name, Leads: lead == 1 && name == "p99"})
					}
					for i, name := range names {
						if c, _ := Of(Compare(samples, figures, family), "bad", "alone", name); c.Verdict == Worse {
							found[lead][i]++
						}
					}
				}
			}
			row := ""
			for i := range names {
				row += fmt.Sprintf(" %.0f, %.0f |", 100*float64(found[0][i])/float64(runs), 100*float64(found[1][i])/float64(runs))
				if less := found[0][i] - found[1][i]; i == 2 && less > 0 || less > runs/5 {
					t.Errorf("%d blocks, %d comparisons: %s is found %d times, and %d where p99 leads", blocks, comparisons, names[i], found[0][i], found[1][i])
				}
			}
			t.Logf("| %d | %d |%s", blocks, comparisons, row)
		}
	}
}
