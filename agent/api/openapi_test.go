package api

import (
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
)

var update = flag.Bool("update", false, "rewrite docs/openapi.json")

type object = map[string]any

const documentFile = "../../docs/openapi.json"

// docs/openapi.json is made of the routes, the Go types and their comments;
// go test ./agent/api -run OpenAPI -update writes it.
func TestOpenAPIIsCurrent(t *testing.T) {
	t.Parallel()
	text, err := json.MarshalIndent(document(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got := string(text) + "\n"
	if *update {
		if err := os.WriteFile(documentFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(documentFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites):\n%s", documentFile, diff)
	}
}

// document is the OpenAPI document.
func document(t *testing.T) object {
	g := &generator{comments: map[string]string{}, schemas: object{}}
	for _, dir := range []string{".", "..", "../config", "../../place", "../../machine", "../../kernel", "../../kernel/cgroup", "../../watch", "../../guard", "../../guard/control", "../../guard/detect"} {
		g.read(t, dir)
	}
	paths := object{}
	for _, rt := range (&Server{}).routes() {
		item, ok := paths[rt.path].(object)
		if !ok {
			item = object{}
			paths[rt.path] = item
		}
		item[strings.ToLower(rt.method)] = g.operation(&rt)
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Berth agent", "version": "v1", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "The agent of one host, on a Unix socket: curl --unix-socket /run/berth/agent.sock http://agent/v1/workloads",
		},
		"servers":    []any{object{"url": "http://agent", "description": "the Unix socket; the host's name is not looked at"}},
		"paths":      paths,
		"components": object{"schemas": g.schemas},
	}
}

type generator struct {
	comments map[string]string // "pkg.Type" and "pkg.Type.Field"
	schemas  object
}

func (g *generator) operation(rt *route) object {
	op := object{"summary": rt.about, "operationId": strings.ToLower(rt.method) + strings.NewReplacer("/v1/", "-", "/{id}", "-one", "/", "-").Replace(rt.path)}
	var parameters []any
	if strings.Contains(rt.path, "{id}") {
		parameters = append(parameters, object{"name": "id", "in": "path", "required": true, "description": "the workload's id, escaped: its '/' as %2F, '.' and '..' as %2E and %2E%2E", "schema": object{"type": "string"}})
	}
	for _, p := range rt.query {
		parameters = append(parameters, object{"name": p.name, "in": "query", "description": p.about, "schema": object{"type": p.kind}})
	}
	if parameters != nil {
		op["parameters"] = parameters
	}
	if rt.body != nil {
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": g.of(rt.body)}}}
	}
	good := object{"description": "done"}
	if rt.answer != nil {
		kind := "application/json"
		if rt.stream {
			kind, good["description"] = "application/x-ndjson", "lines, each"
		}
		good["content"] = object{kind: object{"schema": g.of(rt.answer)}}
	}
	responses := object{strconv.Itoa(rt.status): good}
	byStatus := map[int][]string{}
	for _, k := range kinds() {
		if slices.Contains(rt.errors, k.name) || slices.Contains([]string{"request", "internal", "timeout", "cancelled", "busy"}, k.name) {
			byStatus[k.status] = append(byStatus[k.status], urn+k.name)
		}
	}
	for _, status := range []int{404, 405, 413} {
		byStatus[status] = append(byStatus[status], urn+"request")
	}
	for status, names := range byStatus {
		responses[strconv.Itoa(status)] = object{
			"description": strings.Join(names, ", "),
			"content":     object{"application/problem+json": object{"schema": g.of(reflect.TypeFor[Problem]())}},
		}
	}
	op["responses"] = responses
	return op
}

// of returns the schema of a type.
func (g *generator) of(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return object{}
	case t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return g.word(t)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.of(t.Elem())
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Slice:
		return object{"type": []any{"array", "null"}, "items": g.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.of(t.Elem())}
	case reflect.Struct:
		return g.named(t)
	}
	panic("no schema for " + t.String())
}

// word is a type that is written as text: its words, if there are few.
func (g *generator) word(t reflect.Type) object {
	if t.Name() == "Milli" || t.Name() == "Bytes" {
		return object{"type": []any{"string", "number"}}
	}
	out := object{"type": "string"}
	if t.Kind() != reflect.Int && t.Kind() != reflect.Uint8 {
		return out
	}
	var words []any
	for i := range 64 {
		v := reflect.New(t).Elem()
		if t.Kind() == reflect.Int {
			v.SetInt(int64(i))
		} else {
			v.SetUint(uint64(i))
		}
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		back := reflect.New(t)
		if err == nil && back.Interface().(encoding.TextUnmarshaler).UnmarshalText(text) == nil && back.Elem().Equal(v) {
			words = append(words, string(text))
		}
	}
	out["enum"] = words
	return out
}

func (g *generator) named(t reflect.Type) object {
	name := t.Name()
	if pkg := filepath.Base(t.PkgPath()); pkg != "api" {
		name = pkg + "." + name
	}
	ref := object{"$ref": "#/components/schemas/" + name}
	if _, ok := g.schemas[name]; ok {
		return ref
	}
	g.schemas[name] = nil // a type may have itself in it
	properties, required := object{}, []any{}
	g.fields(t, properties, &required)
	s := object{"type": "object", "properties": properties, "additionalProperties": false}
	if about := g.comments[filepath.Base(t.PkgPath())+"."+t.Name()]; about != "" {
		s["description"] = about
	}
	if len(required) > 0 {
		s["required"] = required
	}
	g.schemas[name] = s
	return ref
}

func (g *generator) fields(t reflect.Type, properties object, required *[]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		if f.Anonymous && name == "" {
			g.fields(f.Type, properties, required)
			continue
		}
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		s := g.of(f.Type)
		if f.Type.Kind() == reflect.Pointer && !strings.Contains(options, "omit") {
			s = object{"anyOf": []any{s, object{"type": "null"}}}
		}
		if about := g.comments[filepath.Base(t.PkgPath())+"."+t.Name()+"."+f.Name]; about != "" {
			s = maps.Clone(s)
			s["description"] = about
		}
		properties[name] = s
		// What may be left out of a request differs; an answer has it.
		if !strings.Contains(options, "omit") && required != nil && !lenient(t) {
			*required = append(*required, name)
		}
	}
}

