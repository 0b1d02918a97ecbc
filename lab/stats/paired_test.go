package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// against are blocks of a figure and of so many references, all 1.
func against(references int, figures ...float64) [][]float64 {
	var blocks [][]float64
	for _, f := range figures {
		blocks = append(blocks, append([]float64{f}, slices.Repeat([]float64{1}, references)...))
	}
	return blocks
}

// noisy are n blocks of a figure that is times as long as its references; all vary by a log-normal factor.
func noisy(seed uint64, n, references int, times, spread float64) [][]float64 {
	r := rand.New(rand.NewPCG(seed, 2))
	var blocks [][]float64
	for range n {
		block := []float64{times * math.Exp(spread*r.NormFloat64())}
		for range references {
			block = append(block, math.Exp(spread*r.NormFloat64()))
		}
		blocks = append(blocks, block)
	}
	return blocks
}

// TestEstimate: the estimate is the median of the means of differences of two blocks, found by trying them all.
func TestEstimate(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		blocks := noisy(seed, 2+int(seed%9), 1+int(seed%2), 1.7, 0.4)
		p := Ratios(blocks)
		var means []float64
		for i, x := range p.own {
			for j, y := range p.own {
				for _, a := range x {
					for _, b := range y {
						if i != j {
							means = append(means, (a+b)/2)
						}
					}
				}
			}
		}
		slices.Sort(means)
		n := len(means)
		want := math.Exp((means[(n-1)/2] + means[n/2]) / 2)
		if got := p.Interval(0.95).Estimate; math.Abs(got/want-1) > 1e-6 {
			t.Errorf("seed %d: estimate %g, want %g", seed, got, want)
		}
		u, se := p.statistic(0.1)
		wantU := 0.0
		for _, m := range means {
			wantU += sign(m-0.1) / float64(n)
		}
		if math.Abs(u-wantU) > 1e-9 || len(blocks) > 2 && !(se >= 0 && se < 3) {
			t.Errorf("seed %d: U %g ± %g, want %g", seed, u, se, wantU)
		}
	}
}

// TestJackknife: the standard error is that of leaving out one block at a time.
func TestJackknife(t *testing.T) {
	t.Parallel()
	blocks := noisy(3, 9, 2, 1.2, 0.5)
	_, got := Ratios(blocks).statistic(0.05)
	var without []float64
	mean := 0.0
	for i := range blocks {
		u, _ := Ratios(slices.Concat(blocks[:i:i], blocks[i+1:])).statistic(0.05)
		without = append(without, u)
		mean += u / float64(len(blocks))
	}
	squares := 0.0
	for _, u := range without {
		squares += (u - mean) * (u - mean)
	}
	n := float64(len(blocks))
	if want := math.Sqrt(squares * (n - 1) / n); math.Abs(got-want) > 1e-9 {
		t.Errorf("standard error %g, want %g", got, want)
	}
}

// TestExchangeOracle holds the chances against all exchanges of the values within blocks, ranked anew each time.
func TestExchangeOracle(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		blocks := make([][]float64, 2+r.IntN(5))
		for b := range blocks {
			blocks[b] = []float64{r.NormFloat64() + 1, r.NormFloat64(), float64(r.IntN(2))}[:2+r.IntN(2)]
		}
		sum := func() (sum float64) {
			for _, row := range Differences(blocks).ranks() {
				sum += row[0]
			}
			return sum
		}
		above, below := Differences(blocks).exchange()
		var atLeast, atMost, all float64
		was := sum()
		var exchange func(b int, weight float64)
		exchange = func(b int, weight float64) {
			if b == len(blocks) {
				all += weight
				now := sum()
				if now >= was {
					atLeast += weight
				}
				if now <= was {
					atMost += weight
				}
				return
			}
			row := blocks[b]
			for i := range row {
				row[0], row[i] = row[i], row[0]
				exchange(b+1, weight/float64(len(row)))
				row[0], row[i] = row[i], row[0]
			}
		}
		exchange(0, 1)
		if math.Abs(all-1) > 1e-9 || math.Abs(above-atLeast) > 1e-9 || math.Abs(below-atMost) > 1e-9 {
			t.Fatalf("chances of %v = %g and %g, want %g and %g", blocks, above, below, atLeast, atMost)
		}
	}
}

