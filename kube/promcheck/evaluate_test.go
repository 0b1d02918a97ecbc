package promcheck

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// scrapeFile is what an agent with all that it can read tells: agent/web keeps it current.
const scrapeFile = "../../agent/web/testdata/scrape.txt"

// recorded are series in memory.
type recorded []storage.Series

func (r recorded) Querier(_, _ int64) (storage.Querier, error) { return querier{all: r}, nil }

type querier struct {
	storage.LabelQuerier // of which the engine asks nothing
	all                  recorded
}

func (querier) Close() error { return nil }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	s := &selected{at: -1}
	for _, series := range q.all {
		all := true
		for _, m := range matchers {
			all = all && m.Matches(series.Labels().Get(m.Name))
		}
		if all {
			s.all = append(s.all, series)
		}
	}
	return s
}

type selected struct {
	all recorded
	at  int
}

func (s *selected) Next() bool                      { s.at++; return s.at < len(s.all) }
func (s *selected) At() storage.Series              { return s.all[s.at] }
func (*selected) Err() error                        { return nil }
func (*selected) Warnings() annotations.Annotations { return nil }

// record is ten minutes of what a scrape tells, one in 15 s, as Prometheus stores it. What counts
// has risen by one each time.
func record(t *testing.T, scrape []byte) (all recorded, now time.Time) {
	t.Helper()
	now = time.Unix(100_000, 0)
	counts := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(scrape)); lines.Scan(); {
		line := lines.Text()
		if kind, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, of, _ := strings.Cut(kind, " ")
			counts[name] = of != "gauge"
			continue
		}
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		metric, err := parser.NewParser(parser.Options{}).ParseMetric(line[:i])
		if err != nil {
			t.Fatal(err)
		}
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		name := regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(metric.Get("__name__"), "")
		with := labels.NewBuilder(metric).Set("job", "berth").Set("instance", "n1:9750").Labels()
		var samples []promql.FPoint
		for back := 40; back >= 0; back-- {
			v := value
			if counts[name] || counts[metric.Get("__name__")] {
				v += float64(40 - back)
			}
			samples = append(samples, promql.FPoint{T: now.Add(-time.Duration(back) * 15 * time.Second).UnixMilli(), F: v})
		}
		all = append(all, promql.NewStorageSeries(promql.Series{Metric: with, Floats: samples}))
		if with.Has("workload") { // the scrape has no pod: these labels are the test's, as a container has them
			of := labels.NewBuilder(with).Set("workload", "shop/db-0/"+with.Get("workload")).Set("namespace", "shop").Set("pod", "db-0").Set("container", with.Get("workload"))
			all = append(all, promql.NewStorageSeries(promql.Series{Metric: of.Labels(), Floats: samples}))
		}
	}
	return all, now
}

// ask returns what a query finds in what was recorded.
func ask(t *testing.T, all recorded, now time.Time, query string) promql.Vector {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	defer engine.Close()
	q, err := engine.NewInstantQuery(t.Context(), all, nil, query, now)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer q.Close()
	vector, err := q.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return slices.Clone(vector)
}

// found returns the labels of each series that a query finds.
func found(t *testing.T, all recorded, now time.Time, query string) (some []labels.Labels) {
	t.Helper()
	for _, s := range ask(t, all, now, query) {
		some = append(some, s.Metric)
	}
	return some
}

// Each query of the dashboard finds something in what an agent tells, with the labels that its
// legend names, and each variable something to choose from.
func TestDashboardFinds(t *testing.T) {
	t.Parallel()
	var board struct {
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(read(t, dashboardFile), &board); err != nil {
		t.Fatal(err)
	}
	all, now := record(t, append(read(t, scrapeFile), targets...))
	variable := regexp.MustCompile(`"\$[a-z]+"`)
	find := func(query string) []labels.Labels {
		return found(t, all, now, variable.ReplaceAllString(strings.ReplaceAll(query, "$__rate_interval", "5m"), `".+|"`))
	}
	values := regexp.MustCompile(`^label_values\((.+), ([a-z]+)\)$`)
	for _, v := range board.Templating.List {
		if v.Type != "query" {
			continue
		}
		of := values.FindStringSubmatch(v.Definition)
		if of == nil {
			t.Fatalf("variable %s: %q is not known here", v.Name, v.Definition)
		}
		some := find(of[1])
		if !slices.ContainsFunc(some, func(s labels.Labels) bool { return s.Has(of[2]) }) {
			t.Errorf("variable %s has no value: of %s none has %s", v.Name, some, of[2])
		}
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			query := target.Expr
			some := find(query)
			if len(some) == 0 {
				t.Errorf("panel %q: nothing is found by %s", p.Title, query)
			}
			for _, label := range regexp.MustCompile(`{{([a-z_]+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				for _, s := range some {
					if !s.Has(label[1]) {
						t.Errorf("panel %q: its legend names %s, and %s has none", p.Title, label[1], s)
					}
				}
			}
		}
	}
}

// Each recording rule finds something, in what an agent tells or other rules record.
func TestRecordingRulesFind(t *testing.T) {
	t.Parallel()
	all, now := record(t, read(t, scrapeFile))
	count := 0
	for _, r := range rules(t) {
		if r.Record == "" {
			continue
		}
		some := found(t, all, now, r.Expr)
		if len(some) == 0 {
			t.Errorf("%s: nothing is found by %s", r.Record, r.Expr)
		}
		count++
		for _, of := range some {
			is := labels.NewBuilder(of).Set(model.MetricNameLabel, r.Record).Labels()
			all = append(all, promql.NewStorageSeries(promql.Series{Metric: is, Floats: []promql.FPoint{{T: now.UnixMilli(), F: 1}}}))
		}
	}
	if count == 0 {
		t.Error("there is no recording rule")
	}
}

// targets are what Prometheus, and the program itself, tell of every target.
const targets = `# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 5
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 3e7
`
