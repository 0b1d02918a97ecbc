package resctrl

import (
	"fmt"
	"math/bits"
	"path"
	"slices"

	"berth.dev/berth/kernel"
)

// Plan returns the writes that give the groups of classes in use what the layout says, from
// what the tree shows: only what differs, and in an order in which no two classes of
// different partitions have a way in common that they do not have before or after. Groups of
// classes that are not in use are left to whoever undoes them. A class that is not in the
// layout is skipped; the default class is always in use.
//
// Only a cache that is full can make that order impossible; then a step says so.
func (l *Layout) Plan(t *Tree, used []string) kernel.Plan {
	p := planner{status: path.Join(t.Dir, "info/last_cmd_status"), plan: make(kernel.Plan, 0, len(l.Classes)*(1+len(t.Resources)))}
	all := make([]moving, 0, len(l.Classes))
	there, come := make([]*moving, 0, len(l.Classes)), make([]*moving, 0, len(l.Classes)) // groups that are there give way before new ones come
	var modes kernel.Plan
	empty := fresh(t)
	for i := range l.Classes {
		a := &l.Classes[i]
		if a.Name != Default && !slices.Contains(used, a.Name) {
			continue
		}
		group := a.Group()
		all = append(all, moving{a: a, dir: path.Join(t.Dir, group), want: a.Schemata, why: "class " + a.Name})
		m := &all[len(all)-1]
		m.file = m.dir + "/schemata"
		if g := t.Group(group); g != nil { // lines are replaced, and never changed
			m.there, m.mode, m.have = true, g.Mode, slices.Clone(g.Schemata)
			there = append(there, m)
		} else {
			m.have = empty
			come = append(come, m)
		}
		mode := modeShareable
		if a.Exclusive {
			mode = modeExclusive
		}
		if m.mode == modeExclusive && (!a.Exclusive || !covers(m.have, m.want)) {
			p.add(m, kernel.Step{Path: m.dir + "/mode", Value: modeShareable}, "")
			m.mode = modeShareable
		}
		if mode != m.mode && (m.there || a.Exclusive) && (m.mode != "" || a.Exclusive) {
			modes = append(modes, kernel.Step{Path: m.dir + "/mode", Value: mode, Status: p.status, Why: m.why})
		}
	}
	groups := append(there, come...)
	for i := range t.Resources {
		p.order(&t.Resources[i], groups)
	}
	for _, m := range come {
		p.make(m)
	}
	return append(p.plan, modes...)
}

// planner collects the steps of a plan.
type planner struct {
	status string
	plan   kernel.Plan
}

// add adds a step about a group. That is made before anything is written to it, and given all it
// is to have at once.
func (p *planner) add(m *moving, s kernel.Step, why string) {
	p.make(m)
	s.Status, s.Why = p.status, m.why+why
	p.plan = append(p.plan, s)
}

// make makes a group that is not there yet.
func (p *planner) make(m *moving) {
	if !m.there && !m.made {
		m.made = true
		p.plan = append(p.plan, kernel.Step{Op: kernel.Mkdir, Path: m.dir, Status: p.status, Why: m.why})
	}
}

// fresh is what is known of a new group: it has all bandwidth. Which ways it has depends on
// the modes of others at that time ("A new resource group will on creation not overlap with
// an exclusive resource group"), so they are always written.
func fresh(t *Tree) Schemata {
	var all Schemata
	for i := range t.Resources {
		r := &t.Resources[i]
		line := Line{Resource: r.Name, Values: make([]Value, 0, len(r.Domains))}
		for _, id := range r.Domains {
			line.Values = append(line.Values, Value{id, r.Max})
		}
		all = append(all, line)
	}
	return all
}

// covers reports whether all lines of one have the numbers of the other.
func covers(have, want Schemata) bool {
	for _, w := range want {
		h := have.Line(w.Resource)
		if h == nil {
			return false
		}
		for _, v := range w.Values {
			if n, ok := h.Get(v.Domain); ok && n != v.N {
				return false
			}
		}
	}
	return true
}

// moving is a group on its way to what it is to have.
type moving struct {
	a          *Assigned
	dir, file  string
	mode, why  string
	there      bool // from the start on
	made       bool // by the plan
	have, want Schemata
}

// apart reports whether two groups must not have ways in common on the way: they are of
// different partitions, and not both at the start or end anyway.
func apart(a, b *moving) bool { return a.a.Partition != b.a.Partition }

// order brings the lines of one resource from what the groups have to what they are to have.
// A write is of a whole line, and moves each cache id as far as it can.
func (p *planner) order(r *Resource, groups []*moving) {
	write := func(m *moving, to Line, why string) {
		if m.there { // what a new group has is looked at once
			*m.have.Line(r.Name) = to
		}
		p.add(m, kernel.Step{Path: m.file, Value: to.String(), Format: kernel.Schema}, why)
	}
	if !r.Cache() {
		for _, m := range groups {
			if to, differs := target(r, m); differs {
				write(m, to, "")
			}
		}
		return
	}
	settled := slices.DeleteFunc(slices.Clone(groups), func(m *moving) bool { return !m.there })
	for range 4 * len(settled) * len(r.Domains) { // more than it takes, if there is a way
		if !step(r, settled, write, whole) && !step(r, settled, write, less) && !yield(r, settled, write) {
			break
		}
	}
	for _, m := range groups { // new groups, which have no tasks yet, and a cache that is full
		if to, differs := target(r, m); differs {
			why := ""
			if m.there {
				why = "; for a moment it shares ways with another class, as none is free"
			}
			write(m, to, why)
		}
	}
}

