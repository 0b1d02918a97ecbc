package policies_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// The page for those who come from another system says which of its options a policy has, has by
// another name, or refuses.
func TestPageSaysWhichOptionsThereAre(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/coming-from.md")
	if err != nil {
		t.Fatal(err)
	}
	code, rows := regexp.MustCompile("`([^`]+)`"), 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		policy, theirs, ok := strings.Cut(cells[0], ": ")
		if _, err := policies.Find(policy); err != nil || !ok || len(cells) != 2 {
			continue
		}
		rows++
		refused := strings.HasPrefix(cells[1], "refused")
		for _, option := range code.FindAllStringSubmatch(theirs, -1) {
			if same := strings.HasPrefix(cells[1], "the same"); has(policy, option[1]) != same || !same && !refused && !strings.Contains(cells[1], ": ") {
				t.Errorf("%s: `%s`, of which docs/coming-from.md says %q", policy, option[1], cells[1])
			}
		}
		if refused {
			continue
		}
		for _, option := range code.FindAllStringSubmatch(cells[1], -1) {
			if name, value, ok := strings.Cut(option[1], ": "); ok && (!has(policy, name) || value == "") {
				t.Errorf("%s: `%s` is no option", policy, name)
			}
		}
	}
	if rows < 10 {
		t.Errorf("docs/coming-from.md has %d rows of options", rows)
	}
}

// has reports whether a node may set an option of a policy, or of a type of balloon.
func has(policy, option string) bool {
	try := func(value any) (place.Policy, error) {
		p, err := policies.New(policy, map[string]any{option: value})
		if err != nil && policy == "balloons" && strings.Contains(err.Error(), "unknown field") {
			return policies.New(policy, map[string]any{"balloonTypes": []any{map[string]any{"name": "x", option: value}}})
		}
		return p, err
	}
	if _, err := try(nil); err != nil && strings.Contains(err.Error(), "unknown field") {
		return false
	}
	p, _ := try("x")
	u, ok := p.(interface{ Unenforced() error })
	return !ok || u.Unenforced() == nil
}
