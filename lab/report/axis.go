package report

import "math"

// Axis is one direction of a panel. Points beyond it are moved to its ends.
type Axis struct {
	Label string
	// Log has the axis cover all points, and Min and Max. Otherwise it goes from Min to Max.
	Log      bool
	Min, Max float64
	// Ticks are those to show if they have room; nil chooses round values.
	Ticks  []Tick
	Format func(float64) string // of round values
	// Rows says that the ticks name rows, of height 1, whose middles they are; Columns likewise.
	Rows, Columns bool
	// Grid draws lines at the ticks.
	Grid  bool
	Bands []Band
}

// Tick is a place on an axis.
type Tick struct {
	At   float64
	Text string
	// Value stands at the other end of a row.
	Value string
	Look  Look
}

// Band is a part of an axis to shade, in a class of the style sheet, or a line where
// its ends are the same.
type Band struct {
	From, To  float64
	Class     string
	Tip, Note string
	Value     string // below the note
}

// bare says whether nothing is written at the axis.
func (a Axis) bare() bool { return a.Ticks == nil && a.Format == nil }

func (a Axis) scale(from, to float64, values []float64) scale {
	if a.Log {
		return logScale(append(values, a.Min, a.Max), from, to)
	}
	return scale{min: a.Min, max: a.Max, from: from, to: to}
}

// ticks are those of an axis of so many pixels.
func (d *plotting) ticks(a Axis, s scale, length float64) []Tick {
	if a.Ticks != nil || a.Format == nil {
		return a.Ticks
	}
	var ticks []Tick
	for _, v := range s.ticks(int(max(length/90, 4))) {
		ticks = append(ticks, Tick{At: v, Text: a.Format(v)})
	}
	return ticks
}

func (d *plotting) axisLeft(a Axis, f frame) {
	for _, t := range d.ticks(a, f.y, 2*(f.bottom-f.top)) {
		y := f.y.at(t.At)
		if a.Grid {
			d.line("grid", point{f.left, y}, point{f.right, y})
		}
		class, left, right, side := "tick", point{f.left - 6, y + 4}, point{f.right + 8, min(max(y+4, f.top+9), f.bottom)}, start
		if t.Look > 0 {
			class = "name " + t.Look.class()
		}
		at := end
		if d.inside && a.Rows {
			left, right = point{f.left + 4, f.y.at(t.At-.5) + 15}, point{f.right - 4, f.y.at(t.At-.5) + 15}
			at, side = start, end
		}
		chars := d.chars
		if d.inside && a.Rows { // all but the value's
			chars = max(chars, int((f.right-f.left)/charWidth)-len([]rune(t.Value))-2)
		}
		d.text(class, at, left, clipApart(t.Text, chars, a.Ticks))
		if t.Value != "" {
			d.text("value", side, right, t.Value)
		}
	}
}

// axisBelow writes the ticks of the horizontal axis, and its label.
func (d *plotting) axisBelow() {
	more := 0.0
	if d.X.Columns {
		names, class, most := d.columnLines()
		more = lineHeight * float64(max(most-1, 0))
		for i, lines := range names {
			for n, line := range lines {
				d.text(class, middle, point{d.outer.x.at(d.X.Ticks[i].At), d.outer.bottom + 18 + lineHeight*float64(n)}, line)
			}
		}
	} else {
		d.ticksBelow()
	}
	if d.X.Label != "" {
		below := d.outer.bottom + 38 + more
		if d.X.bare() {
			below -= 18
		}
		d.text("axis", middle, point{(d.outer.left + d.outer.right) / 2, below}, d.X.Label)
	}
}

// ticksBelow writes those ticks that have room.
func (d *plotting) ticksBelow() {
	free := math.Inf(-1)
	for _, t := range d.ticks(d.X, d.outer.x, d.outer.right-d.outer.left) {
		at, half := d.outer.x.at(t.At), textWidth(t.Text)/2+3
		if at-half >= free {
			d.text("tick", middle, point{at, d.outer.bottom + 18}, t.Text)
			free = at + half
		}
	}
}