// lenient are types that a request has too: there what is absent is zero.
func lenient(t reflect.Type) bool {
	return slices.Contains([]string{"Spec", "Request", "Limits", "IOMax", "Owner", "Amount", "DeviceRequest", "Affinity", "move"}, t.Name())
}

// read reads the comments of a package's types and fields.
func (g *generator) read(t *testing.T, dir string) {
	t.Helper()
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			general, ok := d.(*ast.GenDecl)
			if !ok || general.Tok != token.TYPE {
				continue
			}
			for _, s := range general.Specs {
				g.comment(filepath.Base(abs), s.(*ast.TypeSpec), general.Doc)
			}
		}
	}
}

func (g *generator) comment(pkg string, s *ast.TypeSpec, doc *ast.CommentGroup) {
	one := func(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
	if s.Doc != nil {
		doc = s.Doc
	}
	g.comments[pkg+"."+s.Name.Name] = one(doc)
	structure, ok := s.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range structure.Fields.List {
		for _, name := range f.Names {
			about := one(f.Doc)
			if about == "" {
				about = one(f.Comment)
			}
			g.comments[pkg+"."+s.Name.Name+"."+name.Name] = about
		}
	}
}

// What a running server answers is what the document says, on every route.
func TestServerAnswersAsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(documentFile)
	if err != nil {
		t.Fatal(err)
	}
	var doc object
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	b := newBooks(t)
	history := NewHistory(8, 0)
	history.Add(Event{Event: agent.Event{Time: time.Unix(1, 0), Kind: agent.Placed, ID: "a"}, By: &Peer{PID: 1}})
	history.Add(Event{
		Event: agent.Event{Time: time.Unix(2, 0), Kind: Guarded, ID: "a"}, Guard: &guardEvent, Finding: &guardStatus().Findings[0],
	})
	h := (&Server{Node: b, View: b, Guardian: b, History: history}).Handler()
	good := `{"request":{"id":"a","class":"LSR","milli":1000},"limits":{}}`
	big := `{"request":{"id":"big","class":"LSR","milli":64000}}`
	seen := map[string]bool{}
	for _, tc := range []struct {
		method, target, body string
		status               int
		fail                 error
	}{
		{"GET", "/v1/agent", "", 200, nil},
		{"GET", "/v1/workloads", "", 200, nil},
		{"POST", "/v1/preview?explain=true", good, 200, nil},
		{"POST", "/v1/workloads?explain=true", good, 201, nil},
		{"POST", "/v1/workloads", good, 409, nil},
		{"POST", "/v1/workloads", big, 409, nil},
		{"POST", "/v1/preview", big, 409, nil},
		{"POST", "/v1/workloads", "{}", 400, nil},
		{"POST", "/v1/preview", "{", 400, nil},
		{"POST", "/v1/workloads", `{"request":{"id":"b"}}`, 500, &kernel.StepError{Err: os.ErrPermission}},
		{"POST", "/v1/workloads", `{"request":{"id":"b"}}`, 501, &kernel.NotSupportedError{Feature: "f"}},
		{"GET", "/v1/workloads", "", 200, nil},
		{"GET", "/v1/workloads/a", "", 200, nil},
		{"GET", "/v1/workloads/z", "", 404, nil},
		{"GET", "/v1/workloads/a", "", 500, fmt.Errorf("odd")},
		{"GET", "/v1/workloads/a", "", 503, &agent.BusyError{Dir: "d"}},
		{"PUT", "/v1/workloads/a", good, 200, nil},
		{"PUT", "/v1/workloads/z", strings.Replace(good, `"a"`, `"z"`, 1), 404, nil},
		{"PUT", "/v1/workloads/a", "{}", 400, nil},
		{"POST", "/v1/workloads/a/move", `{"cpus":"2-3"}`, 200, nil},
		{"POST", "/v1/workloads/z/move", `{"cpus":"2-3"}`, 404, nil},
		{"POST", "/v1/workloads/a/move", `{"cpus":2}`, 400, nil},
		{"GET", "/v1/workloads/a/explain", "", 200, nil},
		{"GET", "/v1/workloads/z/explain", "", 404, nil},
		{"GET", "/v1/machine", "", 200, nil},
		{"GET", "/v1/config", "", 200, nil},
		{"GET", "/v1/stats", "", 200, nil},
		{"GET", "/v1/guard", "", 200, nil},
		{"PUT", "/v1/guard", `{"mode":"preview"}`, 200, nil},
		{"PUT", "/v1/guard", `{"mode":"watch"}`, 400, nil},
		{"PUT", "/v1/guard", `{"mode":"enforce"}`, 501, &kernel.NotSupportedError{Feature: "guard"}},
		{"GET", "/v1/events?follow=false", "", 200, nil},
		{"GET", "/v1/events?after=x", "", 400, nil},
		{"PATCH", "/v1/workloads", "", 405, nil},
		{"DELETE", "/v1/workloads/a", "", 409, &agent.OccupiedError{ID: "a", PIDs: []int{1}}},
		{"DELETE", "/v1/workloads/a?kill=true", "", 204, nil},
		{"DELETE", "/v1/workloads/a?kill=true", "", 404, nil},
	} {
		b.fail = tc.fail
		status, header, body := ask(t, h, tc.method, tc.target, tc.body)
		what := fmt.Sprintf("%s %s: %d", tc.method, tc.target, status)
		if status != tc.status {
			t.Errorf("%s, want %d: %s", what, tc.status, body)
			continue
		}
		operation := operationFor(doc, tc.method, tc.target)
		if tc.method == "PATCH" {
			operation = operationFor(doc, "GET", tc.target)
		}
		seen[fmt.Sprint(operation["operationId"])] = true
		response, ok := operation["responses"].(object)[strconv.Itoa(status)].(object)
		if !ok {
			t.Errorf("%s is not documented", what)
			continue
		}
		content, has := response["content"].(object)
		if !has {
			if body != "" {
				t.Errorf("%s: no body is documented: %s", what, body)
			}
			continue
		}
		media, ok := content[header.Get("Content-Type")].(object)
		if !ok {
			t.Errorf("%s: type %q is not documented", what, header.Get("Content-Type"))
			continue
		}
		for line := range strings.Lines(body) {
			var value any
			if err := json.Unmarshal([]byte(line), &value); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			for _, wrong := range violations(doc, media["schema"].(object), value, "") {
				t.Errorf("%s: %s in %s", what, wrong, line)
			}
		}
	}
	for _, rt := range (&Server{}).routes() {
		if id := operationFor(doc, rt.method, strings.ReplaceAll(rt.path, "{id}", "x"))["operationId"]; !seen[fmt.Sprint(id)] {
			t.Errorf("%s %s was not asked", rt.method, rt.path)
		}
	}
}

