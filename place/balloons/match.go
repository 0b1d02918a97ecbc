package balloons

import (
	"path"
	"slices"
	"strings"

	"berth.dev/berth/place"
)

// Operator is how an Expression compares.
type Operator string

// The operators. Those that begin with Match compare with globs (path.Match).
const (
	Equals      Operator = "Equals"
	NotEqual    Operator = "NotEqual"
	In          Operator = "In"
	NotIn       Operator = "NotIn"
	Exists      Operator = "Exists"
	NotExist    Operator = "NotExist"
	AlwaysTrue  Operator = "AlwaysTrue"
	Matches     Operator = "Matches"
	MatchesNot  Operator = "MatchesNot"
	MatchesAny  Operator = "MatchesAny"
	MatchesNone Operator = "MatchesNone"
)

// Expression is a condition on a request. Its key is "id", "namespace", "group",
// "class" or "labels/" and the name of a label; "pod/namespace" and "pod/labels/" are the same.
type Expression struct {
	Key      string   `json:"key"`
	Operator Operator `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// holds reports whether the condition holds for r. A label that r lacks equals
// nothing and matches nothing.
func (e *Expression) holds(r *place.Request) bool {
	value, ok := lookup(r, e.Key)
	among := ok && slices.Contains(e.Values, value)
	match := ok && slices.ContainsFunc(e.Values, func(glob string) bool { return matches(glob, value) })
	switch e.Operator {
	case Equals, In:
		return among
	case NotEqual, NotIn:
		return !among
	case Exists:
		return ok
	case NotExist:
		return !ok
	case AlwaysTrue:
		return true
	case Matches, MatchesAny:
		return match
	case MatchesNot, MatchesNone:
		return !match
	}
	return false
}

// check returns the defect of the expression, "" if it has none.
func (e *Expression) check() string {
	if !knownKey(e.Key) {
		return "unknown key " + e.Key
	}
	n := len(e.Values)
	switch e.Operator {
	case Equals, NotEqual, Matches, MatchesNot:
		if n != 1 {
			return string(e.Operator) + " wants one value"
		}
	case In, NotIn, MatchesAny, MatchesNone:
		if n == 0 {
			return string(e.Operator) + " wants values"
		}
	case Exists, NotExist, AlwaysTrue:
		if n > 0 {
			return string(e.Operator) + " wants no value"
		}
	default:
		return "unknown operator " + string(e.Operator)
	}
	if strings.HasPrefix(string(e.Operator), "Match") {
		return badGlob(e.Values)
	}
	return ""
}

func badGlob(globs []string) string {
	for _, g := range globs {
		if _, err := path.Match(g, ""); err != nil {
			return "malformed glob " + g
		}
	}
	return ""
}

func matches(glob, value string) bool {
	ok, err := path.Match(glob, value)
	return ok && err == nil
}

// bare is a key without the word pod in front: a workload has the labels of its pod.
func bare(key string) string {
	if rest, ok := strings.CutPrefix(key, "pod/"); ok && (rest == "namespace" || strings.HasPrefix(rest, "labels/")) {
		return rest
	}
	return key
}

func knownKey(key string) bool {
	key = bare(key)
	return slices.Contains([]string{"id", "namespace", "group", "class"}, key) || len(key) > len("labels/") && strings.HasPrefix(key, "labels/")
}

func lookup(r *place.Request, key string) (value string, ok bool) {
	switch key = bare(key); key {
	case "id":
		return r.ID, true
	case "namespace":
		return r.Namespace, r.Namespace != ""
	case "group":
		return r.Group, r.Group != ""
	case "class":
		return r.Class.String(), true
	}
	name, ok := strings.CutPrefix(key, "labels/")
	if !ok {
		return "", false
	}
	value, ok = r.Labels[name]
	return value, ok
}

// expand replaces every ${key}; a key that r lacks becomes the empty text.
func expand(text string, r *place.Request) string {
	if !strings.Contains(text, "${") {
		return text
	}
	if strings.HasPrefix(text, "${") && strings.IndexByte(text, '}') == len(text)-1 { // the usual case, without allocations
		value, _ := lookup(r, text[2:len(text)-1])
		return value
	}
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(text, "${")
		key, after, closed := strings.Cut(rest, "}")
		if !ok || !closed {
			b.WriteString(text)
			return b.String()
		}
		value, _ := lookup(r, key)
		b.WriteString(before)
		b.WriteString(value)
		text = after
	}
}

// keysIn returns the keys of a GroupBy text; ok is false if one is not closed.
func keysIn(text string) (keys []string, ok bool) {
	for {
		_, rest, found := strings.Cut(text, "${")
		if !found {
			return keys, true
		}
		key, after, closed := strings.Cut(rest, "}")
		if !closed {
			return keys, false
		}
		keys, text = append(keys, key), after
	}
}

// find returns a type by name, nil if there is no such type.
func (p *Policy) find(name string) *Type {
	for i := range p.Types {
		if p.Types[i].Name == name {
			return &p.Types[i]
		}
	}
	switch name {
	case Default:
		return &Type{Name: Default, MinBalloons: 1, MaxBalloons: 1}
	case Reserved:
		return &Type{Name: Reserved}
	}
	return nil
}

// typeOf returns the type that a request gets.
func (p *Policy) typeOf(r *place.Request) (*Type, error) {
	if name, ok := r.Hints[HintType]; ok {
		ty := p.find(name)
		if ty == nil {
			return nil, &place.RejectedError{ID: r.ID, Reason: "no " + p.kind() + name}
		}
		return ty, nil
	}
	if r.Class.Traits().Reserved || r.Namespace == "kube-system" || matchesAny(p.ReservedNamespaces, r.Namespace) {
		return p.find(Reserved), nil
	}
	for i := range p.Types {
		ty := &p.Types[i]
		if matchesAny(ty.Namespaces, r.Namespace) || slices.ContainsFunc(ty.Match, func(e Expression) bool { return e.holds(r) }) {
			return ty, nil
		}
	}
	return p.find(Default), nil
}

func matchesAny(globs []string, value string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return matches(glob, value) })
}
