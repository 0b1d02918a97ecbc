package report

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/guarded"
)

// The schemas in docs/ are generated from the Go types and their comments; go
// test -update writes them.
func TestSchemas(t *testing.T) {
	comments := fieldComments(t)
	r, a := fakeResult(t, 1), fakeAnalysis()
	r.Rounds[0].Load.Errors = map[string]int{"reset": 1}
	c, err := Compare(Side{"a", r, a}, Side{"b", r, a})
	if err != nil {
		t.Fatal(err)
	}
	var doc bytes.Buffer
	if err := JSON(&doc, r, a); err != nil {
		t.Fatal(err)
	}
	guardResult, guardReport := guardedExample(t, r)
	for _, tt := range []struct {
		file, schema, title string
		of                  reflect.Type
		examples            []any
	}{
		{"result-schema.json", lab.Schema, "A run of berth lab, as stored in result.json", reflect.TypeFor[lab.Result](), []any{r, &lab.Result{}}},
		{"report-schema.json", Schema, "What berth lab -o json and berth lab report -o json print", reflect.TypeFor[Document](), []any{json.RawMessage(doc.Bytes())}},
		{"compare-schema.json", ComparisonSchema, "What berth lab compare -o json prints", reflect.TypeFor[Comparison](), []any{c}},
		{"lab-guard-schema.json", guarded.Schema, "A run of berth lab guard, as stored in result.json", reflect.TypeFor[guarded.Result](), []any{guardResult, &guarded.Result{}}},
		{"lab-guard-report-schema.json", guarded.ReportSchema, "What berth lab guard -o json prints", reflect.TypeFor[guarded.Report](), []any{guardReport}},
	} {
		s := &schema{comments: comments, defs: map[string]any{}}
		root := s.of(tt.of)
		text, err := json.MarshalIndent(map[string]any{
			"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": tt.schema, "title": tt.title, "$ref": root["$ref"], "$defs": s.defs,
		}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		goldenDoc(t, tt.file, append(text, '\n'))
		for _, example := range tt.examples {
			encoded, err := json.Marshal(example)
			if err != nil {
				t.Fatal(err)
			}
			var value any
			if err := json.Unmarshal(encoded, &value); err != nil {
				t.Fatal(err)
			}
			if err := s.check(root, value); err != nil {
				t.Errorf("%s does not describe what is written: %v", tt.file, err)
			}
		}
		if tt.of == reflect.TypeFor[lab.Result]() || tt.of == reflect.TypeFor[guarded.Result]() {
			for _, bad := range []string{`{}`, `{"schema":1}`, `[]`} {
				var value any
				if err := json.Unmarshal([]byte(bad), &value); err != nil {
					t.Fatal(err)
				}
				if s.check(root, value) == nil {
					t.Errorf("%s takes %s for a result", tt.file, bad)
				}
			}
		}
	}
}

// guardedExample is a result of berth lab guard in which nothing is missing.
func guardedExample(t *testing.T, steady *lab.Result) (*guarded.Result, *guarded.Report) {
	t.Helper()
	one := 1.0
	event := control.Event{
		Mode: control.Enforce, Outcome: control.Kept, Victim: "tenant", Suspect: "neighbour", Resource: detect.IO, Confidence: 0.5,
		Evidence: []detect.Evidence{{Signal: detect.IOPressure, Value: 1, Baseline: &one}},
		Action:   &control.Action{Remedy: detect.IOWeight, Group: "neighbour", Limits: cgroup.Limits{IOWeight: 10, Idle: cgroup.On, IOMax: []cgroup.IOMax{{Device: "7:0"}}}},
		Changes:  []control.Change{{Path: "a", From: "b", To: "c"}}, Effect: &control.Effect{Before: 2, After: 1}, Skipped: []control.Skip{{Remedy: detect.Weight, Reason: "x"}},
	}
	r := &guarded.Result{
		Schema: guarded.Schema, Experiment: guarded.Default(), Steady: steady, Skipped: []lab.Skipped{{Scenario: guarded.Quota}},
		Runs: []guarded.Trial{{
			Fault: guarded.IO, Number: 1, BinsFrom: -1, End: 2, Changed: []string{"x"}, Errors: []string{"y"},
			Bins:     slices.Repeat([]guarded.Bin{{Response: []int64{1000, 2000}, Censored: 1}}, 80),
			Findings: []guarded.Finding{{At: 1, Resource: detect.IO, Suspect: lab.Neighbour}},
			Events:   []guarded.Event{{At: 1, Event: event, Words: event.String()}},
		}},
	}
	a, err := guarded.Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	return r, guarded.NewReport(r, a)
}

// goldenDoc is golden for a file in docs/.
func goldenDoc(t *testing.T, name string, got []byte) {
	t.Helper()
	golden(t, filepath.Join("..", "..", "..", "docs", name), got)
}

// schema collects the definitions of named struct types.
type schema struct {
	comments map[string]string // "lab.Round.Block"
	defs     map[string]any
}

var textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()

// of returns the schema of a type; structs become definitions.
func (s *schema) of(t reflect.Type) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t.Implements(textMarshaler):
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return map[string]any{"anyOf": []any{s.of(t.Elem()), map[string]any{"type": "null"}}}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Slice:
		return map[string]any{"type": []any{"array", "null"}, "items": s.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": []any{"object", "null"}, "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		name := t.String()
		if _, ok := s.defs[name]; !ok {
			s.defs[name] = nil // stops recursion
			s.defs[name] = s.structOf(t)
		}
		return map[string]any{"$ref": "#/$defs/" + name}
	}
	panic("no schema for " + t.String())
}

