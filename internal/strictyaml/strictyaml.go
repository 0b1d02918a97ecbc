// Package strictyaml reads a YAML document into Go types and reports all that is
// wrong with it at once, by file, line and field: fields that the type does not
// have, with the nearest that it has, fields that are there twice, values of the
// wrong type. What a value may be is the caller's to check; Lines tells
// where it stands.
package strictyaml

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/internal/plain"
)

// Error is one thing that is wrong with a document.
type Error struct {
	File  string // "" is unknown
	Line  int    // from 1; 0 is unknown
	Field string // "workloads[2].cpus"; "" is the document
	Err   error
}

// Error returns "FILE:LINE: FIELD: what", without what is unknown.
func (e *Error) Error() string {
	var b strings.Builder
	switch {
	case e.File != "" && e.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	case e.File != "":
		fmt.Fprintf(&b, "%s: ", e.File)
	case e.Line > 0:
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Field != "" {
		fmt.Fprintf(&b, "%s: ", e.Field)
	}
	return b.String() + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Errors returns the Errors that are joined in err, in order.
func Errors(err error) []*Error {
	if one := (*Error)(nil); errors.As(err, &one) {
		if several, ok := err.(interface{ Unwrap() []error }); ok {
			var all []*Error
			for _, e := range several.Unwrap() {
				all = append(all, Errors(e)...)
			}
			return all
		}
		return []*Error{one}
	}
	return nil
}

// Lines are the lines of a document's fields.
type Lines map[string]int

// At returns the line of a field or, where it is not in the document, of the part
// that it would be in; 0 if that is the whole.
func (l Lines) At(field string) int {
	for field != "" {
		if line, ok := l[field]; ok {
			return line
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return 0
}

// Decode reads a document over what into, a pointer, has already: a field that
// the document does not name stays. Structs have the names of their json tags,
// and those of what they embed.
// They may hold structs, slices, maps, pointers, numbers, booleans, text, which is
// as it is written,
// encoding.TextUnmarshalers, and any, which takes a mapping as map[string]any.
// All that is wrong is returned, joined, as Errors of file; Lines always.
func Decode(data []byte, file string, into any) (Lines, error) {
	return read(data, file, func(d *decoder, root *yaml.Node) {
		if root != nil {
			d.decode(root, "", reflect.ValueOf(into).Elem())
		}
	})
}

// DecodeBy reads a mapping one of whose fields says what the others are: choose gets its
// text, and returns what to read the others over, as Decode does.
func DecodeBy(data []byte, file, field string, choose func(text string) (into any, err error)) (Lines, error) {
	return read(data, file, func(d *decoder, root *yaml.Node) {
		if root == nil || root.Kind != yaml.MappingNode {
			d.fail(0, field, errors.New("is missing"))
			return
		}
		for i := 0; i+1 < len(root.Content); i += 2 {
			if key, value := root.Content[i], root.Content[i+1]; key.Value == field {
				into, err := choose(target(value).Value)
				if err != nil {
					d.fail(value.Line, field, err)
					return
				}
				d.lines[field] = key.Line
				root.Content = slices.Delete(root.Content, i, i+2)
				d.decode(root, "", reflect.ValueOf(into).Elem())
				return
			}
		}
		d.fail(0, field, errors.New("is missing"))
	})
}

// read parses a document, which is nil if it is empty, and returns what is wrong with it.
func read(data []byte, file string, decode func(*decoder, *yaml.Node)) (Lines, error) {
	d := decoder{lines: Lines{}}
	switch roots, err := parse(data); {
	case err != nil:
		line, what := lineOf(err)
		d.fail(line, "", what)
	case len(roots) > 1:
		d.fail(0, "", errors.New("there is more than one document"))
	case len(roots) == 1:
		decode(&d, roots[0])
	default:
		decode(&d, nil)
	}
	return d.result(file)
}

// result returns what was found, errors by line.
func (d *decoder) result(file string) (Lines, error) {
	slices.SortStableFunc(d.errs, func(a, b *Error) int { return a.Line - b.Line })
	all := make([]error, len(d.errs))
	for i, e := range d.errs {
		e.File = file
		all[i] = e
	}
	return d.lines, errors.Join(all...)
}

// Open, embedded in a struct, lets documents have fields that the struct does not have,
// and that are somebody else's.
type Open struct{}

// AnyCase, embedded in a struct, lets documents spell its fields in upper and lower case as they
// like, as those do that encoding/json reads.
type AnyCase struct{}

type decoder struct {
	lines Lines
	errs  []*Error
}

func (d *decoder) fail(line int, field string, err error) {
	d.errs = append(d.errs, &Error{Line: line, Field: field, Err: err})
}

// wrong notes that a node is not what its field takes.
func (d *decoder) wrong(n *yaml.Node, field, want string) {
	err := fmt.Errorf("%q is no %s", n.Value, want)
	switch n.Kind {
	case yaml.SequenceNode:
		err = fmt.Errorf("a list stands where a %s belongs", want)
	case yaml.MappingNode:
		err = fmt.Errorf("a mapping stands where a %s belongs", want)
	}
	d.fail(n.Line, field, err)
}

// decode reads a node into a value. Null leaves it as it is.
func (d *decoder) decode(n *yaml.Node, field string, into reflect.Value) {
	if n = target(n); isNull(n) {
		return
	}
	if t, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok && into.Kind() != reflect.Pointer {
		d.text(n, field, t)
		return
	}
	switch into.Kind() {
	case reflect.Pointer:
		value := reflect.New(into.Type().Elem())
		d.decode(n, field, value.Elem())
		into.Set(value)
	case reflect.Struct:
		d.structure(n, field, into)
	case reflect.Map:
		d.mapping(n, field, into)
	case reflect.Slice:
		d.list(n, field, into)
	case reflect.Interface:
		into.Set(reflect.ValueOf(d.plain(n, field)))
	default:
		d.scalar(n, field, into)
	}
}

func (d *decoder) text(n *yaml.Node, field string, into encoding.TextUnmarshaler) {
	if n.Kind != yaml.ScalarNode {
		d.wrong(n, field, "text")
		return
	}
	if err := into.UnmarshalText([]byte(n.Value)); err != nil {
		d.fail(n.Line, field, err)
	}
}

func (d *decoder) scalar(n *yaml.Node, field string, into reflect.Value) {
	switch into.Kind() {
	case reflect.String:
		if n.Kind == yaml.ScalarNode {
			into.SetString(n.Value)
			return
		}
		d.wrong(n, field, "text")
	case reflect.Bool:
		if b, ok := scalarOf(n).(bool); ok {
			into.SetBool(b)
			return
		}
		d.wrong(n, field, "true or false")
	case reflect.Int, reflect.Int64:
		if i, ok := scalarOf(n).(int); ok {
			into.SetInt(int64(i))
			return
		}
		d.wrong(n, field, "whole number")
	case reflect.Uint64:
		switch i := scalarOf(n).(type) {
		case int:
			if i >= 0 {
				into.SetUint(uint64(i))
				return
			}
		case uint64:
			into.SetUint(i)
			return
		}
		d.wrong(n, field, "whole number that is not negative")
	case reflect.Float64:
		switch f := scalarOf(n).(type) {
		case int:
			into.SetFloat(float64(f))
			return
		case float64:
			if !math.IsNaN(f) && !math.IsInf(f, 0) {
				into.SetFloat(f)
				return
			}
		}
		d.wrong(n, field, "number")
	default:
		panic("strictyaml: no way to read a " + into.Type().String())
	}
}

func (d *decoder) list(n *yaml.Node, field string, into reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.wrong(n, field, "list")
		return
	}
	items := reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", field, i)
		if isNull(item) {
			d.fail(item.Line, at, errors.New("is empty"))
			continue
		}
		d.lines[at] = item.Line
		d.decode(item, at, items.Index(i))
	}
	into.Set(items)
}

// pairs notes keys that are there twice and calls with each other one.
func (d *decoder) pairs(n *yaml.Node, field string, each func(key, value *yaml.Node, field string)) {
	if n.Kind != yaml.MappingNode {
		d.wrong(n, field, "mapping")
		return
	}
	seen := map[string]int{}
	for _, p := range pairsOf(n) {
		key := p[0]
		at := key.Value
		if strings.ContainsFunc(at, func(r rune) bool { return !strconv.IsPrint(r) }) {
			at = strconv.Quote(at)
		}
		if field != "" {
			at = field + "." + at
		}
		if first, twice := seen[key.Value]; twice {
			d.fail(key.Line, at, fmt.Errorf("is there twice, first in line %d", first))
			continue
		}
		seen[key.Value], d.lines[at] = key.Line, key.Line
		each(key, p[1], at)
	}
}

func (d *decoder) mapping(n *yaml.Node, field string, into reflect.Value) {
	t := into.Type()
	if into.IsNil() {
		into.Set(reflect.MakeMap(t))
	}
	d.pairs(n, field, func(key, value *yaml.Node, field string) {
		k, v := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		d.decode(key, field, k)
		d.decode(value, field, v)
		into.SetMapIndex(k, v)
	})
}

func (d *decoder) structure(n *yaml.Node, field string, into reflect.Value) {
	names, at := fields(into.Type())
	_, open := into.Type().FieldByName("Open")
	_, anyCase := into.Type().FieldByName("AnyCase")
	d.pairs(n, field, func(key, value *yaml.Node, field string) {
		i := slices.Index(names, key.Value)
		if i < 0 && anyCase {
			i = slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(name, key.Value) })
		}
		if i < 0 && open {
			return
		}
		if i < 0 {
			d.fail(key.Line, field, errors.New("unknown field"+Nearest(key.Value, names)))
			return
		}
		d.decode(value, field, into.FieldByIndex(at[i]))
	})
}

// fields returns the names of a struct's fields, those of embedded structs too,
// and where each is.
func fields(t reflect.Type) (names []string, at [][]int) {
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			names, at = append(names, name), append(at, f.Index)
		}
	}
	return names, at
}

// plain reads a node of any type.
func (d *decoder) plain(n *yaml.Node, field string) any {
	switch n.Kind {
	case yaml.SequenceNode:
		var items []any
		d.list(n, field, reflect.ValueOf(&items).Elem())
		return items
	case yaml.MappingNode:
		fields := map[string]any{}
		d.mapping(n, field, reflect.ValueOf(&fields).Elem())
		return fields
	}
	value := scalarOf(n)
	if f, ok := value.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		d.wrong(n, field, "number")
		return 0
	}
	return value
}

// Nearest returns a hint that name may stand for one of known: `; did you mean
// "x"?`, or which there are if none is near.
func Nearest(name string, known []string) string {
	return cmp.Or(plain.Near(name, known), "; there are: "+strings.Join(known, ", "))
}
