package config

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	check "github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/internal/jsonschema"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// The schemas in docs/ are generated from the Go types, their comments and Default;
// go test -run Schema -update writes them.
func TestSchema(t *testing.T) {
	t.Parallel()
	for file, schema := range map[string]object{"nodeconfig-schema.json": newSchema(t), "run-file-schema.json": bundleSchema(t)} {
		compareSchema(t, "../../docs/"+file, schema)
	}
}

// An example fits the schema, and is a file of berth run.
func TestRunFileExample(t *testing.T) {
	t.Parallel()
	const file = "../../examples/shop.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseBundle(text, file); err != nil {
		t.Error(err)
	}
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	compiler := check.NewCompiler()
	data, err := json.Marshal(bundleSchema(t))
	if err != nil {
		t.Fatal(err)
	}
	s, err := check.UnmarshalJSON(bytes.NewReader(data))
	if err == nil {
		err = compiler.AddResource("run.json", s)
	}
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("run.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled.Validate(v); err != nil {
		t.Error(err)
	}
	first := v.(map[string]any)["workloads"].([]any)[0].(map[string]any)
	for name, wrong := range map[string]any{"class": "gold", "match": map[string]any{"unit": "a.service"}, "nice": 3, "command": "make"} {
		was, had := first[name]
		if first[name] = wrong; compiled.Validate(v) == nil {
			t.Errorf("%s: %v is valid", name, wrong)
		}
		if first[name] = was; !had {
			delete(first, name)
		}
	}
}

func compareSchema(t *testing.T, file string, schema object) {
	t.Helper()
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, file, append(text, '\n'))
}

// The reference names every field.
func TestReferenceIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/nodeconfig.md")
	ways, matching := os.ReadFile("../../docs/matching.md")
	if err := errors.Join(err, matching); err != nil {
		t.Fatal(err)
	}
	text = append(text, ways...)
	for _, of := range structs() {
		for i := range of.NumField() {
			if name := fieldName(of.Field(i)); !strings.Contains(string(text), "`"+name+"`") {
				t.Errorf("docs/nodeconfig.md and matching.md do not name %s of %s", name, of.Name())
			}
		}
	}
}

func structs() []reflect.Type {
	return []reflect.Type{
		reflect.TypeFor[NodeConfig](), reflect.TypeFor[Policy](), reflect.TypeFor[Workload](), reflect.TypeFor[Match](), reflect.TypeFor[Device](),
		reflect.TypeFor[Container](), reflect.TypeFor[Limits](), reflect.TypeFor[Guard](), reflect.TypeFor[Suppression](), reflect.TypeFor[Agent](),
	}
}

func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

type object = jsonschema.Object

func newSchema(t *testing.T) object {
	comments, err := jsonschema.Comments(".", "../../kernel/blockio", "../../kernel/power", "../../kernel/resctrl", "../../kernel/traffic")
	if err != nil {
		t.Fatal(err)
	}
	s := schema{comments}
	root := s.structure(reflect.TypeFor[NodeConfig](), reflect.ValueOf(*Default()))
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = APIVersion
	root["title"] = "Berth " + Kind
	properties := root["properties"].(object)
	properties["apiVersion"].(object)["const"] = APIVersion
	properties["kind"].(object)["const"] = Kind
	suppression := properties["guard"].(object)["properties"].(object)["suppression"].(object)["properties"].(object)
	suppression["by"].(object)["enum"] = []string{"cpus", "quota"}
	properties["policy"].(object)["properties"].(object)["name"].(object)["enum"] = policies.Names()
	return root
}

// bundleSchema is the schema of a file of berth run.
func bundleSchema(t *testing.T) object {
	comments, err := jsonschema.Comments(".", "../../kernel/traffic")
	if err != nil {
		t.Fatal(err)
	}
	s := schema{comments}
	root := s.structure(reflect.TypeFor[Bundle](), reflect.ValueOf(Bundle{}))
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Commands of berth run --file"
	command := root["properties"].(object)["workloads"].(object)["items"].(object)
	properties := command["properties"].(object)
	for _, of := range []string{"match", "group"} { // which the file says, or command
		delete(properties, of)
		command["required"] = slices.DeleteFunc(command["required"].([]string), func(name string) bool { return name == of })
	}
	return root
}

type schema struct{ comments map[string]string }

// structure returns the schema of a struct; value has its fields' defaults.
func (s *schema) structure(t reflect.Type, value reflect.Value) object {
	properties, required := object{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			embedded := s.structure(f.Type, value.Field(i))
			maps.Copy(properties, embedded["properties"].(object))
			if names, ok := embedded["required"].([]string); ok {
				required = append(required, names...)
			}
			continue
		}
		if f.Tag.Get("json") == "-" {
			continue
		}
		about := s.comments[path.Base(t.PkgPath())+"."+t.Name()+"."+f.Name]
		if about == "" {
			panic(t.Name() + "." + f.Name + " has no comment")
		}
		p := s.of(f.Type, value.Field(i))
		p["description"] = about
		if v := value.Field(i); !v.IsZero() && f.Type.Kind() != reflect.Struct && !isRequired(about) {
			p["default"] = v.Interface()
		}
		if isRequired(about) {
			required = append(required, fieldName(f))
		}
		properties[fieldName(f)] = p
	}
	out := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}

func (s *schema) of(t reflect.Type, value reflect.Value) object {
	if words := vocabulary(t); words != nil {
		return object{"enum": words}
	}
	if t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		if t == reflect.TypeFor[Duration]() {
			return object{"type": "string"}
		}
		if t == reflect.TypeFor[place.Milli]() {
			return object{"type": []string{"string", "number"}}
		}
		return object{"type": []string{"string", "integer"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem(), reflect.New(t.Elem()).Elem())
	case reflect.String:
		switch t {
		case reflect.TypeFor[GuardMode]():
			return object{"enum": GuardModes()}
		case reflect.TypeFor[GuardProbe]():
			return object{"enum": guardProbes()}
		}
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Interface:
		return object{}
	case reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem(), reflect.New(t.Elem()).Elem())}
	case reflect.Map:
		out := object{"type": "object", "additionalProperties": s.of(t.Elem(), reflect.New(t.Elem()).Elem())}
		if words := vocabulary(t.Key()); words != nil {
			out["propertyNames"] = object{"enum": words}
		}
		return out
	case reflect.Struct:
		return s.structure(t, value)
	}
	panic("no schema for " + t.String())
}

// vocabulary returns the words of a type that has few of them, but for none.
func vocabulary(t reflect.Type) []any {
	if t == reflect.TypeFor[place.Milli]() {
		return nil
	}
	return slices.DeleteFunc(jsonschema.Words(t), func(word any) bool { return word == "" })
}

func isRequired(about string) bool { return strings.HasSuffix(strings.ToLower(about), "required.") }
