package lab

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"berth.dev/berth/lab/stats"
)

// perRound are ways to say by one number how long the longest requests of a round (µs, ascending) took.
func perRound() map[string]func(took []float64) float64 {
	weighed := func(took []float64, weight func(upTo float64) float64) float64 {
		sum, before, n := 0.0, 0.0, float64(len(took))
		for i, us := range took {
			now := weight(float64(i+1) / n)
			sum += (now - before) * math.Log(max(us, 1))
			before = now
		}
		return math.Exp(sum)
	}
	top := func(share float64) func(took []float64) float64 {
		return func(took []float64) float64 {
			return weighed(took, func(upTo float64) float64 { return max(0, upTo-1+share) / share })
		}
	}
	return map[string]func(took []float64) float64{
		"p99": func(took []float64) float64 { return took[int(math.Ceil(0.99*float64(len(took))))-1] },
		"p95": func(took []float64) float64 { return took[int(math.Ceil(0.95*float64(len(took))))-1] },
		"p99 of Harrell and Davis": func(took []float64) float64 {
			n := float64(len(took) + 1)
			return weighed(took, distuv.Beta{Alpha: 0.99 * n, Beta: 0.01 * n}.CDF)
		},
		"geometric mean of the longest 2 %": top(0.02), "geometric mean of the longest 5 %": top(0.05),
	}
}

// width is the factor between the estimate and an end of the interval of a scenario against alone.
func width(blocks [][]float64) float64 {
	i := stats.Ratios(blocks).Interval(confidence)
	return math.Sqrt(i.High / i.Low)
}

// rows are a scenario's figures by block, each with those of the tenant alone.
func rows(figures map[string]map[int]float64, scenario string) (blocks [][]float64) {
	for block := range 100 {
		own, ok := figures[scenario][block]
		row := []float64{own}
		for _, reference := range alone() {
			if v, ok := figures[reference][block]; ok {
				row = append(row, v)
			}
		}
		if ok && len(row) > 1 {
			blocks = append(blocks, row)
		}
	}
	return blocks
}

// took are the response times of every round, ascending.
func (s samples) took() map[string]map[int][]float64 {
	all := map[string]map[int][]float64{}
	for scenario, rounds := range s.rounds {
		all[scenario] = map[int][]float64{}
		for block, d := range rounds {
			for _, b := range d.Histogram().Distribution() {
				all[scenario][block] = append(all[scenario][block], slices.Repeat([]float64{float64(b.To)}, int(b.Count))...)
			}
		}
	}
	return all
}

// each applies a figure to every round.
func each(took map[string]map[int][]float64, figure func(took []float64) float64) map[string]map[int]float64 {
	all := map[string]map[int]float64{}
	for scenario, rounds := range took {
		all[scenario] = map[int]float64{}
		for block, us := range rounds {
			all[scenario][block] = figure(us)
		}
	}
	return all
}

// slowness is how much more CPU time the generator took for a request than in the scenario's typical round, in the rounds
// before and after each: how slow the machine was, by what the scenario does not touch. It is the log of a factor.
func (m *Measured) slowness() map[string]map[int]float64 {
	cost := func(d Decoded) float64 { return math.Log(d.Load.CPUSeconds / float64(d.Load.Offered)) }
	by := map[string][]float64{}
	for _, d := range m.Decoded {
		by[d.Scenario] = append(by[d.Scenario], cost(d))
	}
	order := slices.SortedFunc(slices.Values(m.Decoded), func(a, b Decoded) int { return a.Started.Compare(b.Started) })
	all := map[string]map[int]float64{}
	for i, d := range order {
		if all[d.Scenario] == nil {
			all[d.Scenario] = map[int]float64{}
		}
		sum, n := 0.0, 0.0
		for _, k := range []int{i - 1, i + 1} {
			if k >= 0 && k < len(order) {
				sum, n = sum+cost(order[k])-stats.Median(by[order[k].Scenario]), n+1
			}
		}
		all[d.Scenario][d.Block] = sum / n
	}
	return all
}

