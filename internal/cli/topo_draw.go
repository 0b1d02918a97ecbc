package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
)

// drawMachine draws m for a terminal: a summary in a few lines, the tree of
// its domains, NUMA distances, and what is unusual about it.
func drawMachine(m *machine.Machine, unusual []machine.Note) string {
	d := &drawing{tree: newTopoTree(m)}
	d.draw()
	var b strings.Builder
	b.WriteString(headline(m) + "\n")
	for _, l := range d.lines {
		l[0] += " " // three between the columns
	}
	plain.Columns(&b, d.lines)
	if len(m.ByKind(machine.Node)) > 1 && len(m.Distances) > 0 {
		b.WriteByte('\n')
		b.WriteString(distanceTable(m))
	}
	if len(unusual) > 0 {
		b.WriteString("\nunusual\n")
		for _, n := range unusual {
			fmt.Fprintf(&b, "  - %s\n", n.Text)
		}
	}
	return b.String()
}

// headline is two or three lines: the name and model, the counts, the speeds.
func headline(m *machine.Machine) string {
	var b strings.Builder
	title := slices.DeleteFunc([]string{m.Name, m.Model}, func(s string) bool { return s == "" })
	if len(title) > 0 {
		fmt.Fprintln(&b, strings.Join(title, ": "))
	}
	counts := []string{plain.Count(m.Online.Len(), "CPU")}
	for _, c := range []struct {
		kind machine.Kind
		name string
	}{{machine.Core, "core"}, {machine.Socket, "socket"}, {machine.Node, "NUMA node"}, {machine.L3, "L3 cache"}} {
		if n := len(m.ByKind(c.kind)); n > 0 {
			counts = append(counts, plain.Count(n, c.name))
		}
	}
	var memory int64
	for _, n := range m.ByKind(machine.Node) {
		memory += n.Bytes
	}
	if memory > 0 {
		counts = append(counts, plain.Bytes(memory)+" memory")
	}
	fmt.Fprintln(&b, strings.Join(counts, ", "))
	b.WriteString(speeds(m))
	return b.String()
}

