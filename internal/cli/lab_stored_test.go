package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/golden"
)

// computes skips a test over stored results in a short run: the race detector takes minutes for
// it, and nothing in it runs at once.
func computes(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("computes for minutes under the race detector")
	}
}

// Results that earlier versions stored can be read, and come to the same.
func TestStoredResults(t *testing.T) {
	t.Parallel()
	computes(t)
	const isolation, guard, protocol = "testdata/lab/isolation-v1.json", "testdata/lab/guard-v1.json", "testdata/lab/guard-protocol-v1.json.gz"
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
		"guard-protocol.txt":    {"report", protocol},
		"guard-protocol.json":   {"report", protocol, "-o", "json"},
	} {
		golden.Check(t, "testdata/lab/"+file, shown(args...))
	}
	for file, want := range map[string]string{isolation: `id="tradeoff-wide-t"`, guard: "<h3>In steady state</h3>", protocol: `id="ratios-wide-t"`} {
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
	golden.Check(t, "testdata/lab/guard-analysis.json", analysis.String()+"\n")
}

// quotes are what a page shows of what berth lab answers, piece by piece between ellipses.
func quotes(page string) (pieces []string) {
	for block := range strings.SplitSeq(page, "\n\n") {
		command, answer, _ := strings.Cut(block, "\n")
		if !strings.HasPrefix(command, "    $ berth lab") || strings.Contains(command, " probe ") { // which stores nothing
			continue
		}
		answer = strings.ReplaceAll("\n"+answer+"\n", "\n    ", "\n")
		for piece := range strings.SplitSeq(answer, "\n…\n") {
			if piece = strings.Trim(piece, "\n"); piece != "" {
				pieces = append(pieces, piece)
			}
		}
	}
	return pieces
}

// The tables and answers that are published are those of the results that are stored.
func TestPublishedTables(t *testing.T) {
	t.Parallel()
	computes(t)
	const docs = "../../docs/"
	outputs := map[string]string{} // by page
	for result, at := range map[string]struct{ page, head string }{
		"io.json.gz": {"experiments/resources.md", "scenario"}, "memory.json.gz": {"experiments/resources.md", "scenario"},
		"net.json.gz":        {"experiments/net.md", "scenario"},
		"redis.json.gz":      {"experiments/your-program.md", "scenario"},
		"neighbours.json.gz": {"experiments/neighbours.md", "neighbour"}, "neighbours-switch.json.gz": {"measurements/neighbours-whole.md", "neighbour"},
		"limits-noise.json.gz": {"measurements/neighbours-whole.md", "servers"},
		"limits.json.gz":       {"experiments/limits.md", "servers"}, "routing.json.gz": {"experiments/routing.md", "servers"},
		"quick-1.json.gz": {"experiments/quick.md", "cell"}, "quick-2.json.gz": {"experiments/quick.md", "cell"}, "quick-3.json.gz": {"experiments/quick.md", "cell"},
		"default-runs-awake/b09.json.gz": {"experiments/isolation.md", "scenario"}, "pinning.json.gz": {"experiments/pinning.md", "cell"}, "cache.json.gz": {"experiments/cache.md", "cell"}, "power.json.gz": {"experiments/power.md", "cell"},
		"colocate.json.gz": {"experiments/colocate.md", "mode"}, "colocate-wrk.json.gz": {"experiments/colocate.md", "mode"}, "colocate-article.json.gz": {"experiments/colocate.md", "mode"},
		"services.json.gz": {"experiments/services.md", "placement"}, "sixteen-cpus/isolation-1.json.gz": {"measurements/sixteen-cpus.md", "scenario"}, "sixteen-cpus/isolation-2.json.gz": {"measurements/sixteen-cpus.md", "scenario"},
		"sixteen-cpus/limits.json.gz": {"measurements/sixteen-cpus.md", "servers"}, "sixteen-cpus/cache.json.gz": {"measurements/sixteen-cpus.md", "cell"}, "sixteen-cpus/pinning.json.gz": {"measurements/sixteen-cpus.md", "cell"}, "sixteen-cpus/quick.json.gz": {"measurements/sixteen-cpus.md", "cell"},
		"benchmark.json.gz": {"experiments/benchmark.md", "scenario"},
	} {
		text, err := os.ReadFile(docs + at.page)
		if err != nil {
			t.Fatal(err)
		}
		out, errs, code := berth(t, "lab", "report", docs+"measurements/results/"+result)
		if code != exitOK {
			t.Fatalf("%s: exit %d, %s", result, code, errs)
		}
		outputs[at.page] += out
		_, table, _ := strings.Cut(out, "\n"+at.head+" ")
		table, _, _ = strings.Cut(at.head+" "+table, "\n\n")
		indented := "    " + strings.ReplaceAll(table, "\n", "\n    ")
		if len(table) < 200 || !strings.Contains(string(text), indented) {
			t.Errorf("%s lacks the table of %s:\n%s", at.page, result, indented)
		}
	}
	answers := 0
	for page, out := range outputs {
		text, err := os.ReadFile(docs + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, quote := range quotes(string(text)) {
			if answers++; !strings.Contains(out, quote) {
				t.Errorf("no stored result of %s answers:\n%s", page, quote)
			}
		}
	}
	if answers < 8 {
		t.Errorf("%d answers are quoted, want 8 or more", answers)
	}
}
