// Package promcheck checks, with the parser and the engine of Prometheus itself, the rules and the
// dashboard that Berth brings: that each query is one, that each metric in it is in the table of
// docs/metrics.md, which a test of agent/web keeps equal to what a scrape shows, and that it finds
// something in that scrape.
package promcheck

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	rulesFile     = "../../packaging/prometheus/berth-rules.yaml"
	dashboardFile = "../../packaging/grafana/berth.json"
	metricsDoc    = "../../docs/metrics.md"
)

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// documented are the metrics of the tables, and those of every target of Prometheus.
func documented(t *testing.T) []string {
	t.Helper()
	names := []string{"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\|").FindAllStringSubmatch(string(read(t, metricsDoc)), -1) {
		names = append(names, row[1])
	}
	if len(names) < 60 {
		t.Fatalf("only %d metrics in %s", len(names), metricsDoc)
	}
	return names
}

// check returns what is wrong with a query.
func check(known []string, query string) (wrong []string) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return []string{err.Error()}
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if v, ok := node.(*parser.VectorSelector); ok && !slices.Contains(known, strings.TrimSuffix(v.Name, "_bucket")) {
			wrong = append(wrong, "there is no metric "+v.Name)
		}
		return nil
	})
	return wrong
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]int{
		`sum by (pod) (rate(berth_a_total{class="BE"}[5m]))`: 0, `berth_a_total / node_b`: 1, `rate(berth_a_total)`: 1, `sum(`: 1,
	} {
		if got := check([]string{"berth_a_total"}, query); len(got) != want {
			t.Errorf("%s: %q", query, got)
		}
	}
}

// rules are those of the file, as Prometheus itself reads it.
func rules(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	file, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func TestRules(t *testing.T) {
	t.Parallel()
	known, alerts := documented(t), []string{}
	for _, r := range rules(t) { // a rule may use what another records
		if r.Record != "" {
			known = append(known, r.Record)
		}
	}
	for _, r := range rules(t) {
		alerts = append(alerts, r.Alert)
		for _, wrong := range check(known, r.Expr) {
			t.Errorf("%s%s: %s", r.Alert, r.Record, wrong)
		}
	}
	for _, want := range []string{"CacheContention", "IPCDegradation"} {
		if !slices.Contains(alerts, want) {
			t.Errorf("no alert %s", want)
		}
	}
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, dashboardFile), &board); err != nil {
		t.Fatal(err)
	}
	known, queries := documented(t), 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			queries++
			// What Grafana puts in their place; other variables are within quotes.
			query := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			for _, wrong := range check(known, query) {
				t.Errorf("panel %q: %s: %s", p.Title, target.Expr, wrong)
			}
		}
	}
	if queries < 30 {
		t.Errorf("%d queries", queries)
	}
}
