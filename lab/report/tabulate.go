package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// Tabulation is what several runs of one experiment come to.
type Tabulation struct {
	Runs []TabulatedRun `json:"runs"`
	// Rows are the comparisons by p99, in the order of the first run.
	Rows []Tabulated `json:"rows"`
}

// TabulatedRun is one of the runs.
type TabulatedRun struct {
	Name    string       `json:"name"`
	Started time.Time    `json:"started"`
	Took    lab.Duration `json:"took"`
	Blocks  int          `json:"blocks"`
	// Foreign is the share of the shared CPUs' time that others took.
	Foreign float64 `json:"foreign"`
}

// Tabulated is one comparison in all runs.
type Tabulated struct {
	Scenario string `json:"scenario"`
	Against  string `json:"against"`
	// Verdicts counts the runs by their verdict.
	Verdicts map[stats.Verdict]int `json:"verdicts"`
	// Median, Least and Most are of the runs' ratios.
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	// HalfWidth and Widest are of the runs' 95 % intervals, as factors; 0 if none has one.
	HalfWidth float64 `json:"halfWidth,omitempty"`
	Widest    float64 `json:"widest,omitempty"`
}

// Analysed is a result and what it comes to.
type Analysed struct {
	Name     string // a file, for the reader
	Result   *lab.Measured
	Analysis *lab.Analysis
}

// Tabulate counts what runs of the same experiment came to.
func Tabulate(runs []Analysed) *Tabulation {
	t := &Tabulation{}
	ratios, widths := map[[2]string][]float64{}, map[[2]string][]float64{}
	for _, run := range runs {
		r := run.Result.Result
		steal, total := 0.0, 0.0
		blocks := map[int]bool{}
		for _, round := range r.Rounds {
			steal += round.Host.Steal + round.Host.Foreign
			total += round.Seconds * float64(round.Host.SharedCPUs)
			blocks[round.Block] = true
		}
		t.Runs = append(t.Runs, TabulatedRun{run.Name, r.Started, lab.Duration(max(0, r.Finished.Sub(r.Started))), len(blocks), steal / max(total, 1e-9)})
		for _, c := range run.Analysis.Comparisons {
			f, ok := c.Figure("p99")
			if !ok {
				continue
			}
			key := [2]string{c.Scenario, c.Against}
			i := slices.IndexFunc(t.Rows, func(row Tabulated) bool { return row.Scenario == c.Scenario && row.Against == c.Against })
			if i < 0 {
				i = len(t.Rows)
				t.Rows = append(t.Rows, Tabulated{Scenario: c.Scenario, Against: c.Against, Verdicts: map[stats.Verdict]int{}})
			}
			t.Rows[i].Verdicts[f.Verdict]++
			ratios[key] = append(ratios[key], f.Estimate)
			if f.Known() {
				widths[key] = append(widths[key], math.Sqrt(f.High/f.Low))
			}
		}
	}
	for i := range t.Rows {
		row := &t.Rows[i]
		key := [2]string{row.Scenario, row.Against}
		row.Median, row.Least, row.Most = stats.Median(ratios[key]), slices.Min(ratios[key]), slices.Max(ratios[key])
		if w := widths[key]; len(w) > 0 {
			row.HalfWidth, row.Widest = stats.Median(w), slices.Max(w)
		}
	}
	return t
}

// words are how many comparisons the runs agree on, and whether they contradict each other.
func (t *Tabulation) words() (words []string) {
	n := len(t.Runs)
	var all, unlike, some, none, both []string
	for _, row := range t.Rows {
		worse, better, asGood := row.Verdicts[stats.Worse], row.Verdicts[stats.Better], row.Verdicts[stats.Equivalent]
		if row.Scenario == lab.BaselineAgain {
			words = append(words, fmt.Sprintf("The tenant alone is called different from itself in %d of %s.", worse+better, plain.Count(n, "run")))
			continue
		}
		pair := fmt.Sprintf("%s against %s", shownName(row.Scenario), shownName(row.Against))
		switch decided := worse + better + asGood; {
		case worse > 0 && better > 0:
			both = append(both, fmt.Sprintf("%s (worse in %d, better in %d)", pair, worse, better))
		case max(worse, better, asGood) == n:
			all = append(all, pair)
		case decided == n:
			unlike = append(unlike, fmt.Sprintf("%s (as good in %d)", pair, asGood))
		case decided > 0:
			some = append(some, fmt.Sprintf("%s (%d)", pair, decided))
		default:
			none = append(none, pair)
		}
	}
	for _, part := range []struct {
		says  string
		pairs []string
	}{{"The runs contradict each other on", both}, {"Decided alike in all of %s by the p99", all}, {"Decided in all, but not alike", unlike}, {"Decided in some", some}, {"Decided in none", none}} {
		if part.pairs != nil {
			says := strings.ReplaceAll(part.says, "%s", plain.Count(n, "run"))
			words = append(words, says+": "+strings.Join(part.pairs, ", ")+".")
		}
	}
	return words
}

// Sheet has the table of comparisons, and that of the runs.
func (t *Tabulation) Sheet() *Sheet {
	s := &Sheet{Answer: t.words()}
	var rows, runs [][]string
	factor := func(v float64) string {
		if v == 0 {
			return absent
		}
		return "×/÷ " + strconv.FormatFloat(v, 'f', 2, 64)
	}
	for _, row := range t.Rows {
		line := []string{shownName(row.Scenario), shownName(row.Against), digits3(row.Median), fmt.Sprintf("%s to %s", digits3(row.Least), digits3(row.Most)), factor(row.HalfWidth), factor(row.Widest)}
		for _, v := range []stats.Verdict{stats.Worse, stats.Better, stats.Equivalent, stats.Inconclusive} {
			line = append(line, strconv.Itoa(row.Verdicts[v]))
		}
		rows = append(rows, line)
	}
	for _, run := range t.Runs {
		runs = append(runs, []string{run.Name, run.Started.UTC().Format("2006-01-02 15:04"), span(time.Duration(run.Took)), strconv.Itoa(run.Blocks), percent(run.Foreign)})
	}
	table := NewTable([]string{"p99 of", "against", "median ×", "least to most", "half width", "widest", "worse", "better", "as good", "not decided"}, rows...)
	table.Legend = "Of the runs: the median of their ratios, and of the half widths of their 95 % intervals; in how many it was decided how."
	s.Add(Block{Table: table}, Block{Table: NewTable([]string{"run", "started", "took", "blocks", "others %"}, runs...)})
	return s
}
