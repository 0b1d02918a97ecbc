package podwords

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/place"
)

// Rule says which words pods of some namespaces may use.
type Rule struct {
	// Namespaces are globs; Words are globs of Row.Word, or WORD=VALUE for a strong value.
	Namespaces []string `json:"namespaces"`
	Words      []string `json:"words"`
}

// Rules are looked at in order, and the first that names a pod's namespace decides. In a
// namespace that none names every word counts, but for strong values: what keeps others off
// more than the pod pays for, or puts it onto CPUs that are not for pods.
type Rules []Rule

// Validate reports a glob that is none.
func (rs Rules) Validate() error {
	for i, r := range rs {
		if len(r.Namespaces) == 0 {
			return fmt.Errorf("rules[%d]: no namespaces", i)
		}
		for _, glob := range slices.Concat(r.Namespaces, r.Words) {
			if _, err := path.Match(glob, ""); err != nil {
				return fmt.Errorf("rules[%d]: %q: %w", i, glob, err)
			}
		}
	}
	return nil
}

// Everything lets every word count.
func Everything() Rules { return Rules{{Namespaces: []string{"*"}, Words: []string{"*", "*=*"}}} }

// Allow reports whether a word counts in a namespace. strong is what of its value only a
// rule lets count, "" if nothing.
func (rs Rules) Allow(namespace, word, strong string) bool {
	for _, r := range rs {
		if !slices.ContainsFunc(r.Namespaces, matching(namespace)) {
			continue
		}
		if strong != "" {
			return slices.ContainsFunc(r.Words, func(w string) bool {
				name, value, ok := strings.Cut(w, "=")
				return ok && (name == "*" || name == word) && (value == "*" || value == strong)
			})
		}
		return slices.ContainsFunc(r.Words, func(w string) bool { return w == "*" || matching(word)(w) })
	}
	return strong == ""
}

// remedy says how a rule would let a strong value of a word count, "" of another value.
func (w *Wish) remedy(row *Row) string {
	if s := w.strength(); s != "" {
		return fmt.Sprintf("; one with %s=%s would", row.Word, s)
	}
	return ""
}

func matching(name string) func(string) bool {
	return func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok }
}

// strength names what of a wish is strong. It looks at what was read and not at the text,
// which has many spellings.
func (w *Wish) strength() string {
	switch {
	case w.Class != nil && w.Class.Traits().Reserved:
		return w.Class.String()
	case w.Exclusive != nil && *w.Exclusive == place.NUMANodeLevel:
		return w.Exclusive.String()
	case !w.CPUs.IsEmpty():
		return "cpuset"
	}
	for _, name := range w.Classes { // a word names one
		return name
	}
	for _, hint := range []string{"prefer-reserved-cpus", "cpu.preserve", "memory.preserve"} {
		if _, ok := w.Hints[hint]; ok {
			return hint
		}
	}
	return ""
}
