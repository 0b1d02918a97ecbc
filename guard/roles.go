package guard

import (
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// Roles are globs (path.Match) of groups, or of their names as workloads: those that are
// to be helped, and those that may be squeezed. A glob covers all groups in one.
type Roles struct{ Sensitive, BestEffort []string }

// Assign returns the known workloads, given by group, and those that a role makes of the
// other groups, in order. A sensitive group is never best effort.
func (r *Roles) Assign(known map[string]Workload, groups []string, name func(group string) string) []Workload {
	all := maps.Clone(known)
	for _, group := range slices.Concat(groups, slices.Collect(maps.Keys(known))) {
		w := all[group]
		w.Group = group
		switch names := []string{group, name(group)}; {
		case slices.ContainsFunc(names, func(n string) bool { return covers(r.Sensitive, n) }):
			if w.Sensitive = true; w.Class == place.BE {
				w.Class = place.LS
			}
		case slices.ContainsFunc(names, func(n string) bool { return covers(r.BestEffort, n) }):
			w.Class, w.Sensitive = place.BE, false
		default:
			continue
		}
		all[group] = w
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Workload) int { return strings.Compare(a.Group, b.Group) })
}

func covers(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return kernel.Covers(glob, name) })
}
