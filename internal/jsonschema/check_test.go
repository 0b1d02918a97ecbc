package jsonschema

import (
	"encoding/json"
	"strings"
	"testing"
)

// The comparison finds each kind of difference.
func TestViolations(t *testing.T) {
	t.Parallel()
	doc := Object{"components": Object{"schemas": Object{"S": Object{
		"type": "object", "additionalProperties": false, "required": []any{"a"},
		"properties": Object{"a": Object{"type": "string", "enum": []any{"x"}}, "n": Object{"type": []any{"array", "null"}, "items": Object{"type": "integer"}}, "r": Object{"$ref": "#/none"}},
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
		{`{"a":"x","r":1}`, "not in the document"},
	} {
		var value any
		if err := json.Unmarshal([]byte(tc.text), &value); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(Violations(doc, Object{"$ref": "#/components/schemas/S"}, value, ""), "; ")
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.text, got, tc.want)
		}
	}
}
