package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
)

// branch is one set of CPUs in the drawing with every domain that has exactly
// these CPUs. Branches nest as their sets do.
type branch struct {
	cpus     cpuset.Set
	domains  []machine.Domain
	children []*branch
	leaves   []leaf // of the cores that no child has
	shape    string // equal for branches that differ in nothing but numbers
}

// topoTree nests a machine's domains by their CPUs. Cores, and L2 caches of
// single cores, are no branches: leaves summarise them.
type topoTree struct {
	m       *machine.Machine
	root    *branch
	crosses []machine.Domain // neither inside nor apart from a branch: drawn beside the tree
	l2      map[cpuset.Set]machine.Domain
	kinds   map[int]string // core kind by CPU
}

func newTopoTree(m *machine.Machine) *topoTree {
	t := &topoTree{m: m, root: &branch{cpus: m.Online}, l2: map[cpuset.Set]machine.Domain{}, kinds: map[int]string{}}
	for _, c := range m.CPUs {
		t.kinds[c.ID] = c.Kind
	}
	isCore := map[cpuset.Set]bool{}
	for _, c := range m.ByKind(machine.Core) {
		isCore[c.CPUs] = true
	}
	branches := map[cpuset.Set]*branch{m.Online: t.root}
	var order []*branch
	for _, d := range m.Domains {
		switch {
		case d.CPUs.IsEmpty() || d.Kind == machine.Core:
			continue
		case d.Kind == machine.L2 && isCore[d.CPUs]:
			t.l2[d.CPUs] = d
			continue
		}
		b, ok := branches[d.CPUs]
		if !ok {
			b = &branch{cpus: d.CPUs}
			branches[d.CPUs] = b
			order = append(order, b)
		}
		b.domains = append(b.domains, d)
	}
	// Large before small: each branch then goes below one that is there.
	slices.SortStableFunc(order, func(a, b *branch) int { return cmp.Compare(b.cpus.Len(), a.cpus.Len()) })
	for _, b := range order {
		if !t.root.insert(b) {
			t.crosses = append(t.crosses, b.domains...)
		}
	}
	t.finish(t.root)
	return t
}

// insert puts b below the smallest branch that contains it; false if it
// crosses one.
func (at *branch) insert(b *branch) bool {
	for _, child := range at.children {
		if child.cpus.Contains(b.cpus) {
			return child.insert(b)
		}
		if child.cpus.Overlaps(b.cpus) {
			return false
		}
	}
	at.children = append(at.children, b)
	return true
}

// finish orders the children by their lowest CPU and fills in the derived
// fields, from the innermost branch outwards.
func (t *topoTree) finish(b *branch) {
	slices.SortFunc(b.children, func(x, y *branch) int {
		firstX, _ := x.cpus.First()
		firstY, _ := y.cpus.First()
		return cmp.Compare(firstX, firstY)
	})
	var shape strings.Builder
	for _, d := range b.domains {
		fmt.Fprintf(&shape, "%s:%d ", d.Kind, d.Bytes)
	}
	b.leaves = t.leaves(b)
	for _, l := range b.leaves {
		fmt.Fprintf(&shape, "(%s) ", l.label())
	}
	for _, c := range b.children {
		t.finish(c)
		fmt.Fprintf(&shape, "[%s] ", c.shape)
	}
	b.shape = shape.String()
}

// leaf is a summary of alike cores directly inside a branch.
type leaf struct {
	kind    string // core kind
	threads int    // per core; 0 for CPUs whose core is unknown
	l2      int64  // bytes of each core's own L2, 0 if shared or unknown
	cores   []cpuset.Set
}

// leaves summarises the cores of b that are in no child.
func (t *topoTree) leaves(b *branch) []leaf {
	rest := b.cpus
	for _, c := range b.children {
		rest = rest.Minus(c.cpus)
	}
	var leaves []leaf
	for first := range rest.All() {
		d, ok := t.m.Of(machine.Core, first)
		core := d.CPUs
		if !ok || !rest.Contains(core) {
			continue
		}
		rest = rest.Minus(core)
		l := leaf{kind: t.kinds[first], threads: core.Len(), l2: t.l2[core].Bytes}
		at := slices.IndexFunc(leaves, func(o leaf) bool {
			return o.kind == l.kind && o.threads == l.threads && o.l2 == l.l2
		})
		if at < 0 {
			at = len(leaves)
			leaves = append(leaves, l)
		}
		leaves[at].cores = append(leaves[at].cores, core)
	}
	if !rest.IsEmpty() {
		leaves = append(leaves, leaf{cores: []cpuset.Set{rest}})
	}
	return leaves
}

// label is "16 cores x 2 threads, 2 MiB L2 each".
func (l leaf) label() string {
	if l.threads == 0 {
		return plain.Count(l.cores[0].Len(), "CPU") + ", cores unknown"
	}
	what := "core"
	if l.kind != "" {
		what = l.kind + " core"
	}
	s := plain.Count(len(l.cores), what) + " x " + plain.Count(l.threads, "thread")
	switch {
	case l.l2 == 0:
		return s
	case len(l.cores) == 1:
		return s + ", " + plain.Bytes(l.l2) + " L2"
	}
	return s + ", " + plain.Bytes(l.l2) + " L2 each"
}

// cpus is "0-15" for single threads, "0,16 1,17 … 15,31" for siblings.
func (l leaf) cpus() string {
	if l.threads < 2 {
		var all cpuset.Set
		for _, c := range l.cores {
			all = all.Union(c)
		}
		return list(all)
	}
	return ellipsis(l.cores, " ")
}

// ellipsis writes up to four sets, or the first two and the last.
func ellipsis(sets []cpuset.Set, between string) string {
	var parts []string
	for i, s := range sets {
		switch {
		case len(sets) <= 4 || i < 2 || i == len(sets)-1:
			parts = append(parts, list(s))
		case i == 2:
			parts = append(parts, "…")
		}
	}
	return strings.Join(parts, between)
}

// cutRuns cuts children into runs to draw as one: three or more caches or dies of
// one shape in a row. Sockets and nodes are always drawn one by one.
func cutRuns(children []*branch) (runs [][]*branch) {
	for len(children) > 0 {
		first, n := children[0], 1
		for n < len(children) && children[n].shape == first.shape && !first.has(machine.Socket) && !first.has(machine.Node) {
			n++
		}
		if n < 3 {
			n = 1
		}
		runs, children = append(runs, children[:n]), children[n:]
	}
	return runs
}

func (at *branch) has(k machine.Kind) bool {
	return slices.ContainsFunc(at.domains, func(d machine.Domain) bool { return d.Kind == k })
}
