package api

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"berth.dev/berth/agent"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/internal/jsonschema"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

type object = jsonschema.Object

const documentFile = "../../docs/openapi.json"

// docs/openapi.json is made of the routes, the Go types and their comments;
// go test ./agent/api -run OpenAPI -update writes it.
func TestOpenAPIIsCurrent(t *testing.T) {
	t.Parallel()
	text, err := json.MarshalIndent(document(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, documentFile, append(text, '\n'))
}

// document is the OpenAPI document.
func document(t *testing.T) object {
	comments, err := jsonschema.Comments(".", "..", "../config", "../../place", "../../machine", "../../kernel", "../../kernel/cgroup", "../../kernel/power", "../../kernel/resctrl", "../../kernel/traffic", "../../watch", "../../guard", "../../guard/actuate", "../../guard/control", "../../guard/detect")
	if err != nil {
		t.Fatal(err)
	}
	g := &jsonschema.Generator{
		Ref: "#/components/schemas/", Comments: comments, Special: special, Lenient: lenient,
		Name: func(t reflect.Type) string { return strings.TrimPrefix(t.String(), "api.") },
	}
	paths := object{}
	for _, rt := range (&Server{}).routes() {
		item, ok := paths["/v1/"+rt.path].(object)
		if !ok {
			item = object{}
			paths["/v1/"+rt.path] = item
		}
		item[strings.ToLower(rt.method)] = operation(g, &rt)
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Berth agent", "version": "v1", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "The agent of one host, on a Unix socket: curl --unix-socket /run/berth/agent.sock http://agent/v1/workloads",
		},
		"servers":    []any{object{"url": "http://agent", "description": "the Unix socket, where requests for another host are refused"}},
		"paths":      paths,
		"components": object{"schemas": g.Defs()},
	}
}

func operation(g *jsonschema.Generator, rt *route) object {
	op := object{"summary": rt.about, "operationId": strings.ToLower(rt.method) + "-" + strings.NewReplacer("/{id}", "-one", "/{number}", "-one", "/", "-").Replace(rt.path)}
	var parameters []any
	if strings.Contains(rt.path, "{number}") {
		parameters = append(parameters, object{"name": "number", "in": "path", "required": true, "description": "the version's number", "schema": object{"type": "integer"}})
	}
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
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": g.Of(rt.body)}}}
	}
	good := object{"description": "done"}
	if rt.answer != nil {
		kind := "application/json"
		if rt.stream {
			kind, good["description"] = "application/x-ndjson", "lines, each"
		}
		good["content"] = object{kind: object{"schema": g.Of(rt.answer)}}
	}
	responses := object{strconv.Itoa(max(rt.status, 200)): good}
	byStatus := map[int][]string{}
	for _, k := range kinds() {
		if slices.Contains(rt.errors, k.name) || slices.Contains([]string{"request", "internal", "timeout", "cancelled", "busy"}, k.name) {
			byStatus[k.status] = append(byStatus[k.status], urn+k.name)
		}
	}
	for _, status := range []int{403, 404, 405, 413, 415, 421} {
		byStatus[status] = append(byStatus[status], urn+"request")
	}
	for status, names := range byStatus {
		responses[strconv.Itoa(status)] = object{
			"description": strings.Join(names, ", "),
			"content":     object{"application/problem+json": object{"schema": g.Of(reflect.TypeFor[Problem]())}},
		}
	}
	op["responses"] = responses
	return op
}

// special are the types with schemas of their own.
func special(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[detect.Remedy]():
		return object{"type": "string", "enum": remedyWords()}
	case t == reflect.TypeFor[place.Milli](), t == reflect.TypeFor[place.Bytes]():
		return object{"type": []any{"string", "number"}}
	}
	return nil
}

// remedyWords are the remedies that a finding may name.
func remedyWords() (words []any) {
	for _, r := range detect.Resources() {
		for _, remedy := range slices.Concat(detect.RemediesFor(r, false), detect.RemediesFor(r, true)) {
			if !slices.Contains(words, any(remedy.String())) {
				words = append(words, remedy.String())
			}
		}
	}
	return words
}

