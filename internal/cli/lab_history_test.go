package cli

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A folder's results are followed; what is not of berth lab is left out, and two are too few.
func TestHistoryOfAFolder(t *testing.T) {
	t.Parallel()
	computes(t)
	for _, args := range [][]string{
		{"../../docs/measurements/results/readme.json.gz", "../../docs/measurements/results/readme-2.json.gz"},
		{"testdata/lab"},
	} {
		out, errs, code := berth(t, append([]string{"lab", "history"}, args...)...)
		if code != exitOK || !strings.Contains(out, "Too few runs to tell") || !strings.Contains(out, "p99 alone") {
			t.Errorf("%q: status %d, %s%s", args, code, out, errs)
		}
	}
	for want, args := range map[string][]string{
		"has no results of the lab": {t.TempDir()},
		"want one experiment":       {"../../docs/measurements/results/readme.json.gz", "../../docs/measurements/results/quick.json.gz"},
		"no result of numa":         {"../../docs/measurements/results", "--experiment", "numa"},
		"no such file":              {"missing.json"},
		"requires at least 1":       {},
	} {
		if _, errs, code := berth(t, append([]string{"lab", "history"}, args...)...); code == exitOK || !strings.Contains(errs, want) {
			t.Errorf("%q: status %d, %q, want %q", args, code, errs, want)
		}
	}
}

// Any experiment is followed, by name; the others of the folder are counted.
func TestHistoryOfAnExperiment(t *testing.T) {
	t.Parallel()
	computes(t)
	const folder = "../../docs/measurements/results"
	out, errs, code := berth(t, "lab", "history", folder, "--experiment", "pinning")
	if code != exitOK || !strings.Contains(out, "p99 alone") || !strings.Contains(out, "anti-affinity ÷ alone") || !strings.Contains(errs, "left out: 3 results of isolation (--experiment isolation)") {
		t.Errorf("status %d, %s%s", code, out, errs)
	}
	out, _, code = berth(t, "lab", "history", folder)
	if code != exitOK || !strings.Contains(out, "weighted ÷ alone") {
		t.Errorf("by default: status %d, %s", code, out)
	}
}

// What is no file in a folder of results, as a pipe, is left out.
func TestResultsInAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := filepath.Join(dir, "b.json")
	if err := errors.Join(syscall.Mkfifo(filepath.Join(dir, "a.json"), 0o600), os.WriteFile(want, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if files, err := resultsIn(dir); !slices.Equal(files, []string{want}) || err != nil {
		t.Errorf("%v, %v", files, err)
	}
}
