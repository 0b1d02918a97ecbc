package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Marks of CPUs without an owner.
const (
	markPool     = '.'
	markKept     = ':' // of the pool, and never exclusive
	markIdle     = '-'
	markIsolated = '+'
	markDenied   = ' '
	markUnnamed  = '*' // owners beyond those that have a letter
)

const ownerLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// replayDrawing draws the CPUs of a machine. A workload keeps its letter over
// all steps.
type replayDrawing struct {
	t       *place.Topology
	letters map[string]rune // by owner: a workload, or "pool NAME"
	// title names a workload in the legend; nil is its id.
	title func(*place.Grant) string
	// paint colours a mark; nil leaves it.
	paint func(rune) string
}

func newReplayDrawing(t *place.Topology) *replayDrawing {
	return &replayDrawing{t: t, letters: map[string]rune{}}
}

func (d *replayDrawing) letter(owner string) rune {
	l, ok := d.letters[owner]
	if !ok {
		l = markUnnamed
		if n := len(d.letters); n < len(ownerLetters) {
			l = rune(ownerLetters[n])
		}
		d.letters[owner] = l
	}
	return l
}

// drawWidth is where the cores of a node continue on the next line.
const drawWidth = 80

// draw writes for each NUMA node its cores, with a mark for each thread and bars
// between L3 domains. Then the legend.
func (d *replayDrawing) draw(b *strings.Builder, s *place.State) {
	marks, legend := d.marks(s)
	var rows [][]string
	for pos, u := range d.t.Units(machine.Node) {
		label, cpus := d.label(pos), list(u.CPUs)
		for _, line := range d.cores(pos, marks) {
			rows = append(rows, []string{" ", label, line, cpus})
			label, cpus = "", ""
		}
	}
	plain.Columns(b, rows)
	for _, l := range legend {
		mark, text, ok := strings.Cut(plain.Line(l), " ")
		if ok && utf8.RuneCountInString(mark) == 1 {
			mark = d.painted([]rune(mark))
		}
		fmt.Fprintf(b, "    %s %s\n", mark, text)
	}
}

// label names a node, with its socket where there are several.
func (d *replayDrawing) label(node int) string {
	label := d.t.Label(machine.Node, node)
	cores := d.t.Cores(machine.Node, node)
	if d.title == nil || len(cores) == 0 || len(d.t.Units(machine.Socket)) < 2 {
		return label
	}
	return d.t.Label(machine.Socket, d.t.Of(machine.Socket, int(cores[0]))) + " " + label
}

// painted writes marks, in colour if they have any.
func (d *replayDrawing) painted(marks []rune) string {
	if d.paint == nil {
		return string(marks)
	}
	var b strings.Builder
	for _, m := range marks {
		b.WriteString(d.paint(m))
	}
	return b.String()
}

func (d *replayDrawing) name(g *place.Grant) string {
	if d.title == nil {
		return g.ID
	}
	return d.title(g)
}

// cores returns lines of marks; a memory-only node has no lines.
func (d *replayDrawing) cores(node int, marks map[int]rune) []string {
	var lines []string
	var line []rune
	cores := d.t.Cores(machine.Node, node)
	for i, core := range cores {
		if i > 0 && d.t.Of(machine.L3, int(core)) != d.t.Of(machine.L3, int(cores[i-1])) {
			line = append(line, '|', ' ')
		}
		if len(line) >= drawWidth {
			lines, line = append(lines, d.painted(line)), nil
		}
		for cpu := range d.t.Units(machine.Core)[core].CPUs.All() {
			line = append(line, marks[cpu])
		}
		line = append(line, ' ')
	}
	if len(line) > 0 {
		lines = append(lines, d.painted(line))
	}
	return lines
}

// marks returns the mark of each CPU, and the legend.
func (d *replayDrawing) marks(s *place.State) (map[int]rune, []string) {
	marks := map[int]rune{}
	seen := map[rune]bool{}
	put := func(set cpuset.Set, mark rune) {
		for cpu := range set.All() {
			marks[cpu] = mark
		}
	}
	conf, isolated := s.Config(), s.Topology().Machine().Isolated
	put(s.Topology().Online(), markDenied)
	put(s.Sharable(), markPool)
	put(s.Sharable().Intersect(conf.Reserved.Union(conf.Floor)), markKept)
	put(s.Sharable().Intersect(isolated), markIsolated)
	var legend []string
	for p := range s.Pools() {
		l := d.letter("pool " + p.Name)
		put(p.CPUs, l)
		legend = append(legend, fmt.Sprintf("%c pool %s: %s", l, p.Name, cell(p.CPUs)))
	}
	for g := range s.Grants() {
		put(g.Fence, markIdle)
		own := g.Held()
		if own.IsEmpty() {
			continue
		}
		l := d.letter(g.ID)
		put(own, l)
		text := fmt.Sprintf("%c %s: %s", l, d.name(g), list(own))
		if g.Lent {
			text += ", shared with best effort"
		}
		legend = append(legend, text)
	}
	slices.SortStableFunc(legend, func(a, b string) int {
		return cmp.Compare(strings.IndexByte(ownerLetters, a[0]), strings.IndexByte(ownerLetters, b[0]))
	})
	for _, m := range marks {
		seen[m] = true
	}
	for _, m := range []struct {
		mark rune
		text string
	}{
		{markPool, "shared pool"}, {markKept, "shared pool, kept: reserved or floor"}, {markIdle, "kept idle beside an owner"},
		{markIsolated, "isolated, free"}, {markUnnamed, "further owners"},
	} {
		if seen[m.mark] {
			legend = append(legend, fmt.Sprintf("%c %s", m.mark, m.text))
		}
	}
	return marks, append(legend, d.sharers(s)...)
}

// sharers lists the workloads without exclusive CPUs, by the CPUs that they run on.
func (d *replayDrawing) sharers(s *place.State) []string {
	ids := map[string][]string{}
	var places []string // in the order of their first workloads
	for g := range s.Grants() {
		if !g.Held().IsEmpty() {
			continue
		}
		where := list(s.Effective(g))
		if g.Share.Pool != "" {
			where = "pool " + g.Share.Pool
		}
		if ids[where] == nil {
			places = append(places, where)
		}
		ids[where] = append(ids[where], d.name(g))
	}
	var lines []string
	for _, where := range places {
		lines = append(lines, "on "+where+": "+strings.Join(ids[where], ", "))
	}
	return lines
}
