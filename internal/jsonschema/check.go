package jsonschema

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Violations says where a decoded JSON value is not what a schema says. A reference
// is a path in doc, "#/$defs/NAME". at is where the value stands, "" at the top.
func Violations(doc, schema Object, value any, at string) []string {
	if ref, ok := schema["$ref"].(string); ok {
		target := doc
		for _, name := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
			target, _ = target[name].(Object)
		}
		if target == nil {
			return []string{fmt.Sprintf("%s: %s is not in the document", at, ref)}
		}
		return Violations(doc, target, value, at)
	}
	if any, ok := schema["anyOf"].([]any); ok {
		for _, s := range any {
			if len(Violations(doc, s.(Object), value, at)) == 0 {
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
			if s, ok := schema["items"].(Object); ok {
				wrong = append(wrong, Violations(doc, s, item, fmt.Sprintf("%s[%d]", at, i))...)
			}
		}
	case Object:
		wrong = append(wrong, objectViolations(doc, schema, v, at)...)
	}
	return wrong
}

func objectViolations(doc, schema, value Object, at string) (wrong []string) {
	properties, _ := schema["properties"].(Object)
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := value[name.(string)]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s.%s is missing", at, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(value)) {
		s, ok := properties[name].(Object)
		if rest, isSchema := schema["additionalProperties"].(Object); !ok && isSchema {
			s, ok = rest, true
		}
		if !ok && schema["additionalProperties"] == false {
			wrong = append(wrong, fmt.Sprintf("%s.%s is not documented", at, name))
		}
		if ok {
			wrong = append(wrong, Violations(doc, s, value[name], at+"."+name)...)
		}
	}
	return wrong
}

func typesOf(schema Object) []string {
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
