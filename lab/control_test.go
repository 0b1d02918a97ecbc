package lab

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/lab/stats"
)

func TestNarrow(t *testing.T) {
	t.Parallel()
	row := func(low, high float64) Row {
		return Row{Scenario: "idle", Ratio: &stats.Interval{Estimate: (low + high) / 2, Low: low, High: high}}
	}
	wide := row(3, 8)
	wide.Scenario = "limited"
	for name, tc := range map[string]struct {
		rows []Row
		want bool
	}{
		"dropped":            {[]Row{row(0.95, 1.05), wide}, true},
		"all were dropped":   {[]Row{wide}, true},
		"narrow":             {[]Row{{Scenario: Baseline}, row(0.95, 1.05), row(9.2, 10.9)}, true},
		"too few blocks":     {[]Row{{Scenario: Baseline}, row(1, 1)}, false},
		"one is wide":        {[]Row{row(0.95, 1.05), row(9, 11)}, false},
		"skipped":            {[]Row{row(0.99, 1.01), {Scenario: "pinned", Skipped: &Skipped{}}}, true},
		"one has no ratio":   {[]Row{row(1, 1), {Scenario: "pinned"}}, false},
		"nothing is decided": {[]Row{row(0, 1)}, false},
	} {
		if got := (&Analysis{Rows: tc.rows}).narrow(0.1, []Dropped{{"limited", 15}}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		limit  time.Duration
		blocks int
	}{{2 * time.Minute, 28}, {time.Second, 2}, {30 * 24 * time.Hour, MaxBlocks}} {
		e := valid(t)
		e.Fill(tc.limit)
		if e.Blocks != tc.blocks || e.For != Duration(tc.limit) || e.Validate() != nil {
			t.Errorf("%s: %d blocks for %s, %v; want %d", tc.limit, e.Blocks, e.For, e.Validate(), tc.blocks)
		}
	}
}

// What is announced is what a run of rounds of a known length takes.
func TestLength(t *testing.T) {
	t.Parallel()
	for _, p := range Presets() {
		e := valid(t)
		if err := e.Use(p.Name); err != nil {
			t.Fatal(err)
		}
		if e.Length() > p.For || e.Length() < p.For*3/4 {
			t.Errorf("%s: about %s, limited to %s", p.Name, e.Length(), p.For)
		}
	}
	e := valid(t)
	e.Blocks, e.For, e.Settle, e.Window = 10, 0, Duration(time.Second), Duration(9*time.Second)
	if got, want := e.Length(), 6*time.Second+70*10040*ms; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestContinueRefuses(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Result){
		"continue: the run is not complete: --resume": func(r *Result) { r.Complete = false },
		"rounds: 10020": func(*Result) {},
	} {
		r := fakeResult(t, map[string]fake{Baseline: {scale: 1}})
		change(r)
		dir := t.TempDir()
		if err := WriteFile(filepath.Join(dir, ResultFile), r); err != nil {
			t.Fatal(err)
		}
		_, err := ContinueIsolate(t.Context(), MaxBlocks, 0, 0, Options{Dir: dir, UndoLogDir: t.TempDir(), Unprivileged: true})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
		if again, err := ReadFile(dir); err != nil || again.Complete != r.Complete || again.Experiment.Blocks != 20 {
			t.Errorf("%v; the stored result has changed", err)
		}
	}
}
