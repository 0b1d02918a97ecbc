// Package promcheck checks, with the parser and the engine of Prometheus itself, the rules and the
// dashboard that Berth brings: that each query is one, that each metric in it is in the table of
// docs/metrics.md, which a test of agent/web keeps equal to what a scrape shows, and that it finds
// something in that scrape.
package promcheck

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
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

func TestRules(t *testing.T) {
	t.Parallel()
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct{ Alert, Record, Expr string }
		}
	}
	if err := yaml.Unmarshal(read(t, rulesFile), &file); err != nil {
		t.Fatal(err)
	}
	known, alerts := documented(t), []string{}
	for _, g := range file.Groups { // a rule may use what another records
		for _, r := range g.Rules {
			if r.Record != "" {
				known = append(known, r.Record)
			}
		}
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			alerts = append(alerts, r.Alert)
			for _, wrong := range check(known, r.Expr) {
				t.Errorf("%s %s%s: %s", g.Name, r.Alert, r.Record, wrong)
			}
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
