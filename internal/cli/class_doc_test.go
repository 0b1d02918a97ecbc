package cli

import (
	"os"
	"strings"
	"testing"

	"berth.dev/berth/place"
)

// The table of docs/classes.md is that of the traits.
func TestClassesPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/classes.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := classesTable(); !strings.Contains(string(page), table) {
		t.Errorf("docs/classes.md does not have this table:\n%s", table)
	}
}

func classesTable() string {
	var b strings.Builder
	row := func(name string, cell func(place.Traits) string) {
		b.WriteString("| " + name + " |")
		for _, c := range place.Classes() {
			b.WriteString(" " + cell(c.Traits()) + " |")
		}
		b.WriteString("\n")
	}
	yes := func(is func(place.Traits) bool) func(place.Traits) string {
		return func(t place.Traits) string {
			if is(t) {
				return "yes"
			}
			return "–"
		}
	}
	for _, c := range place.Classes() {
		b.WriteString("- `" + c.String() + "`: " + c.Traits().About + "\n")
	}
	b.WriteString("\n")
	row("", func(t place.Traits) string { return "`" + t.Name + "`" })
	b.WriteString("|" + strings.Repeat("---|", 1+len(place.Classes())) + "\n")
	row("exclusive CPUs, in mode auto", func(t place.Traits) string {
		switch {
		case t.WholeCores:
			return "whole cores"
		case t.Own:
			return "CPUs"
		}
		return "–"
	})
	row("shares them with `BE` while they are idle", yes(func(t place.Traits) bool { return t.Lends }))
	row("runs on exclusive CPUs that are idle", yes(func(t place.Traits) bool { return t.Borrow }))
	row("its CPU time counts against the shared pool", yes(func(t place.Traits) bool { return !t.Uncounted }))
	row("runs on reserved CPUs, may own them", yes(func(t place.Traits) bool { return t.Reserved }))
	row("default of `cpu.idle`", func(t place.Traits) string {
		if t.Idle {
			return "1"
		}
		return "as found"
	})
	row("other limits", func(place.Traits) string { return "as found" })
	row("guard looks for its antagonist", yes(func(t place.Traits) bool { return t.Sensitive }))
	row("guard may use every remedy on it", yes(func(t place.Traits) bool { return t.Squeezed }))
	row("guard may give it less weight, with `guard.weigh`", yes(func(t place.Traits) bool { return t.Weighed || t.Squeezed }))
	return b.String()
}