func operationFor(doc object, method, target string) object {
	path, _, _ := strings.Cut(target, "?")
	for pattern, item := range doc["paths"].(object) {
		form := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\{id\}`, "[^/]+") + "$")
		if op, ok := item.(object)[strings.ToLower(method)].(object); ok && form.MatchString(path) {
			return op
		}
	}
	return object{}
}

// violations says where a value is not what a schema says: of JSON Schema, what the
// document uses.
func violations(doc, schema object, value any, at string) []string {
	if ref, ok := schema["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/components/schemas/")
		return violations(doc, doc["components"].(object)["schemas"].(object)[name].(object), value, at)
	}
	if any, ok := schema["anyOf"].([]any); ok {
		for _, s := range any {
			if len(violations(doc, s.(object), value, at)) == 0 {
				return nil
			}
		}
		return []string{fmt.Sprintf("%s: %v is none of %v", at, value, any)}
	}
	if words, ok := schema["enum"].([]any); ok && !slices.Contains(words, value) {
		return []string{fmt.Sprintf("%s: %v is not one of %v", at, value, words)}
	}
	if types := typesOf(schema); types != nil && !slices.Contains(types, typeOf(value)) && !(typeOf(value) == "integer" && slices.Contains(types, "number")) {
		return []string{fmt.Sprintf("%s: %v is not of type %v", at, value, types)}
	}
	var wrong []string
	switch v := value.(type) {
	case []any:
		for i, item := range v {
			if s, ok := schema["items"].(object); ok {
				wrong = append(wrong, violations(doc, s, item, fmt.Sprintf("%s[%d]", at, i))...)
			}
		}
	case object:
		wrong = append(wrong, objectViolations(doc, schema, v, at)...)
	}
	return wrong
}

func objectViolations(doc, schema, value object, at string) (wrong []string) {
	properties, _ := schema["properties"].(object)
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := value[name.(string)]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s.%s is missing", at, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(value)) {
		s, ok := properties[name].(object)
		if rest, isSchema := schema["additionalProperties"].(object); !ok && isSchema {
			s, ok = rest, true
		}
		if !ok && schema["additionalProperties"] == false {
			wrong = append(wrong, fmt.Sprintf("%s.%s is not documented", at, name))
		}
		if ok {
			wrong = append(wrong, violations(doc, s, value[name], at+"."+name)...)
		}
	}
	return wrong
}

func typesOf(schema object) []string {
	switch t := schema["type"].(type) {
	case string:
		return []string{t}
	case []any:
		var all []string
		for _, one := range t {
			all = append(all, one.(string))
		}
		return all
	}
	return nil
}

func typeOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case float64:
		if v == float64(int64(v)) {
			return "integer"
		}
		return "number"
	case []any:
		return "array"
	}
	return "object"
}

// The comparison finds each kind of difference.
func TestViolations(t *testing.T) {
	t.Parallel()
	doc := object{"components": object{"schemas": object{"S": object{
		"type": "object", "additionalProperties": false, "required": []any{"a"},
		"properties": object{"a": object{"type": "string", "enum": []any{"x"}}, "n": object{"type": []any{"array", "null"}, "items": object{"type": "integer"}}},
	}}}}
	for _, tc := range []struct{ text, want string }{
		{`{"a":"x","n":[1]}`, ""},
		{`{"a":"x","n":null}`, ""},
		{`{"n":[1]}`, "missing"},
		{`{"a":"y"}`, "not one of"},
		{`{"a":"x","z":1}`, "not documented"},
		{`{"a":"x","n":[1.5]}`, "not of type"},
		{`{"a":"x","n":{}}`, "not of type"},
		{`[]`, "not of type"},
	} {
		var value any
		if err := json.Unmarshal([]byte(tc.text), &value); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(violations(doc, object{"$ref": "#/components/schemas/S"}, value, ""), "; ")
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.text, got, tc.want)
		}
	}
}
