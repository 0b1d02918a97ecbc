package cli

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
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
	// numbered writes the number of each CPU above its mark and, where used has it, a bar
	// below: the part of the time for which it ran something.
	numbered bool
	used     map[int]float64
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

// layer is one thing that is drawn of each CPU, in so many columns.
type layer struct {
	name  string
	width int
	of    func(cpu int) string
}

// layers are the lines of a drawing, from above.
func (d *replayDrawing) layers(marks map[int]rune) []layer {
	last, _ := d.t.Online().Last()
	width := len(strconv.Itoa(last))
	pad := strings.Repeat(" ", width-1)
	mark := func(cpu int) string { return d.painted([]rune{marks[cpu]}) }
	if !d.numbered {
		return []layer{{"", 1, mark}}
	}
	layers := []layer{
		{"CPU", width, func(cpu int) string { return fmt.Sprintf("%*d", width, cpu) }},
		{"owner", width, func(cpu int) string { return pad + mark(cpu) }},
	}
	if len(d.used) > 0 {
		layers = append(layers, layer{"used", width, func(cpu int) string {
			used, ok := d.used[cpu]
			if !ok {
				used = math.NaN()
			}
			return pad + string(plain.Bar(used))
		}})
	}
	return layers
}

// draw writes for each NUMA node its cores, with a mark for each thread and bars
// between L3 domains. Then the legend.
func (d *replayDrawing) draw(b *strings.Builder, s *place.State) {
	marks, legend := d.marks(s)
	layers := d.layers(marks)
	var rows [][]string
	for pos, u := range d.t.Units(machine.Node) {
		label, cpus := d.label(pos), list(u.CPUs)
		drawn := make([][]string, len(layers))
		for i := range layers {
			drawn[i] = d.cores(pos, &layers[i])
		}
		for line := range drawn[0] {
			for i, l := range layers {
				row := []string{" ", label, drawn[i][line], cpus}
				if d.numbered {
					row = []string{" ", label, l.name, drawn[i][line]}
				}
				rows = append(rows, row)
				label, cpus = "", ""
			}
		}
	}
	plain.Columns(b, rows)
	if len(d.used) > 0 {
		b.WriteString("    used: from ▁ (idle) to █ (all of the time)\n")
	}
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

// cores returns the lines of a layer; a memory-only node has none.
func (d *replayDrawing) cores(node int, l *layer) []string {
	var lines []string
	var line strings.Builder
	columns := 0
	cores := d.t.Cores(machine.Node, node)
	for i, core := range cores {
		if i > 0 && d.t.Of(machine.L3, int(core)) != d.t.Of(machine.L3, int(cores[i-1])) {
			line.WriteString("| ")
			columns += 2
		}
		if columns >= drawWidth {
			lines, columns = append(lines, line.String()), 0
			line.Reset()
		}
		for cpu := range d.t.Units(machine.Core)[core].CPUs.All() {
			line.WriteString(l.of(cpu))
			columns += l.width
			if l.width > 1 {
				line.WriteByte(' ')
				columns++
			}
		}
		line.WriteByte(' ')
		columns++
	}
	if columns > 0 {
		lines = append(lines, line.String())
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
		{markPool, "shared pool"}, {markKept, "shared pool, never exclusive (reserved, floor)"}, {markIdle, "kept idle beside an owner"},
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
