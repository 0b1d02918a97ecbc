package beside

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/lab"
)

// division is what a cell gives the tenant of the last-level cache, and leaves the neighbour of
// it or of memory bandwidth.
type division struct {
	// ways are the tenant's own of a cache that has so many, of which a mask has least at
	// least; the neighbour has the others. nil leaves them shared.
	ways func(all, least int) int
	// percent is what the neighbour has of the bandwidth where the CPU limits it so, and bytes
	// per second where it limits amounts; 0 is no limit.
	percent uint64
	bytes   float64
}

func fixed(n int) func(int, int) int { return func(int, int) int { return n } }

// groupPrefix is in front of a role in the name of its group of resctrl. Neither classes nor the
// guard have groups of such names, so an agent leaves it alone.
const groupPrefix = "lab-berth-"

// of are the lines of each role's group, where work of both had those of a group before.
func (d *division) of(t *resctrl.Tree, from *resctrl.Group) (map[lab.Role]resctrl.Schemata, error) {
	lines := map[lab.Role]resctrl.Schemata{}
	for i := range from.Schemata {
		l := &from.Schemata[i]
		r := t.Find(l.Resource)
		switch {
		case d.ways != nil && r.Cache() && r.Level() == "L3":
			own, others, err := d.divide(r, l)
			if err != nil {
				return nil, err
			}
			lines[lab.Tenant], lines[lab.Neighbour] = append(lines[lab.Tenant], own), append(lines[lab.Neighbour], others)
		case d.ways == nil && r.Name == "MB":
			most := d.percent
			if each, unit := r.Amount(1); unit != "ratio" {
				most = uint64(d.bytes / each)
			}
			lines[lab.Neighbour] = append(lines[lab.Neighbour], r.Narrow(l, most))
		}
	}
	no := &kernel.NotSupportedError{Feature: "ways of their own", Reason: "resctrl divides no last-level cache here", Remedy: "a CPU with CAT; see 'berth doctor'"}
	if d.ways == nil {
		no.Feature, no.Reason, no.Remedy = "less bandwidth", "resctrl does not limit memory bandwidth here", "a CPU with MBA; see 'berth doctor'"
	}
	if len(lines) == 0 {
		return nil, no
	}
	if n := t.CLOSIDs(); len(t.Groups)+len(lines) > n {
		no.Reason = fmt.Sprintf("the cell needs %d groups of resctrl, and %d of the CPU's %d CLOSIDs are in use", len(lines), len(t.Groups), n)
		no.Remedy = "remove classes, or groups of resctrl that nobody needs"
		return nil, no
	}
	return lines, nil
}

// divide gives one role the lowest ways of a line, and the other the rest.
func (d *division) divide(r *resctrl.Resource, l *resctrl.Line) (own, others resctrl.Line, err error) {
	others = resctrl.Line{Resource: l.Resource, Values: slices.Clone(l.Values)}
	fewest := r.Ways()
	for _, v := range l.Values {
		fewest = min(fewest, bits.OnesCount64(v.N))
	}
	n := d.ways(fewest, r.MinBits)
	if n < r.MinBits || fewest-n < r.MinBits {
		return own, others, &kernel.NotSupportedError{
			Feature: "ways of their own", Reason: fmt.Sprintf("%d of %d ways of %s for the tenant leave one of the two less than the %d that a mask must have", n, fewest, r.Name, r.MinBits),
		}
	}
	own = r.Narrow(l, uint64(n))
	for i := range others.Values {
		others.Values[i].N &^= own.Values[i].N
	}
	return own, others, nil
}

// check says why this host cannot have the division.
func (d *division) check(fsys fs.FS) error {
	t, err := resctrl.Read(fsys)
	if err == nil {
		_, err = d.of(t, t.Group(""))
	}
	return err
}

// apply gives the threads of the roles their groups, by a plan that apply notes in an undo log,
// and returns what takes them back.
func (d *division) apply(root *kernel.Root, threads func(lab.Role) ([]int, error), apply func(kernel.Plan) (func() error, error)) (undo func() error, err error) {
	t, err := resctrl.Read(root.FS())
	if err != nil {
		return nil, err
	}
	in, err := t.Members(root.FS())
	if err != nil {
		return nil, err
	}
	var all []int
	for _, role := range []lab.Role{lab.Tenant, lab.Neighbour} {
		tids, err := threads(role)
		if err != nil {
			return nil, err
		}
		all = append(all, tids...)
	}
	from, err := t.Origin(in, all)
	if err != nil {
		return nil, err
	}
	lines, err := d.of(t, from)
	if err != nil {
		return nil, err
	}
	var plan kernel.Plan
	for _, role := range []lab.Role{lab.Tenant, lab.Neighbour} {
		if lines[role] != nil {
			plan = append(plan, t.Alone(groupPrefix+string(role), from, lines[role])...)
		}
	}
	if undo, err = apply(plan); err != nil {
		return nil, err
	}
	for role := range lines {
		if _, _, err := resctrl.Follow(root, t, groupPrefix+string(role), func() ([]int, error) { return threads(role) }); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	return undo, nil
}

// prepareDivided has the division in force from the time at which the load begins until it is
// over.
func (x *Experiment) prepareDivided(d *division, b *lab.Testbed, to *lab.Cell) error {
	if err := d.check(x.fsys); err != nil {
		return err
	}
	to.Hooks.Settle = func(_ context.Context, r *lab.Running) error {
		root, err := kernel.Open("/")
		if err != nil {
			return err
		}
		undo, err := d.apply(root, r.Threads, b.Apply)
		if err == nil {
			r.Finish(undo)
		}
		return err
	}
	return nil
}

// divisions says what ways and bandwidth bring the tenant and cost the neighbour.
func (v *view) divisions() []string {
	var answer []string
	for _, c := range v.design.cells {
		if c.division == nil || !v.Ran(c.name) || !v.Ran(sameCache) {
			continue
		}
		cpu, p99, work := v.Of(c.name, sameCache, lab.CPUPerRequest.Name), v.Of(c.name, sameCache, lab.P99.Name), v.Of(c.name, sameCache, lab.Work.Name)
		answer = append(answer, fmt.Sprintf("%s, against same cache: CPU time per request: %s; p99: %s; the neighbour's work: %s.",
			strings.ToUpper(c.name[:1])+c.name[1:], verdict(cpu), verdict(p99), verdict(work)))
	}
	if answer == nil {
		if at := slices.IndexFunc(v.Experiment.Skipped, func(s lab.Skipped) bool { return v.design.divides(s.Scenario) }); at >= 0 {
			answer = []string{"What ways of its own and less bandwidth of the neighbour bring cannot be measured here: " + v.Experiment.Skipped[at].Reason + "."}
		}
	}
	return answer
}

// divides reports whether a cell divides the cache or limits bandwidth.
func (d *design) divides(name string) bool {
	return slices.ContainsFunc(d.cells, func(c cell) bool { return c.name == name && c.division != nil })
}

// divided reports whether any round was.
func (x *Experiment) divided() bool {
	return slices.ContainsFunc(x.Rounds, func(r lab.Round) bool { return x.design.divides(r.Scenario) })
}
