package guard_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard"
	"berth.dev/berth/place"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	known := map[string]guard.Workload{
		"berth/a": {Group: "berth/a", Class: place.BE, Protected: true},
		"berth/b": {Group: "berth/b", Class: place.LSE, Sensitive: true},
		"berth/c": {Group: "berth/c", Class: place.LS, Sensitive: true},
	}
	names := map[string]string{"berth/a": "shop", "web/x": "front"}
	name := func(group string) string {
		if n := names[group]; n != "" {
			return n
		}
		return group
	}
	groups := []string{"berth/a", "web/x", "web/y", "batch/z", "other"}
	for _, c := range []struct {
		what  string
		roles guard.Roles
		want  []guard.Workload
	}{
		{"none", guard.Roles{}, []guard.Workload{known["berth/a"], known["berth/b"], known["berth/c"]}},
		{"groups, all below them, and names", guard.Roles{Sensitive: []string{"front", "shop"}, BestEffort: []string{"batch", "berth/[b]"}}, []guard.Workload{
			{Group: "batch/z", Class: place.BE},
			{Group: "berth/a", Class: place.LS, Sensitive: true, Protected: true},
			{Group: "berth/b", Class: place.BE},
			known["berth/c"],
			{Group: "web/x", Sensitive: true},
		}},
		{"sensitive comes first", guard.Roles{Sensitive: []string{"web/*"}, BestEffort: []string{"web"}}, []guard.Workload{
			known["berth/a"], known["berth/b"], known["berth/c"],
			{Group: "web/x", Sensitive: true}, {Group: "web/y", Sensitive: true},
		}},
	} {
		if diff := cmp.Diff(c.want, c.roles.Assign(known, groups, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
}
