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

// What is no result in a folder, as a pipe, is left out. A file that cannot be read may be one,
// and is an error.
func TestResultsInAFolder(t *testing.T) {
	t.Parallel()
	computes(t)
	dir := filepath.Join(t.TempDir(), "[results]")
	at := func(name string) string { return filepath.Join(dir, name) }
	result, err := filepath.Abs("../../docs/measurements/results/readme.json.gz")
	err = errors.Join(err, os.MkdirAll(at("a/folder"), 0o700), os.MkdirAll(at("b.json"), 0o700), os.Symlink(result, at("a/result.json")),
		os.Symlink(result, at("b.json/result.json")), os.Symlink(result, at("c.json.gz")), os.Symlink(at("a"), at("d")),
		os.Symlink(result, at("e")), os.Symlink("gone", at("f.json")), os.Mkdir(at("g"), 0o700), syscall.Mkfifo(at("h.json"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	runs, left, err := readRuns([]string{dir}, "")
	var names []string
	for _, run := range runs {
		names = append(names, strings.TrimPrefix(run.Name, dir+"/"))
	}
	if want := []string{"a/result.json", "b.json", "c.json.gz", "d/result.json"}; !slices.Equal(names, want) || len(left) > 0 || err != nil {
		t.Errorf("%q, %v, %v; want %q", names, left, err, want)
	}
	if err := os.Symlink("loop.json", at("loop.json")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readRuns([]string{dir}, ""); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("with one that cannot be opened: %v", err)
	}
	if err := syscall.Mkfifo(at("result.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readRuns([]string{dir}, ""); err == nil || !strings.Contains(err.Error(), "result.json: not a regular file") {
		t.Errorf("with a pipe for its own result: %v", err)
	}
}
