package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Change is one thing that another NodeConfig would change.
type Change struct {
	// Field is where, as in "agent.rescan", "classes.BE.weight" or
	// "workloads[api].cpus": workloads go by name.
	Field string `json:"field"`
	// Old and New are the values before and after, as in JSON; absent where the field is absent.
	Old any `json:"old,omitempty"`
	New any `json:"new,omitempty"`
}

// String returns the change in plain words.
func (c Change) String() string {
	what := c.Field
	if rest, ok := strings.CutPrefix(what, "workloads["); ok {
		what = "workload " + strings.Replace(strings.Replace(rest, "].", " ", 1), "]", "", 1)
	}
	switch {
	case c.Old == nil:
		return fmt.Sprintf("%s: added: %s", what, words(c.New))
	case c.New == nil:
		return fmt.Sprintf("%s: removed: %s", what, words(c.Old))
	}
	return fmt.Sprintf("%s: %s -> %s", what, words(c.Old), words(c.New))
}

// words writes a value of JSON on one line, without quotes and braces.
func words(value any) string {
	switch v := value.(type) {
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			text := words(v[k])
			if _, nested := v[k].(map[string]any); nested {
				text = "(" + text + ")"
			}
			parts = append(parts, k+" "+text)
		}
		return strings.Join(parts, ", ")
	case []any:
		var parts []string
		for _, item := range v {
			parts = append(parts, words(item))
		}
		return strings.Join(parts, ", ")
	case nil:
		return "nothing"
	}
	return fmt.Sprint(value)
}

// Diff returns what would change from old to changed, which are valid: settings by
// field, lists by member, workloads by name and field. Fields are sorted; the
// order of workloads, which decides who matches first, is a change of its own.
func Diff(old, changed *NodeConfig) ([]Change, error) {
	before, err := tree(old)
	if err != nil {
		return nil, err
	}
	after, err := tree(changed)
	if err != nil {
		return nil, err
	}
	var d differ
	d.value("", before, after)
	return d.changes, nil
}

// tree returns a configuration as decoded JSON, with each workload at "workloads[NAME]" and
// their names at "workloads".
func tree(c *NodeConfig) (map[string]any, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("compare configurations: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var t map[string]any
	if err := d.Decode(&t); err != nil {
		return nil, fmt.Errorf("compare configurations: %w", err)
	}
	names, _ := t["workloads"].([]any)
	for i, item := range names {
		w := item.(map[string]any)
		names[i] = w["name"]
		t[fmt.Sprintf("workloads[%s]", w["name"])] = w
		delete(w, "name")
	}
	return t, nil
}

type differ struct{ changes []Change }

func (d *differ) value(field string, old, changed any) {
	if reflect.DeepEqual(old, changed) {
		return
	}
	oldMap, isMap := old.(map[string]any)
	newMap, stillMap := changed.(map[string]any)
	switch {
	case field == "workloads":
		// Which is first counts only among those that stay.
		if old, changed := without(old, without(old, changed)), without(changed, without(changed, old)); !slices.Equal(old, changed) {
			d.changes = append(d.changes, Change{field, old, changed})
		}
	case slices.Contains([]string{"confine", "protected", "guard.sensitive", "guard.bestEffort", "guard.allowed", "agent.admins", "agent.hosts"}, field):
		for _, item := range without(old, changed) {
			d.changes = append(d.changes, Change{Field: field, Old: item})
		}
		for _, item := range without(changed, old) {
			d.changes = append(d.changes, Change{Field: field, New: item})
		}
	case isMap && stillMap:
		all := maps.Clone(oldMap)
		maps.Copy(all, newMap)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			d.value(strings.TrimPrefix(field+"."+name, "."), oldMap[name], newMap[name])
		}
	default:
		d.changes = append(d.changes, Change{field, old, changed})
	}
}

// without returns the texts of a list that are not in the other.
func without(list, other any) (rest []any) {
	all, _ := list.([]any)
	not, _ := other.([]any)
	for _, item := range all {
		if !slices.Contains(not, item) {
			rest = append(rest, item)
		}
	}
	return rest
}