// lenient are types that a request has too: there what is absent is zero.
func lenient(t reflect.Type) bool {
	return slices.Contains([]string{"Spec", "Request", "Limits", "IOMax", "Owner", "Amount", "DeviceRequest", "Affinity", "move"}, t.Name())
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
	schemas := validator.NewCompiler()
	if err := schemas.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	b := newFake(t)
	history := NewHistory(8, 0)
	history.Add(Event{Event: agent.Event{Time: time.Unix(1, 0), Kind: agent.Placed, ID: "a"}, By: &Origin{Kind: ByClient, Peer: &Peer{PID: 1}}})
	history.Add(Event{
		Event: agent.Event{Time: time.Unix(2, 0), Kind: Guarded, ID: "a"}, Guard: &guardEvent, Finding: &guardStatus().Findings[0],
	})
	h := (&Server{Node: b, View: b, Guardian: b, Configs: b, History: history}).Handler()
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
		{"POST", "/v1/groups/preview", `{"specs":[{"request":{"id":"x"}},{"request":{"id":"y"}}]}`, 200, nil},
		{"POST", "/v1/groups", `{"specs":[{"request":{"id":"x"}},{"request":{"id":"a"}}]}`, 409, nil},
		{"POST", "/v1/groups", `{"specs":[{"request":{"id":"x"}},{"request":{"id":"y"}}]}`, 201, nil},
		{"POST", "/v1/groups", `{"specs":[]}`, 400, nil},
		{"POST", "/v1/groups", `{"specs":[{"request":{}}]}`, 400, nil},
		{"POST", "/v1/groups/preview", `{}`, 400, nil},
		{"POST", "/v1/workloads/a/move", `{"cpus":"2-3"}`, 200, nil},
		{"POST", "/v1/workloads/z/move", `{"cpus":"2-3"}`, 404, nil},
		{"POST", "/v1/workloads/a/move", `{"cpus":2}`, 400, nil},
		{"GET", "/v1/workloads/a/explain", "", 200, nil},
		{"GET", "/v1/workloads/z/explain", "", 404, nil},
		{"GET", "/v1/machine", "", 200, nil},
		{"GET", "/v1/config", "", 200, nil},
		{"GET", "/v1/stats", "", 200, nil},
		{"GET", "/v1/classes", "", 200, nil},
		{"GET", "/v1/classes", "", 500, fmt.Errorf("odd")},
		{"GET", "/v1/guard", "", 200, nil},
		{"PUT", "/v1/guard", `{"mode":"preview"}`, 200, nil},
		{"PUT", "/v1/guard", `{"mode":"watch"}`, 400, nil},
		{"PUT", "/v1/guard", `{"mode":"enforce"}`, 501, &kernel.NotSupportedError{Feature: "guard"}},
		{"POST", "/v1/config/preview", `{"text":"kind: NodeConfig"}`, 200, nil},
		{"POST", "/v1/config/preview", `{"yaml":""}`, 400, nil},
		{"PUT", "/v1/config", `{"version":1}`, 200, nil},
		{"PUT", "/v1/config", `{"text":"x"}`, 501, &kernel.NotSupportedError{Feature: "f"}},
		{"GET", "/v1/config/history", "", 200, nil},
		{"GET", "/v1/config/history", "", 500, fmt.Errorf("odd")},
		{"GET", "/v1/config/history/1", "", 200, nil},
		{"GET", "/v1/config/history/7", "", 404, nil},
		{"GET", "/v1/config/history/x", "", 404, nil},
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
		schema, err := schemas.Compile("openapi.json" + media["schema"].(object)["$ref"].(string))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(body) {
			value, err := validator.UnmarshalJSON(strings.NewReader(line))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if err := schema.Validate(value); err != nil {
				t.Errorf("%s: %v in %s", what, err, line)
			}
		}
	}
	for _, rt := range (&Server{}).routes() {
		if id := operationFor(doc, rt.method, "/v1/"+strings.NewReplacer("{id}", "x", "{number}", "1").Replace(rt.path))["operationId"]; !seen[fmt.Sprint(id)] {
			t.Errorf("%s %s was not asked", rt.method, rt.path)
		}
	}
}

func operationFor(doc object, method, target string) object {
	path, _, _ := strings.Cut(target, "?")
	for pattern, item := range doc["paths"].(object) {
		form := regexp.MustCompile("^" + strings.NewReplacer(`\{id\}`, "[^/]+", `\{number\}`, "[^/]+").Replace(regexp.QuoteMeta(pattern)) + "$")
		if op, ok := item.(object)[strings.ToLower(method)].(object); ok && form.MatchString(path) {
			return op
		}
	}
	return object{}
}