func (s *schema) structOf(t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []any{}
	s.fields(t, properties, &required)
	out := map[string]any{"type": "object", "properties": properties, "additionalProperties": false, "required": required}
	if about := s.comments[t.String()]; about != "" {
		out["description"] = about
	}
	return out
}

func (s *schema) fields(t reflect.Type, properties map[string]any, required *[]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag == "":
			s.fields(f.Type, properties, required)
			continue
		case !f.IsExported() || tag == "-":
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		property := s.of(f.Type)
		if about := s.comments[t.String()+"."+f.Name]; about != "" {
			property["description"] = about
		}
		properties[tag] = property
		if !strings.Contains(options, "omit") {
			*required = append(*required, tag)
		}
	}
}

// check validates a decoded JSON value: the parts of JSON schema that are used here.
func (s *schema) check(rule map[string]any, value any) error {
	if ref, ok := rule["$ref"].(string); ok {
		def, _ := s.defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
		return s.check(def, value)
	}
	if either, ok := rule["anyOf"].([]any); ok {
		if value == nil {
			return nil
		}
		return s.check(either[0].(map[string]any), value)
	}
	switch v := value.(type) {
	case nil:
		return expect(rule, "null")
	case string:
		return expect(rule, "string")
	case bool:
		return expect(rule, "boolean")
	case float64:
		if expect(rule, "integer") == nil && v == float64(int64(v)) {
			return nil
		}
		return expect(rule, "number")
	case []any:
		for i, item := range v {
			if err := s.check(rule["items"].(map[string]any), item); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return expect(rule, "array")
	case map[string]any:
		return s.checkObject(rule, v)
	}
	return fmt.Errorf("a value of type %T", value)
}

func (s *schema) checkObject(rule, value map[string]any) error {
	if err := expect(rule, "object"); err != nil {
		return err
	}
	properties, _ := rule["properties"].(map[string]any)
	required, _ := rule["required"].([]any)
	for _, name := range required {
		if _, ok := value[name.(string)]; !ok {
			return fmt.Errorf("%s is missing", name)
		}
	}
	for name, v := range value {
		sub, ok := properties[name].(map[string]any)
		if !ok {
			sub, ok = rule["additionalProperties"].(map[string]any)
		}
		if !ok {
			return fmt.Errorf("%s is not described", name)
		}
		if err := s.check(sub, v); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func expect(rule map[string]any, kind string) error {
	if rule["type"] == kind {
		return nil
	}
	if several, ok := rule["type"].([]any); ok && slices.Contains(several, any(kind)) {
		return nil
	}
	return fmt.Errorf("%s where %v is described", kind, rule["type"])
}

// fieldComments reads what the Go sources say of the types and their fields.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{".", "..", "../load", "../noise", "../probe", "../stats", "../tenant", "../guarded", "../../machine", "../../guard/control", "../../guard/detect", "../../kernel/cgroup", "../../watch"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no sources in %s: %v", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			structComments(parsed, out)
		}
	}
	return out
}

func structComments(file *ast.File, out map[string]string) {
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.TYPE {
			continue
		}
		for _, spec := range group.Specs {
			named := spec.(*ast.TypeSpec)
			body, ok := named.Type.(*ast.StructType)
			if !ok {
				continue
			}
			prefix := file.Name.Name + "." + named.Name.Name
			out[prefix] = oneLine(group.Doc.Text())
			for _, field := range body.Fields.List {
				about := oneLine(field.Doc.Text() + " " + field.Comment.Text())
				for _, name := range field.Names {
					out[prefix+"."+name.Name] = about
				}
			}
		}
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
