package report

import (
	"html/template"
	"strings"
)

// Plot is a picture as data: panels, one below the other, over one horizontal axis.
type Plot struct {
	ID, Heading, Caption string
	X                    Axis
	Panels               []Panel
	Cuts                 []float64 // dashed lines through all panels
	Slots                []Slot
	Numbers              *Table // the same in figures; nil where another table has them
	// Names is how many characters of names are shown where there is room; 0 for the usual.
	Names int
}

// Panel is one field of a plot.
type Panel struct {
	Height      float64
	Name, About string // at its left
	Y           Axis
	// Margin has the labels of series stand in the right margin, not beside their ends.
	Margin bool
	Series []Series
	Fields []Field
	Marks  []Mark
}

// Series is points that belong together.
type Series struct {
	Label, Tip string
	Look       Look
	Line       bool // through the points, dashed where they are bounds
	Bars       bool // each point is a bar, from X to XHigh and Low to High
	Points     []Point
}

// Point is a value with its intervals, of which those of no length are not drawn.
type Point struct {
	X, XLow, XHigh float64
	Y, Low, High   float64
	Bound          bool    // a lower bound: it may be more
	Radius         float64 // of its marker; 0 for none
	Tip            string
}

// Slot is a part of the horizontal axis with a tooltip over all panels.
type Slot struct {
	From, To float64
	Tip      string
	Hatched  bool // it does not count
}

// size is one of the two sizes that each plot is drawn in; the style sheet
// shows the one that fits the screen.
type size struct {
	name  string
	width float64
	chars int // of a name
}

var (
	wide   = size{"wide", 960, 18}
	narrow = size{"narrow", 380, 11}
)

// frame is the area of a panel inside its axes, with its scales.
type frame struct {
	left, top, right, bottom float64
	x, y                     scale
}

func (f frame) at(x, y float64) point { return point{f.x.clamped(x), f.y.clamped(y)} }

// plotting is a plot being drawn.
type plotting struct {
	*drawing
	*Plot
	size
	outer frame // around all panels
	// inside says that the texts of rows stand above their middles, as there is no room
	// beside them.
	inside bool
}

const (
	panelGap   = 12.0
	charWidth  = 6.7
	wideChar   = 7.8  // of a label in bold, in a wide font
	axisChars  = 7    // of the values beside a vertical axis
	labelSpace = 15.0 // between labels, vertically
	lineHeight = 14.0
)

func (p *Plot) draw(s size) template.HTML {
	if s.name == wide.name && p.Names > 0 {
		s.chars = p.Names
	}
	d := &plotting{Plot: p, size: s}
	d.inside = s.name == narrow.name && d.has(func(t Tick) bool { return t.Value != "" && t.Text != "" })
	d.outer = d.frame()
	height := d.outer.bottom + 12
	if p.X.Columns {
		_, _, lines := d.columnLines()
		height += lineHeight * float64(max(lines-1, 0))
	}
	if !p.X.bare() {
		height += 18
	}
	if p.X.Label != "" {
		height += 20
	}
	d.drawing = newDrawing(p.ID+"-"+s.name, s.width, height, p.Heading, p.description())
	d.outer.x = p.X.scale(d.outer.left, d.outer.right, d.values(func(q Point) []float64 { return []float64{q.X, q.XLow, q.XHigh} }, p.Panels...))
	top := d.outer.top
	for i := range p.Panels {
		f := d.outer
		f.top, f.bottom = top, top+d.heightOf(p.Panels[i])
		top = f.bottom + panelGap
		f.y = p.Panels[i].Y.scale(f.bottom, f.top, d.values(func(q Point) []float64 { return []float64{q.Y, q.Low, q.High} }, p.Panels[i]))
		if p.Panels[i].Y.Rows {
			f.y.from, f.y.to = f.top, f.bottom // the first row is the uppermost
		}
		d.panel(&p.Panels[i], f)
	}
	for _, x := range p.Cuts {
		d.line("cut", point{d.outer.x.at(x), d.outer.top}, point{d.outer.x.at(x), d.outer.bottom})
	}
	d.slots()
	d.axisBelow()
	return d.done()
}

// description is for those who do not see the plot.
func (p *Plot) description() string {
	var tips []string
	for _, panel := range p.Panels {
		for _, s := range panel.Series {
			if s.Tip != "" {
				tips = append(tips, s.Tip)
			}
		}
	}
	return p.Caption + " " + strings.Join(tips, "; ")
}

// has says whether a tick of a vertical axis is so.
func (d *plotting) has(so func(Tick) bool) bool {
	for _, panel := range d.Panels {
		for _, t := range panel.Y.Ticks {
			if so(t) {
				return true
			}
		}
	}
	return false
}

