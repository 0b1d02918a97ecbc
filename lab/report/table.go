package report

import (
	"slices"
	"strings"

	"berth.dev/berth/internal/plain"
)

// Cell is one field of a text table.
type Cell struct {
	Text  string
	Style Style
}

// Column is a column of a text table. All cells are right-aligned but those of
// left columns.
type Column struct {
	Head, Unit string
	Left       bool
	Cells      []Cell
}

// Add adds a cell.
func (c *Column) Add(text string) { c.Cells = append(c.Cells, Cell{Text: text}) }

func (c Column) width() int {
	w := max(plain.Width(c.Head), plain.Width(c.Unit))
	for _, cell := range c.Cells {
		w = max(w, plain.Width(cell.Text))
	}
	return w
}

// Style is an ANSI rendition.
type Style string

const (
	normal Style = ""
	bold   Style = "1"
	faint  Style = "2"
	red    Style = "31"
	green  Style = "32"
	yellow Style = "33"
)

// paint applies the style where colour is allowed.
func (o Options) paint(s Style, text string) string {
	if !o.Color || s == normal || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

const columnGap = 2

func tableWidth(columns []Column) int {
	w := 0
	for i, c := range columns {
		if i > 0 {
			w += columnGap
		}
		w += c.width()
	}
	return w
}

// Table writes a blank line and the columns under their heads. A row in spans shows
// its first cell and then that text, wrapped to the width, instead of the others.
func (s *Sheet) Table(columns []Column, spans map[int]string) {
	heads, units := make([]string, len(columns)), make([]string, len(columns))
	var right []int
	for i, c := range columns {
		heads[i], units[i] = s.o.paint(bold, c.Head), s.o.paint(faint, c.Unit)
		if !c.Left {
			right = append(right, i)
		}
	}
	rows := [][]string{heads}
	if slices.ContainsFunc(columns, func(c Column) bool { return c.Unit != "" }) {
		rows = append(rows, units)
	}
	above := len(rows)
	for n := range columns[0].Cells {
		var row []string
		for _, c := range columns {
			row = append(row, s.o.paint(c.Cells[n].Style, c.Cells[n].Text))
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	plain.Columns(&b, rows, right...)
	s.b.WriteString("\n")
	indent, n := columns[0].width()+columnGap, -above
	for line := range strings.Lines(b.String()) {
		if text, ok := spans[n]; ok {
			line = rows[above+n][0]
			line += strings.Repeat(" ", indent-plain.Width(line)) + strings.Join(plain.Wrap(text, s.o.width()-indent), "\n"+strings.Repeat(" ", indent)) + "\n"
		}
		s.b.WriteString(line)
		n++
	}
}
