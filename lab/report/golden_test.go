package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with testdata/name, or rewrites that file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got); run with -update after looking at it:\n%s", path, diff)
	}
}

var dataAddress = regexp.MustCompile(`href="data:[^"]*"`)

// withoutData removes the downloads from a page: their content is tested apart.
func withoutData(page []byte) []byte {
	return dataAddress.ReplaceAll(page, []byte(`href="data:"`))
}

// tally is an analysis that has counted and judged nothing.
func tally(r *lab.Result) *lab.Analysis {
	a := &lab.Analysis{Recommendation: "none: too little was measured to compare anything."}
	skipped := map[string]*lab.Skipped{}
	for i, s := range r.Skipped {
		skipped[s.Scenario] = &r.Skipped[i]
	}
	for _, s := range r.Experiment.Scenarios {
		row := lab.Row{Scenario: s.Name, Skipped: skipped[s.Name]}
		for _, round := range r.Rounds {
			if round.Scenario != s.Name {
				continue
			}
			row.Rounds++
			if round.Invalid == "" {
				row.Valid++
				row.Requests += round.Load.Offered
				row.HostBusy, row.LagP99 = 0.6, 40
			}
		}
		if row.Valid == 0 && row.Rounds > 0 {
			row.Verdict, row.Why = stats.Invalid, "no round counts"
		}
		a.Rows = append(a.Rows, row)
	}
	return a
}

// poorCases are results that are not what a report hopes for.
func poorCases(t *testing.T) map[string]struct {
	r *lab.Result
	a *lab.Analysis
} {
	type pair = struct {
		r *lab.Result
		a *lab.Analysis
	}
	zero := &lab.Result{}
	empty := fakeResult(t, 0)
	empty.Complete = false
	empty.Finished = time.Time{}
	one := fakeResult(t, 1)
	one.Rounds = one.Rounds[:1]
	one.Complete = false
	oneAnalysis := tally(one)
	for i, row := range oneAnalysis.Rows {
		if row.Valid == 1 {
			oneAnalysis.Rows[i].Quantiles = []lab.Quantile{
				{P: 50, Interval: stats.Interval{Estimate: 2100, Low: 2100, High: 2100, Rounds: 1}},
				{P: 95, Interval: stats.Interval{Estimate: 3100, Low: 3100, High: 3100, Rounds: 1}},
				{P: 99, Reason: "needs 1 more round"},
			}
		}
	}
	invalid := fakeResult(t, 2)
	for i := range invalid.Rounds {
		invalid.Rounds[i].Invalid = "generator lag p99 is 4.1 ms, more than a tenth of the response time"
	}
	silent := fakeResult(t, 1)
	for i := range silent.Rounds {
		silent.Rounds[i].Load.Seconds, silent.Rounds[i].Probes, silent.Rounds[i].Seconds = nil, nil, 0
	}
	return map[string]pair{
		"zero":     {zero, &lab.Analysis{}},
		"empty":    {empty, tally(empty)},
		"oneround": {one, oneAnalysis},
		"invalid":  {invalid, tally(invalid)},
		"silent":   {silent, tally(silent)},
	}
}

func TestPoorResults(t *testing.T) {
	t.Parallel()
	for name, c := range poorCases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text, page, doc, table bytes.Buffer
			s := Isolation(measured(t, c.r), c.a)
			if err := Text(&text, s, Options{}); err != nil {
				t.Fatal(err)
			}
			golden(t, "poor_"+name+".txt", text.Bytes())
			if err := HTML(&page, s); err != nil {
				t.Fatal(err)
			}
			checkPage(t, page.String())
			if bytes.Contains(page.Bytes(), []byte("NaN")) || bytes.Contains(page.Bytes(), []byte("Inf")) {
				t.Error("the page has NaN or Inf in it")
			}
			if err := JSON(&doc, NewDocument(c.r, c.a)); err != nil {
				t.Fatal(err)
			}
			if err := s.Files[2].Write(&table); err != nil {
				t.Fatal(err)
			}
			side := Side{Name: name, Result: measured(t, c.r), Analysis: c.a}
			if _, err := Compare(side, side); err == nil && name != "oneround" {
				t.Error("comparison of nothing with nothing: no error")
			}
		})
	}
}