// adjusted takes off the figures what a covariate, as the machine's slowness, makes of them, by the regression within all scenarios but
// unisolated, which is beyond help.
func adjusted(figures, covariate map[string]map[int]float64) map[string]map[int]float64 {
	center := func(of map[int]float64, f func(float64) float64) float64 {
		var all []float64
		for _, v := range of {
			all = append(all, f(v))
		}
		return stats.Median(all)
	}
	plain := func(v float64) float64 { return v }
	var product, square float64
	for _, scenario := range slices.Sorted(func(yield func(string) bool) {
		for s := range figures {
			if s != Unisolated && !yield(s) {
				return
			}
		}
	}) {
		y, x := center(figures[scenario], math.Log), center(covariate[scenario], plain)
		for block := range 100 {
			if v, ok := figures[scenario][block]; ok {
				dx := covariate[scenario][block] - x
				product, square = product+dx*min(max(math.Log(v)-y, -1.2), 1.2), square+dx*dx
			}
		}
	}
	all := map[string]map[int]float64{}
	for scenario, values := range figures {
		all[scenario] = map[int]float64{}
		for block, v := range values {
			all[scenario][block] = v * math.Exp(-product/square*covariate[scenario][block])
		}
	}
	return all
}

// played is what a look after so many blocks drops of a stored run, and how many blocks the rest of two minutes has room for.
func (m *Measured) played(t *testing.T, look int) (dropped []string, blocks int) {
	t.Helper()
	r := *m.Result
	r.Dropped, r.Rounds = nil, nil
	for _, round := range m.Rounds {
		if round.Block < look {
			r.Rounds = append(r.Rounds, round)
		}
	}
	r.Experiment.Look, r.Experiment.Blocks = look, look+1
	a, err := Analyse(&r)
	if err != nil {
		t.Fatal(err)
	}
	dropped = a.settled()
	return dropped, blocksIn(look, len(dropped))
}

// blocksIn is how many blocks two minutes have room for, if so many of the seven scenarios are dropped after a look.
func blocksIn(look, dropped int) int {
	const rest, all = 114.0, 7 // s, without calibration
	return look + int((rest-float64(look*all)*perRoundTime)/(float64(all-dropped)*perRoundTime))
}

// perRoundTime is about how long a round takes, with what lies between two, in s.
const perRoundTime = 0.65

// drawn is the half width, by the median of some draws, of so many blocks drawn from those that were measured. From one on
// they have one reference.
func drawn(random *rand.Rand, of [][]float64, blocks, single int) float64 {
	var widths []float64
	for range 15 {
		var again [][]float64
		for i := range blocks {
			row := of[random.IntN(len(of))]
			if i >= single {
				row = row[:2]
			}
			again = append(again, row)
		}
		widths = append(widths, width(again))
	}
	return stats.Median(widths)
}

// foreign is the share of the CPUs' time that others took, or the hypervisor, in each round.
func (m *Measured) foreign() map[string]map[int]float64 {
	all := map[string]map[int]float64{}
	for _, d := range m.Decoded {
		if all[d.Scenario] == nil {
			all[d.Scenario] = map[int]float64{}
		}
		all[d.Scenario][d.Block] = (d.Host.Foreign + d.Host.Steal) / (d.Seconds * float64(d.Host.SharedCPUs))
	}
	return all
}

// together are the response times of rounds of twice the length: of two blocks that follow each other.
func together(took map[string]map[int][]float64) map[string]map[int][]float64 {
	all := map[string]map[int][]float64{}
	for scenario, rounds := range took {
		all[scenario] = map[int][]float64{}
		for block, us := range rounds {
			if next, ok := rounds[block+1]; ok && block%2 == 0 {
				both := slices.Concat(us, next)
				slices.Sort(both)
				all[scenario][block/2] = both
			}
		}
	}
	return all
}

// promised is the half width that a design has: 1.96 standard deviations of the estimate, over draws of its blocks.
func promised(draw func() [][]float64) float64 {
	const draws = 48
	var sum, squares float64
	for range draws {
		effect := math.Log(stats.Ratios(draw()).Interval(1 - 1e-15).Estimate) // which takes no time for an interval
		sum, squares = sum+effect, squares+effect*effect
	}
	return math.Exp(1.96 * math.Sqrt((squares-sum*sum/draws)/(draws-1)))
}

