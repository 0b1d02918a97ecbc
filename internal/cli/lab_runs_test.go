package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The tables over series of runs are those of the results that are stored: each line that is
// printed of them is that of a run or of a comparison.
func TestPublishedSeries(t *testing.T) {
	t.Parallel()
	computes(t)
	const docs = "../../docs/measurements/"
	for runs, page := range map[string]string{
		"default-runs/*": "default-runs.md", "default-runs-awake/a*": "default-runs-awake.md", "default-runs-awake/b*": "default-runs-awake.md", "default-runs-look/*": "default-runs-look.md", "default-runs-twenty/*": "default-runs-twenty.md",
		"default-runs-longer/*": "default-runs-longer.md", "default-runs-short/*": "default-runs-short.md",
		"awake/*-asleep*": "lab-awake.md", "awake/*-awake*": "lab-awake.md",
	} {
		text, err := os.ReadFile(docs + page)
		if err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(docs + "results/" + runs)
		if err != nil || len(files) < 3 {
			t.Fatalf("%s: %d results, %v", runs, len(files), err)
		}
		out, errs, code := berth(t, append([]string{"lab", "tabulate"}, files...)...)
		if code != exitOK {
			t.Fatalf("%s: exit %d, %s", runs, code, errs)
		}
		_, table, _ := strings.Cut(out, "\np99 of ")
		table, _, _ = strings.Cut(table, "\nlimited ")
		if indented := "    " + strings.ReplaceAll("p99 of "+table, "\n", "\n    "); len(table) < 400 || !strings.Contains(string(text), indented) {
			t.Errorf("%s lacks the table of %s:\n%s", page, runs, indented)
		}
	}
}
