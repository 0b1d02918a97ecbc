package guarded

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/internal/jsonschema"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/benchmark"
	"berth.dev/berth/lab/beside"
	"berth.dev/berth/lab/colocate"
	"berth.dev/berth/lab/limits"
	"berth.dev/berth/lab/neighbours"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/services"
)

// The schemas in docs/ are generated from the Go types and their comments; go
// test -update writes them.
func TestSchemas(t *testing.T) {
	comments, err := jsonschema.Comments(".", "..", "../limits", "../colocate", "../services", "../beside", "../load", "../noise", "../program", "../stats", "../report", "../../machine", "../../guard/control", "../../guard/detect", "../../kernel/cgroup", "../../watch")
	if err != nil {
		t.Fatal(err)
	}
	result, err := lab.ReadFile("../../internal/cli/testdata/lab/isolation-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	guardResult, err := ReadFile("../../internal/cli/testdata/lab/guard-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	protocol, err := readProtocolFile("../../internal/cli/testdata/lab/guard-protocol-v1.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	m, err := lab.Measure(result)
	if err != nil {
		t.Fatal(err)
	}
	side := report.Side{Name: "a", Kind: "isolation", Settings: &result.Experiment, Head: &result.Header, Judged: []report.Judged{report.JudgedIsolation(m)}}
	c, err := report.Compare(side, side)
	if err != nil {
		t.Fatal(err)
	}
	var doc bytes.Buffer
	if err := report.JSON(&doc, report.NewDocument(result, m.Analyse())); err != nil {
		t.Fatal(err)
	}
	served := limits.Limits()
	if err := lab.Load("../../docs/measurements/results/limits.json.gz", limits.Schema("limits"), served); err != nil {
		t.Fatal(err)
	}
	power, quick := beside.Power(), beside.Quick()
	for of, x := range map[string]*beside.Experiment{"power": power, "quick-1": quick} {
		if err := lab.Load("../../docs/measurements/results/"+of+".json.gz", x.Schema, x); err != nil {
			t.Fatal(err)
		}
	}
	a, err := Analyse(guardResult)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		file, schema, title string
		of                  reflect.Type
		examples            []any
	}{
		{"result-schema.json", lab.Schema, "A run of berth lab, as stored in result.json", reflect.TypeFor[lab.Result](), []any{result, &lab.Result{}}},
		{"report-schema.json", report.Schema, "What berth lab -o json and berth lab report -o json print", reflect.TypeFor[report.Document](), []any{json.RawMessage(doc.Bytes())}},
		{"compare-schema.json", report.ComparisonSchema, "What berth lab compare -o json prints", reflect.TypeFor[report.Comparison](), []any{c}},
		{"demo-schema.json", report.DemoSchema, "What berth demo -o json prints", reflect.TypeFor[report.DemoDocument](), []any{report.NewDemoDocument(result, m.Tell())}},
		{"lab-guard-schema.json", Schema, "A run of berth lab guard, as stored in result.json", reflect.TypeFor[Result](), []any{guardResult, &Result{}}},
		{"lab-limits-schema.json", limits.Schema("limits"), "A run of the experiments limits, limits-ramp, limits-noise and routing, as stored in result.json", reflect.TypeFor[limits.Experiment](), []any{served, &limits.Experiment{}}},
		{"lab-colocate-schema.json", colocate.Schema, "A run of the experiment colocate, as stored in result.json", reflect.TypeFor[colocate.Experiment](), []any{colocate.New()}},
		{"lab-beside-schema.json", beside.Quick().Schema, "A run of the experiments quick, pinning, numa, smt, cache and power, as stored in result.json", reflect.TypeFor[beside.Experiment](), []any{power, quick, beside.NUMA()}},
		{"lab-neighbours-schema.json", neighbours.Schema, "A run of the experiment neighbours, as stored in result.json", reflect.TypeFor[neighbours.Result](), []any{neighbours.New()}},
		{"lab-services-schema.json", services.Schema, "A run of the experiment services, as stored in result.json", reflect.TypeFor[services.Experiment](), []any{services.New()}},
		{"lab-benchmark-schema.json", benchmark.Schema, "A run of the experiment benchmark, as stored in result.json", reflect.TypeFor[benchmark.Result](), []any{benchmark.Default()}},
		{"lab-guard-protocol-schema.json", ProtocolSchema, "A run of berth lab guard --protocol, as stored in result.json", reflect.TypeFor[ProtocolResult](), []any{protocol, &ProtocolResult{Experiment: DefaultProtocol()}}},
		{"lab-guard-protocol-report-schema.json", ProtocolReportSchema, "What berth lab guard --protocol -o json prints", reflect.TypeFor[ProtocolReport](), []any{NewProtocolReport(protocol, AnalyseProtocol(protocol))}},
		{"lab-guard-report-schema.json", ReportSchema, "What berth lab guard -o json prints", reflect.TypeFor[Report](), []any{NewReport(guardResult, a)}},
	} {
		g := &jsonschema.Generator{Ref: "#/$defs/", Comments: comments}
		root := g.Of(tt.of)
		schema := map[string]any{
			"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": tt.schema, "title": tt.title, "$ref": root["$ref"], "$defs": g.Defs(),
		}
		text, err := json.MarshalIndent(schema, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "../../docs/"+tt.file, append(text, '\n'))
		c := validator.NewCompiler()
		if err := c.AddResource(tt.file, schema); err != nil {
			t.Fatal(err)
		}
		valid, err := c.Compile(tt.file)
		if err != nil {
			t.Fatal(err)
		}
		check := func(text []byte) error {
			value, err := validator.UnmarshalJSON(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			return valid.Validate(value)
		}
		for _, example := range tt.examples {
			encoded, err := json.Marshal(example)
			if err != nil {
				t.Fatal(err)
			}
			if err := check(encoded); err != nil {
				t.Errorf("%s does not describe what is written: %v", tt.file, err)
			}
		}
		if tt.of == reflect.TypeFor[lab.Result]() || tt.of == reflect.TypeFor[Result]() {
			for _, bad := range []string{`{}`, `{"schema":1}`, `[]`} {
				if check([]byte(bad)) == nil {
					t.Errorf("%s takes %s for a result", tt.file, bad)
				}
			}
		}
	}
}
