package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"berth.dev/berth/lab/stats"
)

// Field is one field of a matrix: between whole numbers of both axes.
type Field struct {
	Row, Column int
	Text        string // in it
	Tip         string
	// Shade is how dark it is, 0 to 1; Mood its colour.
	Shade float64
	Mood  Mood
}

// Times shades and colours a field by how many times worse a figure is than the one that it is compared with, 1 for
// the same: wholly from most times, or a most-th part, on; bad and good from the margin (stats.Margin) on.
func (f *Field) Times(worse, most float64) {
	f.Shade = min(1, math.Abs(math.Log(worse))/math.Log(most))
	switch {
	case worse > 1+stats.Margin:
		f.Mood = Bad
	case worse < 1-stats.Margin:
		f.Mood = Good
	}
}

// HeatMap is a plot of a matrix: rows and columns by name, a field where there is one. The
// rows are of what y says, the columns of x.
func HeatMap(id, heading, caption, y, x string, rows, columns []string, fields []Field) Plot {
	p := Plot{ID: id, Heading: heading, Caption: caption, X: Axis{Label: x, Max: float64(len(columns)), Ticks: []Tick{}, Columns: true}}
	panel := Panel{Height: 34 * float64(len(rows)), Y: Axis{Label: y, Rows: true, Min: -.5, Max: float64(len(rows)) - .5}, Fields: fields}
	for i, name := range columns {
		p.X.Ticks = append(p.X.Ticks, Tick{At: float64(i) + .5, Text: name})
	}
	for i, name := range rows {
		panel.Y.Ticks = append(panel.Y.Ticks, Tick{At: float64(i), Text: name})
	}
	p.Panels = []Panel{panel}
	var cells [][]string
	for i, name := range rows {
		line := append([]string{name}, make([]string, len(columns))...)
		for _, f := range fields {
			if f.Row == i {
				line[f.Column+1] = f.Text
			}
		}
		cells = append(cells, line)
	}
	p.Numbers = NewTable(append([]string{y}, columns...), cells...)
	return p
}

// field draws one: its colour, and its text where that has room.
func (d *plotting) field(q Field, f frame) {
	a, b := point{f.x.at(float64(q.Column)), f.y.at(float64(q.Row) - .5)}, point{f.x.at(float64(q.Column + 1)), f.y.at(float64(q.Row) + .5)}
	class := fmt.Sprintf(`heat %s" fill-opacity="%s`, q.Mood.Class(), strconv.FormatFloat(0.08+0.6*min(max(q.Shade, 0), 1), 'f', 2, 64))
	d.rect(class, a, b, q.Tip)
	text, room := q.Text, (b.x-a.x-4)/1.1 // it is bold
	if textWidth(text) > room {
		text = strings.Trim(text, "× ") // a sign that every field has
	}
	if textWidth(text) <= room {
		d.text("field", middle, point{(a.x + b.x) / 2, (a.y+b.y)/2 + 4}, text)
	}
}

// wrap breaks a text into lines of so many characters at most, words that are longer clipped.
func wrap(text string, chars int) (lines []string) {
	for _, word := range strings.Fields(text) {
		word = clip(word, max(chars, 2))
		if n := len(lines); n > 0 && utf8.RuneCountInString(lines[n-1])+1+utf8.RuneCountInString(word) <= chars {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// columnLines are the names of columns, each in lines that fit below it, in a class of the style
// sheet, and how many lines the longest has. Where a word would not fit, all are small.
func (d *plotting) columnLines() (names [][]string, class string, most int) {
	width := (d.outer.right - d.outer.left) / max(d.X.Max, 1)
	class, each := "tick", charWidth
	for _, t := range d.X.Ticks {
		for _, word := range strings.Fields(t.Text) {
			if textWidth(word) > width {
				class, each = "tick small", smallWidth
			}
		}
	}
	for _, t := range d.X.Ticks {
		names = append(names, wrap(t.Text, int(width/each)))
		most = max(most, len(names[len(names)-1]))
	}
	return names, class, most
}

// smallWidth is that of a small character.
const smallWidth = 5.4
