// Package jsonschema makes JSON schemas of Go types and their comments, for tests: of
// JSON Schema it knows what Berth's documents use.
package jsonschema

import (
	"encoding"
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"time"
)

// Object is a schema, or a part of one.
type Object = map[string]any

// Generator makes schemas. Structs become definitions that others refer to.
type Generator struct {
	// Ref is what is before the name of a definition in a reference, "#/$defs/".
	Ref string
	// Comments are those of types and fields, as of Comments.
	Comments map[string]string
	// Name is the name of a struct's definition; nil is "package.Type".
	Name func(t reflect.Type) string
	// Special returns the schema of a type that has a schema of its own, else nil.
	// It may be nil itself.
	Special func(t reflect.Type) Object
	// Lenient reports whether any field of a struct may be absent. It may be nil.
	Lenient func(t reflect.Type) bool

	defs Object
}

// Defs returns the definitions of the structs that were met.
func (g *Generator) Defs() Object { return g.defs }

// Of returns the schema of a type.
func (g *Generator) Of(t reflect.Type) Object {
	if g.Special != nil {
		if s := g.Special(t); s != nil {
			return s
		}
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return Object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return Object{}
	case isText(t):
		return word(t)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.Of(t.Elem())
	case reflect.String:
		return Object{"type": "string"}
	case reflect.Bool:
		return Object{"type": "boolean"}
	case reflect.Float64:
		return Object{"type": "number"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return Object{"type": "integer"}
	case reflect.Slice:
		return Object{"type": []any{"array", "null"}, "items": g.Of(t.Elem())}
	case reflect.Map:
		return Object{"type": "object", "additionalProperties": g.Of(t.Elem())}
	case reflect.Struct:
		return g.structure(t)
	}
	panic("no schema for " + t.String())
}

func isText(t reflect.Type) bool {
	return t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// word is the schema of a type that is written as text.
func word(t reflect.Type) Object {
	out := Object{"type": "string"}
	if words := Words(t); words != nil {
		out["enum"] = words
	}
	return out
}

// Words returns the words of an enumeration, nil for another type.
func Words(t reflect.Type) (words []any) {
	if t.Kind() != reflect.Int && t.Kind() != reflect.Uint8 || !reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return nil
	}
	for i := range 64 {
		v := reflect.ValueOf(i).Convert(t)
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		back := reflect.New(t)
		if err == nil && back.Interface().(encoding.TextUnmarshaler).UnmarshalText(text) == nil && back.Elem().Equal(v) {
			words = append(words, string(text))
		}
	}
	return words
}

func (g *Generator) structure(t reflect.Type) Object {
	name := key(t)
	if g.Name != nil {
		name = g.Name(t)
	}
	ref := Object{"$ref": g.Ref + name}
	if _, ok := g.defs[name]; ok {
		return ref
	}
	if g.defs == nil {
		g.defs = Object{}
	}
	g.defs[name] = nil // a type may have itself in it
	properties, required := Object{}, []any{}
	g.fields(t, properties, &required)
	s := Object{"type": "object", "properties": properties, "additionalProperties": false}
	if about := g.Comments[key(t)]; about != "" {
		s["description"] = about
	}
	if len(required) > 0 {
		s["required"] = required
	}
	g.defs[name] = s
	return ref
}

// key is a type's in Comments.
func key(t reflect.Type) string { return filepath.Base(t.PkgPath()) + "." + t.Name() }

func (g *Generator) fields(t reflect.Type, properties Object, required *[]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Pointer: // all of it, or nothing
			g.fields(f.Type.Elem(), properties, nil)
			continue
		case f.Anonymous && name == "":
			g.fields(f.Type, properties, required)
			continue
		case name == "-" || !f.IsExported():
			continue
		case name == "":
			name = f.Name
		}
		omitted := strings.Contains(options, "omit")
		s := g.Of(f.Type)
		switch {
		case omitted:
		case f.Type.Kind() == reflect.Pointer:
			s = Object{"anyOf": []any{s, Object{"type": "null"}}}
		case f.Type.Kind() == reflect.Map:
			s["type"] = []any{"object", "null"}
		}
		if about := g.Comments[key(t)+"."+f.Name]; about != "" {
			s = maps.Clone(s)
			s["description"] = about
		}
		properties[name] = s
		if !omitted && required != nil && (g.Lenient == nil || !g.Lenient(t)) {
			*required = append(*required, name)
		}
	}
}