// division is how the rounds after the look at 15 blocks are divided: how many of each block are of weighted, of idle, and of
// the tenant alone. All others that go on have one.
type division struct {
	name                  string
	weighted, idle, alone int
	known                 bool    // what the tenant alone has is known, at no cost
	more                  float64 // time for blocks, in s, besides that of two minutes
}

func divisions() []division {
	return []division{
		{"as it is: one of weighted, two alone", 1, 1, 2, false, 0},
		{"one of weighted, one alone", 1, 1, 1, false, 0},
		{"two of weighted, one alone", 2, 1, 1, false, 0},
		{"three of weighted, one alone", 3, 1, 1, false, 0},
		{"as it is, if alone were known exactly", 1, 1, 2, true, 0},
	}
}

// longerDivisions are those with more time, and that of who cares for weighted alone.
func longerDivisions() []division {
	return []division{
		{"two of weighted, one alone, 7 s more", 2, 1, 1, false, 7},
		{"two of weighted, one alone, none of idle", 2, 0, 1, false, 0},
		{"as it is, 20 s more", 1, 1, 2, false, 20},
		{"as it is, 40 s more", 1, 1, 2, false, 40},
		{"as it is, 60 s more", 1, 1, 2, false, 60},
	}
}

// drawn are blocks of a scenario, drawn from those that were measured: as many as there are with an even division. A second
// round of the scenario in a block is that of the block that follows there; both have the block's references.
func (d division) drawn(random *rand.Rand, of [][]float64, scenario string, blocks, going int) [][]float64 {
	const look = 15
	one := func(own, alone int) (rows [][]float64) {
		at := random.IntN(len(of))
		references := of[at][1:min(len(of[at]), 1+alone)]
		if d.known {
			references = []float64{1}
		}
		for k := range own {
			rows = append(rows, append([]float64{of[(at+k)%len(of)][0]}, references...))
		}
		return rows
	}
	var rows [][]float64
	for range min(blocks, look) {
		rows = append(rows, one(1, 2)...)
	}
	own := d.idle
	if scenario == "weighted" {
		own = d.weighted
	}
	if blocks > look {
		blocks += int(d.more / (perRoundTime * float64(going)))
	}
	for range max(0, blocks-look) * going / (going + d.weighted + d.idle + d.alone - 4) {
		rows = append(rows, one(own, d.alone)...)
	}
	return rows
}

// TestStoredDivisions makes the table of how the time after the look is best divided (docs/measurements/statistics-time.md)
// from the stored default runs of three series: medians of the half widths of idle and weighted against alone.
func TestStoredDivisions(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("simulation in short mode")
	}
	widths := map[string][]float64{}
	for series, results := range map[string]string{"A": "default-runs-awake/[ab]", "B": "default-runs-look/c", "C": twenty} {
		for i, m := range storedRuns(t, results) {
			took := m.figures.took()
			short, long := each(took, perRound()["p99"]), each(together(took), perRound()["p99"])
			dropped, n := m.played(t, 15)
			random, later := rand.New(rand.NewPCG(2, uint64(i))), rand.New(rand.NewPCG(3, uint64(i)))
			for _, scenario := range []string{"idle", "weighted"} {
				note := func(design string, w float64) {
					widths[design+series+scenario] = append(widths[design+series+scenario], w)
				}
				of, own := rows(short, scenario), n
				if slices.Contains(dropped, scenario) {
					own = 15
				}
				for _, d := range divisions() {
					note(d.name, promised(func() [][]float64 { return d.drawn(random, of, scenario, own, 7-len(dropped)) }))
				}
				for _, d := range longerDivisions() {
					note(d.name, promised(func() [][]float64 { return d.drawn(later, of, scenario, own, 7-len(dropped)) }))
				}
				of = rows(long, scenario)
				note(longer, promised(func() [][]float64 { return divisions()[0].drawn(random, of, scenario, own*130/115/2, 7) }))
			}
		}
	}
	table := ""
	row := func(design string) {
		table += "| " + design + " |"
		for _, of := range []string{"Aidle", "Aweighted", "Bidle", "Bweighted", "Cidle", "Cweighted"} {
			table += fmt.Sprintf(" ×/÷ %.2f |", stats.Median(widths[design+of]))
		}
		table += "\n"
	}
	for _, d := range divisions() {
		row(d.name)
	}
	row(longer)
	for _, d := range longerDivisions() {
		row(d.name)
	}
	saysOfTime(t, table)
}