func (d *plotting) values(of func(Point) []float64, panels ...Panel) []float64 {
	var all []float64
	for _, panel := range panels {
		for _, s := range panel.Series {
			for _, q := range s.Points {
				all = append(all, of(q)...)
			}
		}
	}
	return all
}

func (d *plotting) heightOf(panel Panel) float64 {
	if d.inside && panel.Y.Rows {
		return panel.Height * 1.4
	}
	return panel.Height
}

// frame leaves room for what is written beside the panels.
func (d *plotting) frame() frame {
	f := frame{left: 12, top: 12, right: d.width - 16}
	left, right := 0, 0
	height := -panelGap
	for _, panel := range d.Panels {
		height += d.heightOf(panel) + panelGap
		if panel.Y.Label != "" {
			f.top = 28
		}
		beside := max(len([]rune(clip(panel.Name, d.chars))), len([]rune(panel.About)))
		if panel.Y.Format != nil {
			if beside += axisChars; panel.Name != "" {
				beside += 2 // names are bold
			}
		}
		left = max(left, beside)
		for _, t := range panel.Y.Ticks {
			left, right = max(left, len([]rune(clip(t.Text, d.chars)))), max(right, len([]rune(t.Value)))
		}
		for _, s := range panel.Series {
			if panel.Margin {
				right = max(right, len([]rune(clip(s.Label, d.chars)))+2)
			}
		}
	}
	if !d.inside {
		f.left, f.right = wideChar*float64(left)+12, d.width-max(16, wideChar*float64(right)+14)
	}
	f.bottom = f.top + height
	return f
}

func (d *plotting) panel(panel *Panel, f frame) {
	if panel.Y.Label != "" {
		d.text("axis", start, point{0, 12}, panel.Y.Label)
	}
	if panel.Name != "" {
		d.rect("lane", point{f.left, f.top}, point{f.right, f.bottom}, "")
		at := f.left - 8
		if panel.Y.Format != nil {
			at -= charWidth * axisChars
		}
		d.text("name", end, point{at, f.top + 16}, clip(panel.Name, d.chars))
		d.text("tick", end, point{at, f.top + 32}, panel.About)
	}
	if panel.Y.Rows {
		for _, t := range panel.Y.Ticks {
			d.rect("lane", point{f.left, f.y.at(t.At-.5) + 1}, point{f.right, f.y.at(t.At+.5) - 1}, "")
		}
	}
	for _, b := range d.X.Bands {
		d.band(b, point{f.x.clamped(b.From), f.top}, point{f.x.clamped(b.To), f.bottom})
	}
	for _, b := range panel.Y.Bands {
		d.band(b, point{f.left, f.y.clamped(b.From)}, point{f.right, f.y.clamped(b.To)})
	}
	d.axisLeft(panel.Y, f)
	if d.X.Grid {
		for _, t := range d.ticks(d.X, f.x, f.right-f.left) {
			d.line("grid", point{f.x.at(t.At), f.top}, point{f.x.at(t.At), f.bottom})
		}
	}
	for _, b := range d.X.Bands {
		d.noted(b, point{f.x.clamped(b.From) + 4, f.top + 12})
	}
	for _, b := range panel.Y.Bands {
		d.noted(b, point{f.left + 6, f.y.clamped(b.From) - 5})
	}
	for _, field := range panel.Fields {
		d.field(field, f)
	}
	for i := range panel.Series {
		d.series(&panel.Series[i], f, panel.Y.Rows)
	}
	d.labels(panel, f)
	d.marks(panel.Marks, f)
}

func (d *plotting) band(b Band, from, to point) {
	if b.From == b.To {
		d.line(b.Class, from, to)
	} else {
		d.rect(b.Class, from, to, b.Tip)
	}
}

// noted writes what a band is, over the lines of the grid.
func (d *plotting) noted(b Band, note point) {
	if b.Note != "" {
		d.text("note", start, note, b.Note)
	}
	if b.Value != "" {
		d.text("value", start, point{note.x, note.y + labelSpace}, b.Value)
	}
}

// slots draws the tooltips, and hatches what does not count.
func (d *plotting) slots() {
	hatch := d.ID + "-" + d.name + "-hatch"
	if len(d.Slots) > 0 {
		d.b.WriteString(`<defs><pattern id="` + hatch + `" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
			`<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>`)
	}
	for _, s := range d.Slots {
		class := "hover"
		if s.Hatched {
			class = `hover invalid" fill="url(#` + hatch + `)`
		}
		d.rect(class, point{d.outer.x.at(s.From), d.outer.top}, point{d.outer.x.at(s.To), d.outer.bottom}, s.Tip)
	}
}
