package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"berth.dev/berth/internal/plain"
)

// Options are how text is laid out. The zero value is 100 columns, no colour.
type Options struct {
	// Width is the number of columns to fit into; below 60 counts as 60.
	Width int
	// Color allows ANSI colours.
	Color bool
}

func (o Options) width() int {
	if o.Width == 0 {
		return 100
	}
	return max(o.Width, 60)
}

// ANSI renditions.
const (
	bold   = "1"
	faint  = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// paint applies a rendition where colour is allowed.
func (o Options) paint(rendition, text string) string {
	if !o.Color || rendition == "" || text == "" {
		return text
	}
	return "\x1b[" + rendition + "m" + text + "\x1b[0m"
}

// Text writes a sheet for a terminal.
func Text(w io.Writer, s *Sheet, o Options) error {
	t := &text{o: o}
	if s.Title != "" {
		t.b.WriteString(o.paint(bold, plain.Line(s.Title)) + o.paint(faint, "   on this host, this kernel, this load") + "\n\n")
	}
	warnings, facts := divided(s.Facts)
	if len(s.Answer) == 0 {
		warnings, facts = s.Facts, nil
	}
	for _, sentence := range s.Answer {
		t.sentence(plain.Line(sentence))
	}
	if len(s.Answer) > 0 && len(warnings) > 0 {
		t.b.WriteString("\n")
	}
	t.facts(warnings)
	for i := 0; i < len(s.Body); i++ {
		b := s.Body[i]
		t.paragraph(bold, b.Heading)
		t.paragraph("", b.Text)
		if len(b.Facts) > 0 {
			t.b.WriteString("\n")
			t.facts(b.Facts)
		}
		if b.Lines != "" {
			t.b.WriteString("\n" + plain.Text(b.Lines))
		}
		if b.Table == nil {
			continue
		}
		table := b.Table.alone()
		if i+1 < len(s.Body) && s.Body[i+1].Table != nil && s.Body[i+1].Table.Beside {
			if both := joined(table, *s.Body[i+1].Table); tableWidth(both) <= o.width() {
				table = both
				i++
			}
		}
		t.table(table.inlined(o.width()))
	}
	if len(facts) > 0 {
		t.b.WriteString("\n")
		t.facts(facts)
	}
	if s.Advice != "" {
		t.paragraph("", "Recommendation: "+s.Advice)
	}
	if _, err := io.WriteString(w, t.b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// divided are the warnings and the other facts.
func divided(facts []Fact) (warnings, others []Fact) {
	for _, f := range facts {
		if f.Warning {
			warnings = append(warnings, f)
		} else {
			others = append(others, f)
		}
	}
	return warnings, others
}

// text is a report being written.
type text struct {
	b strings.Builder
	o Options
}

// facts writes names and values, the values hanging.
func (t *text) facts(facts []Fact) {
	width := 0
	for _, f := range facts {
		width = max(width, len(f.Name)+2)
	}
	for _, f := range facts {
		rendition := faint
		if f.Warning {
			rendition = yellow
		}
		t.hanging(t.o.paint(rendition, f.Name)+strings.Repeat(" ", width-len(f.Name)), width, f.Value, "")
	}
}

// hanging writes a text behind a head, its further lines indented.
func (t *text) hanging(head string, indent int, text, rendition string) {
	lines := plain.Wrap(plain.Line(text), t.o.width()-indent)
	t.b.WriteString(head + t.o.paint(rendition, strings.Join(lines, "\n"+strings.Repeat(" ", indent))) + "\n")
}

// sentence writes one that may end in a command, which is not broken: it gets a line of
// its own where it does not fit.
func (t *text) sentence(s string) {
	words, command, ok := strings.Cut(s, ": berth ")
	if ok && plain.Width(s) > t.o.width() {
		t.hanging("", 0, words+":", "")
		t.b.WriteString("  berth " + command + "\n")
		return
	}
	t.hanging("", 0, s, "")
}

// paragraph writes a blank line and the text, wrapped.
func (t *text) paragraph(rendition, text string) {
	if text != "" {
		t.b.WriteString("\n")
		t.hanging("", 0, text, rendition)
	}
}

// joined is two tables as one; rows of the first that are spanned are so in both.
func joined(a, b Table) Table {
	a.Columns = slices.Concat(a.Columns, b.Columns[1:])
	a.Legend = strings.TrimSpace(a.Legend + " " + b.Legend)
	a.Notes = slices.Concat(a.Notes, b.Notes)
	return a
}

// columns are those that a terminal shows.
func (t Table) columns() []Column {
	return slices.DeleteFunc(slices.Clone(t.Columns), func(c Column) bool { return c.PageOnly })
}

// inlined is the table with what is below in the cells of inline columns beside them, as far
// as it is then no wider.
func (t Table) inlined(width int) Table {
	last := 0
	for _, c := range t.Columns {
		last = max(last, c.Inline)
	}
	for n := 1; n <= last; n++ {
		wider := t
		wider.Columns = slices.Clone(t.Columns)
		for i, c := range t.Columns {
			if c.Inline == n {
				wider.Columns[i] = c.beside()
			}
		}
		if tableWidth(wider) <= width {
			t = wider
		}
	}
	return t
}

// beside is the column with what is below in its cells beside it.
func (c Column) beside() Column {
	c.Cells = slices.Clone(c.Cells)
	for i, cell := range c.Cells {
		c.Cells[i].Text = strings.TrimSpace(cell.Text + " " + cell.Below)
	}
	return c
}

const columnGap = 2

func (c Column) width() int {
	w := max(plain.Width(c.Head), plain.Width(c.Unit))
	for _, cell := range c.Cells {
		w = max(w, plain.Width(plain.Line(cell.Text)))
	}
	return w
}

func tableWidth(t Table) int {
	w := -columnGap
	for _, c := range t.columns() {
		w += columnGap + c.width()
	}
	return w
}

// table writes a blank line, the columns under their heads, legend and notes.
func (t *text) table(table Table) {
	columns := table.columns()
	heads, units := make([]string, len(columns)), make([]string, len(columns))
	var right []int
	for i, c := range columns {
		heads[i], units[i] = t.o.paint(bold, plain.Line(c.Head)), t.o.paint(faint, c.Unit)
		if !c.Left {
			right = append(right, i)
		}
	}
	rows := [][]string{heads}
	if slices.ContainsFunc(columns, func(c Column) bool { return c.Unit != "" }) {
		rows = append(rows, units)
	}
	above := len(rows)
	for n := range table.rows() {
		var row []string
		for _, c := range columns {
			cell := c.Cells[n]
			row = append(row, t.o.paint([]string{Plain: "", Good: green, Bad: red, Unsure: yellow}[cell.Mood], plain.Line(cell.Text)))
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	plain.Columns(&b, rows, right...)
	t.b.WriteString("\n")
	indent, n := columns[0].width()+columnGap, -above
	for line := range strings.Lines(b.String()) {
		if span, ok := table.Spans[n]; ok {
			head := rows[above+n][0]
			t.hanging(head+strings.Repeat(" ", indent-plain.Width(head)), indent, span, "")
		} else {
			t.b.WriteString(line)
		}
		n++
	}
	t.paragraph(faint, table.Legend)
	for i, note := range table.Notes {
		if i == 0 {
			t.b.WriteString("\n")
		}
		t.hanging("", 2, note, faint)
	}
}
