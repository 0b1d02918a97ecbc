package report

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// cell is one field of a text table.
type cell struct {
	text  string
	style style
}

// column is a column of a text table. All cells are right-aligned but those of
// left columns.
type column struct {
	head, unit string
	left       bool
	cells      []cell
}

func (c column) width() int {
	w := max(utf8.RuneCountInString(c.head), utf8.RuneCountInString(c.unit))
	for _, cell := range c.cells {
		w = max(w, utf8.RuneCountInString(cell.text))
	}
	return w
}

// style is an ANSI rendition.
type style string

const (
	plain  style = ""
	bold   style = "1"
	faint  style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// paint applies the style where colour is allowed.
func (o Options) paint(s style, text string) string {
	if !o.Color || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

const columnGap = 2

// units are not separated from their number.
var units = []string{"%", "s", "ms", "µs", "B", "KiB", "MiB", "GiB", "TiB", "CPUs"}

func tableWidth(columns []column) int {
	w := 0
	for i, c := range columns {
		if i > 0 {
			w += columnGap
		}
		w += c.width()
	}
	return w
}

// layTable writes the columns under their heads. A row in spans shows its
// first cell and then that text, wrapped to the width, instead of the others.
func layTable(b *strings.Builder, columns []column, spans map[int]string, o Options) {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = c.width()
	}
	line := func(cells []cell) {
		var row strings.Builder
		for i, c := range cells {
			if i > 0 {
				row.WriteString(strings.Repeat(" ", columnGap))
			}
			row.WriteString(pad(c, widths[i], columns[i].left, o))
		}
		b.WriteString(strings.TrimRight(row.String(), " ") + "\n")
	}
	heads, units := make([]cell, len(columns)), make([]cell, len(columns))
	for i, c := range columns {
		heads[i], units[i] = cell{c.head, bold}, cell{c.unit, faint}
	}
	line(heads)
	if slices.ContainsFunc(columns, func(c column) bool { return c.unit != "" }) {
		line(units)
	}
	for n := range columns[0].cells {
		if s, ok := spans[n]; ok {
			indent := widths[0] + columnGap
			wrapped := wrap(s, o.width()-indent)
			b.WriteString(pad(columns[0].cells[n], widths[0], true, o) + strings.Repeat(" ", columnGap))
			b.WriteString(strings.Join(wrapped, "\n"+strings.Repeat(" ", indent)) + "\n")
			continue
		}
		cells := make([]cell, len(columns))
		for i, c := range columns {
			cells[i] = c.cells[n]
		}
		line(cells)
	}
}

func pad(c cell, width int, left bool, o Options) string {
	space := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(c.text)))
	if left {
		return o.paint(c.style, c.text) + space
	}
	return space + o.paint(c.style, c.text)
}

// wrap breaks text at spaces into lines of at most width characters; a longer
// word keeps a line of its own, and a unit stays with its number.
func wrap(text string, width int) []string {
	var words []string
	for _, word := range strings.Fields(text) {
		if n := len(words); n > 0 && slices.Contains(units, strings.TrimRight(word, ".,;:")) {
			words[n-1] += " " + word
		} else {
			words = append(words, word)
		}
	}
	var lines []string
	line := ""
	for _, word := range words {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	if line != "" || len(lines) == 0 {
		lines = append(lines, line)
	}
	return lines
}