// speeds is a line for each kind of core whose frequencies are known.
func speeds(m *machine.Machine) string {
	type speed struct {
		kind      string
		base, max int
	}
	var order []speed
	cpus := map[speed]cpuset.Set{}
	for _, c := range m.CPUs {
		s := speed{c.Kind, c.BaseKHz, c.MaxKHz}
		if s.base == 0 && s.max == 0 {
			continue
		}
		if _, known := cpus[s]; !known {
			order = append(order, s)
		}
		cpus[s], _ = cpus[s].With(c.ID)
	}
	var b strings.Builder
	for _, s := range order {
		var parts []string
		if s.base > 0 {
			parts = append(parts, fmt.Sprintf("%.2f GHz base", float64(s.base)/1e6))
		}
		if s.max > 0 {
			parts = append(parts, fmt.Sprintf("%.2f GHz max", float64(s.max)/1e6))
		}
		b.WriteString(strings.Join(parts, ", "))
		if cpus[s] != m.Online {
			fmt.Fprintf(&b, " on %s", strings.TrimSpace(s.kind+" "+list(cpus[s])))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// drawing is the tree as lines of two columns.
type drawing struct {
	tree  *topoTree
	lines [][]string
}

func (d *drawing) line(prefix, label, cpus string) {
	d.lines = append(d.lines, []string{prefix + label, cpus})
}

func (d *drawing) draw() {
	t := d.tree
	d.line("", "", "CPUs")
	root := t.root
	var memoryOnly []machine.Domain
	for _, n := range t.m.ByKind(machine.Node) {
		if n.CPUs.IsEmpty() {
			memoryOnly = append(memoryOnly, n)
		}
	}
	if len(root.domains) > 0 && len(memoryOnly) > 0 {
		root = &branch{cpus: root.cpus, children: []*branch{root}}
	}
	label := "machine"
	if len(root.domains) > 0 {
		label = domainLabel(root.domains)
	}
	d.line("", label, list(root.cpus))
	d.below("", root, memoryOnly)
	for _, c := range t.crosses {
		d.line("", "across the tree: "+domainLabel([]machine.Domain{c}), list(c.CPUs))
	}
}

// below draws the branches inside b, then the memory-only nodes.
func (d *drawing) below(prefix string, b *branch, memoryOnly []machine.Domain) {
	leaves, runs := b.leaves, cutRuns(b.children)
	left := len(leaves) + len(runs) + len(memoryOnly)
	// next returns the prefixes of the next line and of those below it.
	next := func() (string, string) {
		if left--; left > 0 {
			return prefix + "├─ ", prefix + "│  "
		}
		return prefix + "└─ ", prefix + "   "
	}
	for _, l := range leaves {
		here, _ := next()
		d.line(here, l.label(), l.cpus())
	}
	for _, run := range runs {
		here, deeper := next()
		d.run(here, deeper, run)
	}
	for _, n := range memoryOnly {
		here, _ := next()
		d.line(here, domainLabel([]machine.Domain{n})+", memory only", "none")
	}
}

// run draws one branch, or several of one shape as one.
func (d *drawing) run(here, deeper string, run []*branch) {
	if len(run) == 1 {
		d.line(here, domainLabel(run[0].domains), list(run[0].cpus))
		d.below(deeper, run[0], nil)
		return
	}
	var sets []cpuset.Set
	for _, b := range run {
		sets = append(sets, b.cpus)
	}
	var parts []string
	for i, first := range shown(run[0].domains) {
		var ids cpuset.Set
		for _, b := range run {
			ids, _ = ids.With(shown(b.domains)[i].ID)
		}
		parts = append(parts, withSize(kindName(first.Kind)+" "+list(ids), first.Bytes, " each"))
	}
	d.line(here, strings.Join(parts, ", "), ellipsis(sets, " | "))
	first := len(d.lines)
	d.below(deeper, run[0], nil)
	for i := first; i < len(d.lines); i++ {
		d.lines[i][0] += ", in each"
		d.lines[i][1] += " …"
	}
}

// distanceTable has a row and a column for each node.
func distanceTable(m *machine.Machine) string {
	nodes := m.ByKind(machine.Node)
	var b strings.Builder
	b.WriteString("NUMA distances\nnode")
	for _, to := range nodes {
		fmt.Fprintf(&b, " %4d", to.ID)
	}
	for _, from := range nodes {
		fmt.Fprintf(&b, "\n%4d", from.ID)
		for _, to := range nodes {
			distance, _ := m.Distance(from.ID, to.ID)
			fmt.Fprintf(&b, " %4d", distance)
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// shown leaves out dies that are whole sockets.
func shown(domains []machine.Domain) []machine.Domain {
	if domains[0].Kind != machine.Socket {
		return domains
	}
	return slices.DeleteFunc(slices.Clone(domains), func(d machine.Domain) bool { return d.Kind == machine.Die })
}

func domainLabel(domains []machine.Domain) string {
	var parts []string
	for _, d := range shown(domains) {
		parts = append(parts, withSize(kindName(d.Kind)+" "+strconv.Itoa(d.ID), d.Bytes, ""))
	}
	return strings.Join(parts, ", ")
}

func withSize(label string, bytes int64, each string) string {
	if bytes == 0 {
		return label
	}
	return label + " (" + plain.Bytes(bytes) + each + ")"
}

func kindName(k machine.Kind) string {
	switch k {
	case machine.L3, machine.L2:
		return strings.ToUpper(k.String())
	}
	return k.String()
}

// list writes a set, the middle of a long one left out.
func list(s cpuset.Set) string {
	const most, start = 56, 32
	text := s.String()
	if len(text) <= most {
		return text
	}
	head := text[:strings.LastIndexByte(text[:start], ',')+1]
	tail := text[strings.LastIndexByte(text, ','):]
	return fmt.Sprintf("%s…%s (%d)", head, tail, s.Len())
}
