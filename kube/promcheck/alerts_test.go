package promcheck

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/template"
	"go.yaml.in/yaml/v3"
)

// alertsFile has tests of the alerts, as promtool reads them.
const alertsFile = "../../packaging/prometheus/berth-rules-test.yaml"

// fired is an alert that fires.
type fired struct {
	Labels      map[string]string `yaml:"exp_labels"`
	Annotations map[string]string `yaml:"exp_annotations"`
}

func (f fired) String() string { return fmt.Sprintf("%v %v", f.Labels, f.Annotations) }

// fires returns what an alert comes to after a while: of each series that its expression has found at
// every evaluation for as long as it says, its labels, and the annotations with all filled in.
func fires(t *testing.T, r *rulefmt.Rule, all recorded, every, after time.Duration) (some []fired) {
	t.Helper()
	since := map[uint64]time.Duration{}
	var found promql.Vector
	for now := time.Duration(0); now <= after; now += every {
		was := since
		since = map[uint64]time.Duration{}
		found = ask(t, all, time.Unix(0, 0).Add(now), r.Expr)
		for _, s := range found {
			hash := s.Metric.Hash()
			since[hash] = now
			if began, ok := was[hash]; ok {
				since[hash] = began
			}
		}
	}
	for _, s := range found {
		if after-since[s.Metric.Hash()] < time.Duration(r.For) {
			continue
		}
		is := fired{labels.NewBuilder(s.Metric).Del(model.MetricNameLabel).Labels().Map(), map[string]string{}}
		data := template.AlertTemplateData(s.Metric.Map(), nil, "", s)
		for name, text := range r.Annotations {
			const variables = "{{$labels := .Labels}}{{$value := .Value}}"
			filled, err := template.NewTemplateExpander(t.Context(), variables+text, r.Alert, data, model.Time(after.Milliseconds()), nil, &url.URL{}, nil).Expand()
			if err != nil {
				t.Errorf("%s: %s: %v", r.Alert, name, err)
			}
			is.Annotations[name] = filled
		}
		maps.Copy(is.Labels, r.Labels)
		some = append(some, is)
	}
	return some
}

// Each alert fires where its tests say so, with the labels and the words that they say, and nowhere
// else.
func TestAlerts(t *testing.T) {
	t.Parallel()
	var tests struct {
		Every model.Duration `yaml:"evaluation_interval"`
		Tests []struct {
			Name   string
			Step   model.Duration                    `yaml:"interval"`
			Series []struct{ Series, Values string } `yaml:"input_series"`
			Alerts []struct {
				After model.Duration `yaml:"eval_time"`
				Alert string         `yaml:"alertname"`
				Want  []fired        `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(read(t, alertsFile), &tests); err != nil {
		t.Fatal(err)
	}
	alerts, untested := map[string]*rulefmt.Rule{}, map[string]bool{}
	for _, r := range rules(t) {
		if r.KeepFiringFor != 0 {
			t.Errorf("%s: keep_firing_for is not known here", r.Alert)
		}
		if r.Alert != "" {
			alerts[r.Alert], untested[r.Alert] = &r, true
		}
	}
	for _, test := range tests.Tests {
		t.Run(test.Name, func(t *testing.T) {
			var all recorded
			for _, s := range test.Series {
				of, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(s.Series + " " + s.Values)
				if err != nil {
					t.Fatal(err)
				}
				var samples []promql.FPoint
				for i, v := range values {
					if !v.Omitted {
						samples = append(samples, promql.FPoint{T: int64(i) * time.Duration(test.Step).Milliseconds(), F: v.Value})
					}
				}
				all = append(all, promql.NewStorageSeries(promql.Series{Metric: of, Floats: samples}))
			}
			for _, a := range test.Alerts {
				r := alerts[a.Alert]
				if r == nil {
					t.Fatalf("there is no alert %s", a.Alert)
				}
				is := fires(t, r, all, time.Duration(tests.Every), time.Duration(a.After))
				same := func(x, y fired) bool {
					return maps.Equal(x.Labels, y.Labels) && maps.Equal(x.Annotations, y.Annotations)
				}
				if !slices.EqualFunc(is, a.Want, same) {
					t.Errorf("%s after %s: %v, want %v", a.Alert, a.After, is, a.Want)
				}
				if len(a.Want) > 0 {
					delete(untested, a.Alert)
				}
			}
		})
	}
	for name := range untested {
		t.Errorf("%s fires in no test", name)
	}
}