// TestExchangeNormal: where all exchanges are no longer counted, the chances hardly change.
func TestExchangeNormal(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		p := Ratios(noisy(seed, exactBlocks+1, 2, 1.2, 1))
		ranks, sum := p.ranks(), 0.0
		for _, row := range ranks {
			sum += row[0]
		}
		got, _ := p.exchange()
		if want, _ := exchanges(ranks, sum); math.Abs(got-want) > 0.02 {
			t.Errorf("chance = %g, want %g", got, want)
		}
	}
}

func TestInterval(t *testing.T) {
	t.Parallel()
	// Blocks that are not a ratio are left out, and one in eight is far off.
	odd := against(2, 2, 2.2, 1.8, 2.1, 1.9, 2.05, 1.95, 2.15, 1.85, 400, 0, math.NaN(), math.Inf(1))
	odd = append(odd, []float64{3})
	p := Ratios(odd)
	if got := p.Interval(0.95); got.Rounds != 10 || got.Low < 1.7 || got.Estimate < 1.9 || got.Estimate > 2.3 || got.High < 2.1 || got.High > 50 {
		t.Errorf("interval %+v", got)
	}
	if n := p.Higher(); n != 10 {
		t.Errorf("higher in %d blocks, want 10", n)
	}
	if got := Ratios(against(1, 1, 1, 1)); got.P() != 1 || got.Interval(0.95).Known() {
		t.Errorf("alike: p = %g, %+v", got.P(), got.Interval(0.95))
	}
	for n := range 13 {
		got := Ratios(noisy(uint64(n), n, 1, 2, 0.1)).Interval(0.95)
		if known := got.Known(); known && n < 8 || !known && n > 9 || got.Rounds != n {
			t.Errorf("%d blocks: %+v", n, got)
		}
	}
	if got := Ratios(noisy(7, 25, 1, 2, 0.1)).Interval(0.99); !(got.Low > 1.8 && got.High < 2.2 && got.Confidence == 0.99) {
		t.Errorf("of 25 blocks: %+v", got)
	}
	shares := Differences([][]float64{{0.02, 0.01}, {0.03, 0.01, 0.02}, {0.03, 0.01}, {0, 0}, {0.02, 0}, {0.05, 0.01}, {0.02, 0.01}, {0.03, 0}, {0.02, 0}})
	if got := shares.Interval(0.95); got.Low < 0 || got.Estimate < 0.01 || got.Estimate > 0.03 || got.High > 0.05 {
		t.Errorf("shares: %+v", got)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		blocks      [][]float64
		comparisons float64
		want        Verdict
		why         string // a part of it
		more        [2]int // blocks, at least and at most
	}{
		{"clear", noisy(1, 25, 2, 1.5, 0.1), 64, Worse, "times at least", [2]int{}},
		{"better", noisy(1, 25, 1, 0.5, 0.1), 64, Better, "times at most", [2]int{}},
		{"alike", noisy(1, 25, 2, 1, 0.02), 64, Equivalent, "less than 10 %", [2]int{}},
		{"slower, but alike", noisy(1, 25, 2, 1.04, 0.01), 64, Equivalent, "less than 10 %", [2]int{}},
		{"on the margin", noisy(1, 25, 2, 1.08, 0.03), 64, Inconclusive, "maybe by less than 10 %", [2]int{}},
		{"too noisy", noisy(2, 25, 2, 1.3, 0.5), 64, Inconclusive, "not beyond chance", [2]int{5, 400}},
		{"hopeless", noisy(2, 25, 2, 1.2, 30), 64, Inconclusive, "not beyond chance", [2]int{}},
		{"six blocks cannot", noisy(1, 6, 2, 30, 0.1), 64, Inconclusive, "6 blocks cannot decide one of 64", [2]int{2, 2}},
		{"six blocks, one comparison", noisy(1, 6, 2, 30, 0.1), 1, Worse, "at least", [2]int{}},
		{"half of the blocks fail", noisy(4, 25, 2, 1, 3), 64, Inconclusive, "not beyond chance", [2]int{}},
		{"none", nil, 64, Invalid, "no block", [2]int{}},
	} {
		j := Ratios(tc.blocks).Judge(tc.comparisons)
		if j.Verdict != tc.want || !strings.Contains(j.Why, tc.why) || j.MoreBlocks < tc.more[0] || j.MoreBlocks > tc.more[1] && tc.more[1] > 0 {
			t.Errorf("%s: %s because %q, %d more blocks; want %s because %q (%+v)", tc.name, j.Verdict, j.Why, j.MoreBlocks, tc.want, tc.why, j)
		}
		if j.MoreBlocks != 0 && j.Verdict != Inconclusive {
			t.Errorf("%s: %s asks for %d more blocks", tc.name, j.Verdict, j.MoreBlocks)
		}
	}
	few := slices.Repeat([][]float64{{0.02, 0.01, 0.01}, {0.03, 0.01, 0.012}}, 13)
	if j := Differences(few).Judge(64); j.Verdict != Worse || !strings.Contains(j.Why, "points at least") {
		t.Errorf("shares: %+v", j)
	}
}

