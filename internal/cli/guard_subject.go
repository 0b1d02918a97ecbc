package cli

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/guard"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch/pods"
)

// resolve puts the path of its group in the place of each name that is not a glob: a unit's,
// a process's or a program's. What names nothing stays: it may be yet to come.
func (g *guarding) resolve() error {
	for _, f := range g.flags.subjects() {
		for i, name := range f.names {
			if strings.ContainsAny(name, `*?[\`) {
				continue
			}
			group, err := g.subjects.group(name)
			if is[*noGroupError](err) {
				return exitStatus{exitUsage, fmt.Errorf("--%s %w", f.flag, err)}
			}
			h := &g.subjects.header
			if err != nil || group == name || shownName(h, group) == name {
				continue
			}
			if found := pods.Find(name, podsOf(h)); len(found) == 1 {
				f.names[i] = shownName(h, found[0]) // its containers may be others by the next minute
				continue
			}
			f.names[i] = group
			if !isJSON(g.cmd) && path.Base(group) != name {
				g.complain(fmt.Sprintf("--%s %s is the control group /%s", f.flag, name, group))
			}
		}
	}
	return nil
}

// subjectFlag is a flag that names workloads.
type subjectFlag struct {
	flag  string
	names []string
}

func (f *guardFlags) subjects() []subjectFlag {
	return []subjectFlag{{"sensitive", f.sensitive}, {"best-effort", f.bestEffort}, {"protect", f.protect}}
}

// near hints at what a name may have been meant to be.
func (g *guarding) near(name string) string {
	names, _ := g.subjects.host.Names()
	return g.subjects.near(name, names)
}

// tellUnmatched says which globs name no group with processes now: a typing error in --protect is
// not to be found out by what happens.
func (g *guarding) tellUnmatched(host *guard.Host) error {
	groups, err := host.Groups()
	if err != nil {
		return err
	}
	for _, f := range g.flags.subjects() {
		for _, glob := range f.names {
			matches := func(group string) bool { return kernel.Covers(glob, group) || kernel.Covers(glob, g.name(group)) }
			if !slices.ContainsFunc(groups, matches) {
				g.complain(fmt.Sprintf("--%s %s: names no control group with processes so far%s", f.flag, glob, g.near(glob)))
			}
		}
	}
	return nil
}
