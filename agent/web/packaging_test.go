package web

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/guard/control"
)

const (
	docFile       = "../../docs/metrics.md"
	apiFile       = "../../docs/api.md"
	alertsFile    = "../../docs/alerts.md"
	rulesFile     = "../../packaging/prometheus/berth-rules.yaml"
	rulesTestFile = "../../packaging/prometheus/berth-rules-test.yaml"
	dashboardFile = "../../packaging/grafana/berth.json"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every metric has a row in the documentation with its type and labels, and every
// row a metric.
func TestDocumented(t *testing.T) {
	t.Parallel()
	rows := map[string][]string{}
	for line := range strings.Lines(readFile(t, docFile)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) == 6 && strings.HasPrefix(cells[1], " `") {
			rows[strings.Trim(cells[1], " `")] = cells
		}
	}
	if rows["process_*"] == nil {
		t.Error("process_* is not documented")
	}
	delete(rows, "process_*")
	for name, f := range gathered(t) {
		row := rows[name]
		delete(rows, name)
		if strings.HasPrefix(name, "process_") {
			continue
		}
		if row == nil {
			t.Errorf("%s is not documented", name)
			continue
		}
		if got, want := strings.TrimSpace(row[2]), strings.ToLower(f.GetType().String()); got != want {
			t.Errorf("%s is documented as %s, is a %s", name, got, want)
		}
		for _, pair := range f.Metric[0].Label {
			implied := strings.HasPrefix(name, "berth_workload_") && (pair.GetName() == "workload" || pair.GetName() == "class")
			if !implied && !strings.Contains(row[3], "`"+pair.GetName()+"`") {
				t.Errorf("%s: label %s is not documented", name, pair.GetName())
			}
		}
	}
	for name := range rows {
		t.Errorf("%s is documented and does not exist", name)
	}
}

var (
	metricName = regexp.MustCompile(`\b(berth|node|process|up)(_[a-z0-9_]+)?\b`)
	quoted     = regexp.MustCompile(`"[^"]*"`)
	byLabels   = regexp.MustCompile(`\b(by|on)\s*\([^)]*\)`)
)

// unknown returns the metrics of an expression that do not exist.
func unknown(all map[string]*dto.MetricFamily, expr string) (names []string) {
	bare := byLabels.ReplaceAllString(quoted.ReplaceAllString(expr, ""), "")
	for _, name := range metricName.FindAllString(bare, -1) {
		if f := all[strings.TrimSuffix(name, "_bucket")]; f == nil && name != "up" {
			names = append(names, name)
		}
	}
	return names
}

func TestUnknownIsFound(t *testing.T) {
	t.Parallel()
	got := unknown(gathered(t), `sum by (node_x) (rate(berth_nothing_total{kind="node_y"}[5m])) / node_ipc > on (node) up + node_more`)
	if want := []string{"berth_nothing_total", "node_more"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Record      string            `json:"record"`
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// ruleTests is what promtool reads.
type ruleTests struct {
	Tests []struct {
		InputSeries []struct {
			Series string `json:"series"`
		} `json:"input_series"`
		AlertRuleTest []struct {
			Alertname string `json:"alertname"`
			ExpAlerts []any  `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

func allRules(t *testing.T) (all []rule) {
	t.Helper()
	var file rules
	if err := yaml.UnmarshalStrict([]byte(readFile(t, rulesFile)), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("no rules")
	}
	return all
}

// Every alert uses metrics that exist, says what it means and what to do, and has
// a test in which it fires and one in which it does not.
func TestRules(t *testing.T) {
	t.Parallel()
	var tests ruleTests
	if err := yaml.Unmarshal([]byte(readFile(t, rulesTestFile)), &tests); err != nil {
		t.Fatal(err)
	}
	all, fires, silent := gathered(t), map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, s := range test.InputSeries {
			if names := unknown(all, s.Series); len(names) > 0 {
				t.Errorf("the tests feed %q, which do not exist", names)
			}
		}
		for _, a := range test.AlertRuleTest {
			fires[a.Alertname] = fires[a.Alertname] || len(a.ExpAlerts) > 0
			silent[a.Alertname] = silent[a.Alertname] || len(a.ExpAlerts) == 0
		}
	}
	doc := readFile(t, alertsFile)
	for _, r := range allRules(t) {
		if names := unknown(all, r.Expr); len(names) > 0 {
			t.Errorf("%s%s uses %q, which do not exist", r.Alert, r.Record, names)
		}
		if r.Record != "" {
			continue
		}
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: fires in a test: %t, is silent in one: %t", r.Alert, fires[r.Alert], silent[r.Alert])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Labels["severity"] == "" {
			t.Errorf("%s lacks a summary, a description or a severity", r.Alert)
		}
		if want := "docs/alerts.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want {
			t.Errorf("%s: runbook %q, want %q", r.Alert, r.Annotations["runbook"], want)
		}
		if !strings.Contains(doc, "\n## "+r.Alert+"\n") {
			t.Errorf("%s has no runbook in %s", r.Alert, alertsFile)
		}
	}
}

// The dashboard uses metrics that exist. Its form is checked by Grafana's schema (kube/promcheck).
func TestDashboard(t *testing.T) {
	t.Parallel()
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	all := gathered(t)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			if names := unknown(all, q.Expr); len(names) > 0 {
				t.Errorf("panel %q uses %q, which do not exist", p.Title, names)
			}
		}
	}
}

// The page of the API says what each kind of event is.
func TestDocsNameEveryEvent(t *testing.T) {
	t.Parallel()
	text := readFile(t, apiFile)
	for _, kind := range eventKinds() {
		if !regexp.MustCompile("(?m)^\\|[^|]*`" + regexp.QuoteMeta(string(kind)) + "`").MatchString(text) {
			t.Errorf("%s has no row for %s", apiFile, kind)
		}
	}
	_, steps, _ := strings.Cut(text, "\n## Steps of the guard\n")
	for o := control.Outcome(0); o.Known(); o++ {
		if o != control.Adopted && !regexp.MustCompile("(?m)^\\|[^|]*`"+o.String()+"`").MatchString(steps) {
			t.Errorf("%s has no row for the outcome %s", apiFile, o)
		}
	}
}
