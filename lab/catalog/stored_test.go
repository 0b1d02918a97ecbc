package catalog

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab/report"
)

// storedResults are the results of the repository, by the names of their files.
func storedResults(t *testing.T) map[string]Experiment {
	t.Helper()
	paths, err := filepath.Glob("../../docs/measurements/results/*.json.gz")
	if err != nil || len(paths) < 10 {
		t.Fatalf("%d results, %v", len(paths), err)
	}
	all := map[string]Experiment{}
	for _, path := range append(paths, "../../internal/cli/testdata/lab/guard-v1.json", "../../internal/cli/testdata/lab/guard-protocol-v1.json.gz") {
		_, x, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(filepath.Base(path), ".")
		all[name] = x
	}
	return all
}

// Each run that is stored lasted as long as it announced, within a fifth, and the page says how
// long.
func TestStoredLengths(t *testing.T) {
	t.Parallel()
	// What is stored are the blocks that were run: these had more to run, and no time for them.
	asked := map[string]int{"quick": 20, "quick-1": 20, "quick-2": 20, "quick-3": 20, "quick-switch": 20, "limits": 20, "pinning": 40}
	var rows []string
	for name, x := range storedResults(t) {
		h := x.Head()
		if h.Finished.IsZero() || len(h.Resumed) > 0 { // a made-up result, or one with a pause
			continue
		}
		if blocks := asked[name]; blocks > 0 {
			if err := Set(x, "blocks", strconv.Itoa(blocks)); err != nil {
				t.Fatal(err)
			}
		}
		took, announced := h.Finished.Sub(h.Started), x.Length(h.Host.Machine)
		off := took.Seconds()/announced.Seconds() - 1
		most := 0.2
		if name == "neighbours-switch" { // each fourth round starves the lab, and takes 2.2 s instead of 0.6
			most = 0.6
		}
		if off < -0.2 || off > most {
			t.Errorf("%s: took %s, %s announced", name, took, announced)
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %+.0f %% |", name, announced.Round(time.Second), took.Round(time.Second), 100*off))
	}
	slices.Sort(rows)
	const page = "../../docs/measurements/lab-length.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	table := regexp.MustCompile(`(?m)^\|.*\n(\|.*\n)+`)
	golden.Check(t, page, table.ReplaceAllString(string(text), "| result | announced | took | off |\n|---|---|---|---|\n"+strings.Join(rows, "\n")+"\n"))
}

// The page of each stored result has every kind of picture that its experiment can have, and
// says what asking cost and how late it was.
func TestStoredPages(t *testing.T) {
	t.Parallel()
	for name, x := range storedResults(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sheet, err := x.Sheet()
			if err != nil {
				t.Fatal(err)
			}
			var page bytes.Buffer
			if err := report.HTML(&page, sheet); err != nil {
				t.Fatal(err)
			}
			drawn := map[string]bool{}
			shown := regexp.MustCompile(`href="data:[^"]*"`).ReplaceAllString(page.String(), "")
			for _, m := range regexp.MustCompile(`id="([a-z]+)-wide-t"`).FindAllStringSubmatch(shown, -1) {
				drawn[m[1]] = true
			}
			own := name == "benchmark" // which brings its own load: its rounds have no single requests
			for what, ids := range map[string][]string{
				"distributions": {"percentiles", "spreads"}, "a matrix": {"matrix", "median", "harm", "confusion"},
				"time": {"time", "faults"}, "the machine over time": {"probes", "meanwhile"},
			} {
				if own && what != "a matrix" {
					continue
				}
				if !slices.ContainsFunc(ids, func(id string) bool { return drawn[id] }) {
					t.Errorf("no picture of %s: there are %v", what, drawn)
				}
			}
			for _, want := range []string{`<dt>generator</dt>`, "own lag p99 at most", "▼ is where a level changed"} {
				if closed := own || name == "colocate-wrk" && strings.Contains(want, "lag"); !closed && !strings.Contains(shown, want) {
					t.Errorf("the page lacks %q", want)
				}
			}
			if !regexp.MustCompile(`used [0-9.]+ CPUs`).MatchString(shown) && name != "guard-v1" && !own {
				t.Error("the page does not say what the generator used")
			}
			for _, bad := range []string{"NaN", "+Inf", "ZgotmplZ"} {
				if strings.Contains(shown, bad) {
					t.Errorf("the page has %s in it", bad)
				}
			}
		})
	}
}
