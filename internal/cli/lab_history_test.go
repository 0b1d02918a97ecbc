package cli

import (
	"strings"
	"testing"
)

// A folder's results are followed; what is not of berth lab is left out, and two are too few.
func TestHistoryOfAFolder(t *testing.T) {
	t.Parallel()
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
		"has no results of berth lab": {t.TempDir()},
		"no such file":                {"missing.json"},
		"requires at least 1":         {},
	} {
		if _, errs, code := berth(t, append([]string{"lab", "history"}, args...)...); code == exitOK || !strings.Contains(errs, want) {
			t.Errorf("%q: status %d, %q, want %q", args, code, errs, want)
		}
	}
}
