package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Results that earlier versions stored can be read, and come to the same.
func TestStoredResults(t *testing.T) {
	t.Parallel()
	const isolation, guard = "testdata/lab/isolation-v1.json", "testdata/lab/guard-v1.json"
	shown := func(args ...string) string {
		out, errs, code := berth(t, append([]string{"lab"}, args...)...)
		if code != exitOK || errs != "" {
			t.Errorf("berth lab %q: exit %d, %s", args, code, errs)
		}
		return out
	}
	for file, args := range map[string][]string{
		"isolation.txt":         {"report", isolation},
		"isolation-report.json": {"report", isolation, "-o", "json"},
		"isolation.csv":         {"report", isolation, "-o", "csv"},
		"compare.json":          {"compare", isolation, isolation, "-o", "json"},
		"guard.txt":             {"guard", "--show", guard},
	} {
		golden(t, "lab", file, shown(args...))
	}
	for file, want := range map[string]string{isolation: `id="tradeoff-wide-t"`, guard: "<h3>In steady state</h3>"} {
		if page := shown("report", file, "-o", "html"); !strings.Contains(page, want) {
			t.Errorf("the page of %s lacks %s", file, want)
		}
	}
	var report struct{ Result, Analysis json.RawMessage }
	if err := json.Unmarshal([]byte(shown("guard", "--show", guard, "-o", "json")), &report); err != nil {
		t.Fatal(err)
	}
	stored, err := os.ReadFile(guard)
	if err != nil {
		t.Fatal(err)
	}
	var was, now any
	if err := errors.Join(json.Unmarshal(stored, &was), json.Unmarshal(report.Result, &now)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, now); diff != "" {
		t.Errorf("the result of berth lab guard (-as stored +as given again):\n%s", diff)
	}
	var analysis bytes.Buffer
	if err := json.Indent(&analysis, report.Analysis, "", "  "); err != nil {
		t.Fatal(err)
	}
	golden(t, "lab", "guard-analysis.json", analysis.String()+"\n")
}

// The tables that are published are those of the results that are stored.
func TestPublishedTables(t *testing.T) {
	t.Parallel()
	const docs = "../../docs/"
	for page, results := range map[string][]string{
		"experiments/resources.md": {"io.json.gz", "memory.json.gz"},
		"experiments/limits.md":    {"limits.json.gz"},
		"experiments/routing.md":   {"routing.json.gz"},
		"experiments/pinning.md":   {"pinning.json.gz"},
		"experiments/cache.md":     {"cache.json.gz"},
	} {
		text, err := os.ReadFile(docs + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, result := range results {
			out, errs, code := berth(t, "lab", "report", docs+"measurements/results/"+result)
			if code != exitOK {
				t.Fatalf("%s: exit %d, %s", result, code, errs)
			}
			head := "scenario "
			for _, other := range []string{"servers ", "cell "} {
				if !strings.Contains(out, "\n"+head) {
					head = other
				}
			}
			_, table, _ := strings.Cut(out, "\n"+head)
			table, _, _ = strings.Cut(head+table, "\n\n")
			indented := "    " + strings.ReplaceAll(table, "\n", "\n    ")
			if len(table) < 200 || !strings.Contains(string(text), indented) {
				t.Errorf("%s lacks the table of %s:\n%s", page, result, indented)
			}
		}
	}
}