// step moves each group as far as next says, and reports whether any moved.
func step(r *Resource, groups []*moving, write func(*moving, Line, string), next func(*Resource, []*moving, *moving, int, uint64, uint64) uint64) (moved bool) {
	for _, m := range groups {
		line, differs := target(r, m)
		if !differs {
			continue
		}
		to := Line{Resource: r.Name, Values: slices.Clone(m.have.Line(r.Name).Values)}
		changes := false
		for _, v := range line.Values {
			now, _ := to.Get(v.Domain)
			if n := next(r, groups, m, v.Domain, now, v.N); n != now {
				to.set(v.Domain, n)
				changes = true
			}
		}
		if changes {
			write(m, to, "")
			moved = true
		}
	}
	return moved
}

// whole goes to the target if that is free.
func whole(r *Resource, groups []*moving, m *moving, domain int, now, want uint64) uint64 {
	if free(r, groups, m, domain, want) {
		return want
	}
	return now
}

// less gives up what is not in the target, for others who wait for it.
func less(r *Resource, _ []*moving, _ *moving, _ int, now, want uint64) uint64 {
	if n := largest(now&want, r.Sparse); bits.OnesCount64(n) >= r.MinBits {
		return n
	}
	return now
}

// target is the line that a group is to have, where it differs from what it has.
func target(r *Resource, m *moving) (Line, bool) {
	want, have := m.want.Line(r.Name), m.have.Line(r.Name)
	if want == nil || have == nil {
		return Line{}, false
	}
	if slices.Equal(have.Values, want.Values) {
		return Line{}, false
	}
	if slices.EqualFunc(have.Values, want.Values, func(h, w Value) bool { return h.Domain == w.Domain }) {
		return *want, true // lines are replaced, and never changed
	}
	to := Line{Resource: r.Name, Values: slices.Clone(have.Values)}
	differs := false
	for i := range to.Values {
		if n, ok := want.Get(to.Values[i].Domain); ok && n != to.Values[i].N {
			to.Values[i].N, differs = n, true
		}
	}
	return to, differs
}

// free reports whether m can have some ways without sharing any with a group of another
// partition that it does not share before or after.
func free(r *Resource, groups []*moving, m *moving, domain int, ways uint64) bool {
	now, end := numbers(r, m, domain)
	for _, o := range groups {
		if o == m || !apart(o, m) {
			continue
		}
		others, then := numbers(r, o, domain)
		if others&ways&^now&^(end&then) != 0 {
			return false
		}
	}
	return true
}

// numbers are the masks of a group now and at the end.
func numbers(r *Resource, m *moving, domain int) (now, end uint64) {
	if l := m.have.Line(r.Name); l != nil {
		now, _ = l.Get(domain)
	}
	if l := m.want.Line(r.Name); l != nil {
		end, _ = l.Get(domain)
	}
	return now, end
}

// yield has one group leave ways that another waits for though it cannot have its own yet: it
// goes to the part of its target that is free, or keeps the least mask of what it has.
func yield(r *Resource, groups []*moving, write func(*moving, Line, string)) bool {
	for _, m := range groups {
		line, differs := target(r, m)
		if !differs {
			continue
		}
		to := Line{Resource: r.Name, Values: slices.Clone(m.have.Line(r.Name).Values)}
		changes := false
		for _, v := range line.Values {
			now, _ := to.Get(v.Domain)
			if now == v.N {
				continue
			}
			var taken uint64
			for _, o := range groups {
				if o != m && apart(o, m) {
					n, _ := numbers(r, o, v.Domain)
					taken |= n
				}
			}
			next := largest(v.N&^taken, r.Sparse)
			if bits.OnesCount64(next) < r.MinBits || next == now || bits.OnesCount64(now&v.N) > bits.OnesCount64(next) {
				// Keep the end of what it has that is farthest from its target.
				next = lowest(now, r.MinBits)
				if bits.TrailingZeros64(v.N) < bits.TrailingZeros64(now) {
					next = highest(now, r.MinBits)
				}
				if next == now {
					continue
				}
			}
			to.set(v.Domain, next)
			changes = true
		}
		if changes {
			write(m, to, ", on the way")
			return true
		}
	}
	return false
}

// highest are the n highest ways of a mask.
func highest(mask uint64, n int) uint64 {
	return mask &^ lowest(mask, bits.OnesCount64(mask)-n)
}

// Draw draws a mask of a cache id, the highest way first: '#' is a way of it, 'i' one that devices
// fill too, '.' another.
func Draw(r *Resource, id int, mask uint64) string {
	devices := r.Filled(id)
	var b []byte
	for i := bits.Len64(r.Mask) - 1; i >= 0; i-- {
		switch {
		case mask>>i&1 == 1:
			b = append(b, '#')
		case devices>>i&1 == 1:
			b = append(b, 'i')
		default:
			b = append(b, '.')
		}
	}
	return string(b)
}

// TextOf says what a class has by a line: of all domains where they are alike, else of the
// first, and that others differ.
func (r *Resource) TextOf(l *Line) string {
	for _, v := range l.Values[1:] {
		if v.N != l.Values[0].N {
			return fmt.Sprintf("%s of id %d, others differ", r.Text(l.Values[0].N), l.Values[0].Domain)
		}
	}
	return r.Text(l.Values[0].N)
}

// Text says what a class has of a cache or of bandwidth: "4 of 11 ways", "50%".
func (r *Resource) Text(n uint64) string {
	switch {
	case r.Cache():
		return fmt.Sprintf("%d of %d ways", bits.OnesCount64(n), r.Ways())
	case n >= r.Max:
		return "no limit"
	case r.Unit == EighthG:
		return fmt.Sprintf("%.3g GB/s", float64(n)/8)
	case r.Unit == MBps:
		return fmt.Sprintf("%d MiB/s", n)
	}
	return fmt.Sprintf("%d%%", n)
}