// saysOfTime says whether the page about the time of intervals has a table.
func saysOfTime(t *testing.T, table string) {
	t.Helper()
	page, err := os.ReadFile("../docs/measurements/statistics-time.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table) {
		t.Errorf("statistics-time.md lacks:\n%s", table)
	}
}

// twenty are the newest of the stored default runs.
const twenty = "default-runs-twenty/d"

// storedRuns are default runs, by the beginning of their names.
func storedRuns(t *testing.T, results string) (all []*Measured) {
	t.Helper()
	names, err := filepath.Glob("../docs/measurements/results/" + results + "*.json.gz")
	if err != nil || len(names) == 0 {
		t.Fatal(err, "no results")
	}
	for _, name := range names {
		r, err := ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Measure(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// TestStoredParts makes the table of what the time of twenty default runs went to, and what it was good for: medians of the
// runs, by how much the logarithm of a p99 differs from round to round of a run, and with what it correlates.
func TestStoredParts(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("decodes many results")
	}
	rounds, counted, seconds := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	squares, free, with := map[string]float64{}, map[string]float64{}, map[string]*[3][3]float64{}
	var before, left []float64
	for _, m := range storedRuns(t, twenty) {
		order := slices.SortedFunc(slices.Values(m.Decoded), func(a, b Decoded) int { return a.Started.Compare(b.Started) })
		n, took, offered := map[string]float64{}, map[string]float64{}, map[string]map[int]float64{}
		for i, d := range order {
			end := m.Finished
			if i+1 < len(order) {
				end = order[i+1].Started
			}
			n[d.Scenario], took[d.Scenario] = n[d.Scenario]+1, took[d.Scenario]+end.Sub(d.Started).Seconds()
			if offered[d.Scenario] == nil {
				offered[d.Scenario] = map[int]float64{}
			}
			offered[d.Scenario][d.Block] = float64(d.Load.Offered)
		}
		before = append(before, order[0].Started.Sub(m.Started).Seconds())
		left = append(left, (time.Duration(m.Experiment.For) - m.Finished.Sub(m.Started)).Seconds())
		p99s := map[string]map[int]float64{}
		for scenario, of := range m.figures.rounds {
			p99s[scenario] = map[int]float64{}
			for block, d := range of {
				p99s[scenario][block], _ = d.Quantile(headline)
			}
			p99s[scenario] = centered(p99s[scenario])
		}
		for _, s := range m.Experiment.Scenarios {
			of, asked := p99s[s.Name], centered(offered[s.Name])
			if with[s.Name] == nil {
				with[s.Name] = &[3][3]float64{}
			}
			other := Baseline
			if s.Name == Baseline {
				other = BaselineAgain
			}
			for block, x := range of {
				squares[s.Name] += x * x
				for i, of := range []map[int]float64{p99s[other], asked, of} {
					at := block
					if i == 2 {
						at--
					}
					if y, ok := of[at]; ok {
						sums := &with[s.Name][i]
						sums[0], sums[1], sums[2] = sums[0]+x*y, sums[1]+x*x, sums[2]+y*y
					}
				}
			}
			free[s.Name] += float64(len(of) - 1)
			rounds[s.Name], counted[s.Name], seconds[s.Name] = append(rounds[s.Name], n[s.Name]), append(counted[s.Name], float64(len(of))), append(seconds[s.Name], took[s.Name])
		}
	}
	table := fmt.Sprintf("| before the first round | | | %.1f | | | | |\n", stats.Median(before))
	for _, s := range IsolationSpec().Scenarios {
		of := s.Name
		table += fmt.Sprintf("| `%s` | %.0f | %.0f | %.1f | %.2f |", of, stats.Median(rounds[of]), stats.Median(counted[of]), stats.Median(seconds[of]), math.Sqrt(squares[of]/free[of]))
		for _, sums := range with[of] {
			table += fmt.Sprintf(" %.2f |", sums[0]/math.Sqrt(sums[1]*sums[2]))
		}
		table += "\n"
	}
	saysOfTime(t, table+fmt.Sprintf("| left of the two minutes | | | %.1f | | | | |\n", stats.Median(left)))
}

// centered are logarithms less their mean.
func centered(of map[int]float64) map[int]float64 {
	all, sum := map[int]float64{}, 0.0
	for _, block := range slices.Sorted(maps.Keys(of)) {
		sum += math.Log(of[block])
	}
	for block, v := range of {
		all[block] = math.Log(v) - sum/float64(len(of))
	}
	return all
}

// longer names a design: fewer rounds, with less time between them.
const longer = "as it is, rounds of 1 s"

// TestStoredDesigns makes the tables of what narrows intervals (docs/measurements/statistics-time.md) from the stored
// default runs of two series.
func TestStoredDesigns(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("simulation in short mode")
	}
	saysOfTime(t, designs(t, storedRuns(t, "default-runs-awake/[ab]"), 12, 15, 18))
	saysOfTime(t, designs(t, storedRuns(t, twenty), 12, 13, 14, 15))
}

// designs is a table: the medians of the half widths of idle and weighted against alone, with looks after so many blocks.
func designs(t *testing.T, runs []*Measured, looks ...int) string {
	t.Helper()
	const single = "a look after 15 blocks drops alone again, too"
	widths := map[string]map[string][]float64{}
	note := func(design, scenario string, w float64) {
		if widths[design] == nil {
			widths[design] = map[string][]float64{}
		}
		widths[design][scenario] = append(widths[design][scenario], w)
	}
	blocks, gone := map[int][]float64{}, map[int]int{}
	for i, m := range runs {
		by := map[string]map[string]map[int]float64{}
		took := m.figures.took()
		for figure, of := range perRound() {
			by[figure] = each(took, of)
		}
		by["p99 of all requests, none cut"] = each(m.all.took(), perRound()["p99"])
		by["p99, less what the machine's speed explains"] = adjusted(by["p99"], m.slowness())
		by["p99, less what others' CPU time explains"] = adjusted(by["p99"], m.foreign())
		for design, figures := range by {
			for _, scenario := range []string{"idle", "weighted"} {
				note(design, scenario, width(rows(figures, scenario)))
			}
		}
		random := rand.New(rand.NewPCG(1, uint64(i)))
		for _, look := range looks {
			dropped, n := m.played(t, look)
			blocks[look], gone[look] = append(blocks[look], float64(n)), gone[look]+len(dropped)
			for _, scenario := range []string{"idle", "weighted"} {
				of, own, ran := rows(by["p99"], scenario), n, 0
				for _, round := range m.Rounds {
					if round.Scenario == scenario {
						ran++
					}
				}
				if slices.Contains(dropped, scenario) {
					own = look
				}
				note(fmt.Sprintf("a look after %d blocks", look), scenario, drawn(random, of, own*len(of)/ran, own)) // the cut takes some
				if look == 15 {
					if own > look {
						own = blocksIn(look, len(dropped)+1)
					}
					note(single, scenario, drawn(random, of, own*len(of)/ran, look))
				}
			}
		}
	}
	table := ""
	for _, design := range []string{
		"p99", "p99 of all requests, none cut", "p99 of Harrell and Davis", "geometric mean of the longest 2 %", "geometric mean of the longest 5 %", "p95",
		"p99, less what the machine's speed explains", "p99, less what others' CPU time explains",
	} {
		table += fmt.Sprintf("| %s | as they were | ×/÷ %.2f | ×/÷ %.2f |\n", design, stats.Median(widths[design]["idle"]), stats.Median(widths[design]["weighted"]))
	}
	for _, look := range looks {
		w := widths[fmt.Sprintf("a look after %d blocks", look)]
		table += fmt.Sprintf("| p99, a look after %d blocks drops %.1f scenarios | %.0f | ×/÷ %.2f | ×/÷ %.2f |\n",
			look, float64(gone[look])/float64(len(runs)), stats.Median(blocks[look]), stats.Median(w["idle"]), stats.Median(w["weighted"]))
	}
	table += fmt.Sprintf("| p99, %s | | ×/÷ %.2f | ×/÷ %.2f |\n", single, stats.Median(widths[single]["idle"]), stats.Median(widths[single]["weighted"]))
	return table
}