// TestBlocksFor: with the blocks that it says, the ratio is found in four of five runs.
func TestBlocksFor(t *testing.T) {
	t.Parallel()
	const ratio, spread, comparisons = 1.3, 0.4, 64
	n := Ratios(noisy(1, 25, 2, 1, spread)).Judge(comparisons).BlocksFor(ratio)
	found := 0
	for seed := range uint64(200) {
		if Ratios(noisy(seed, n, 2, ratio, spread)).Judge(comparisons).Verdict == Worse {
			found++
		}
	}
	if found < 120 || found > 198 {
		t.Errorf("%d blocks find %g in %d of 200 runs, want about 160", n, ratio, found)
	}
	if got := (Judgement{}).BlocksFor(1.5); got != 0 {
		t.Errorf("nothing known: %d blocks", got)
	}
}

// BenchmarkJudge is one comparison of a run of two minutes.
func BenchmarkJudge(b *testing.B) {
	blocks := noisy(1, 25, 2, 1.5, 0.3)
	b.ReportAllocs()
	for b.Loop() {
		Ratios(blocks).Judge(64)
	}
}

// TestWidths makes the table of how wide an interval is, by the blocks that count (docs/measurements/statistics-time.md):
// figures that vary from round to round as those of weighted and alone do, two rounds alone in each block.
func TestWidths(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("simulation in short mode")
	}
	const runs, own, alone = 2000, 0.54, 0.31
	table := ""
	for _, n := range []int{14, 28, 42, 45, 48} {
		r := rand.New(rand.NewPCG(11, uint64(n)))
		var widths []float64
		var sum, squares, covered float64
		for range runs {
			var blocks [][]float64
			for range n {
				blocks = append(blocks, []float64{math.Exp(own * r.NormFloat64()), math.Exp(alone * r.NormFloat64()), math.Exp(alone * r.NormFloat64())})
			}
			i := Ratios(blocks).Interval(confidence)
			effect := math.Log(i.Estimate)
			sum, squares, widths = sum+effect, squares+effect*effect, append(widths, math.Sqrt(i.High/i.Low))
			if i.Low <= 1 && 1 <= i.High {
				covered++
			}
		}
		table += fmt.Sprintf("| %d | ×/÷ %.2f | ×/÷ %.2f | %.1f %% |\n", n, Median(widths), math.Exp(1.96*math.Sqrt((squares-sum*sum/runs)/(runs-1))), 100*covered/runs)
	}
	page, err := os.ReadFile("../../docs/measurements/statistics-time.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table) {
		t.Errorf("statistics-time.md lacks:\n%s", table)
	}
}
