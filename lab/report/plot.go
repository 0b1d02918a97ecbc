package report

import (
	"html/template"
	"math"
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

// bare says whether nothing is written at the axis.
func (a Axis) bare() bool { return a.Ticks == nil && a.Format == nil }

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

func (a Axis) scale(from, to float64, values []float64) scale {
	if a.Log {
		return logScale(append(values, a.Min, a.Max), from, to)
	}
	return scale{min: a.Min, max: a.Max, from: from, to: to}
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
		left = max(left, len([]rune(clip(panel.Name, d.chars))), len([]rune(panel.About)))
		if panel.Y.Format != nil {
			left = max(left, 7)
		}
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
		f.left, f.right = charWidth*float64(left)+12, d.width-max(16, charWidth*float64(right)+14)
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
		d.text("name", end, point{f.left - 8, f.top + 16}, clip(panel.Name, d.chars))
		d.text("tick", end, point{f.left - 8, f.top + 32}, panel.About)
	}
	if panel.Y.Rows {
		for _, t := range panel.Y.Ticks {
			d.rect("lane", point{f.left, f.y.at(t.At-.5) + 1}, point{f.right, f.y.at(t.At+.5) - 1}, "")
		}
	}
	for _, b := range d.X.Bands {
		d.band(b, point{f.x.clamped(b.From), f.top}, point{f.x.clamped(b.To), f.bottom}, point{f.x.clamped(b.From) + 4, f.top + 12})
	}
	for _, b := range panel.Y.Bands {
		d.band(b, point{f.left, f.y.clamped(b.From)}, point{f.right, f.y.clamped(b.To)}, point{f.left + 6, f.y.clamped(b.From) - 5})
	}
	d.axisLeft(panel.Y, f)
	if d.X.Grid {
		for _, t := range d.ticks(d.X, f.x, f.right-f.left) {
			d.line("grid", point{f.x.at(t.At), f.top}, point{f.x.at(t.At), f.bottom})
		}
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

func (d *plotting) band(b Band, from, to, note point) {
	if b.From == b.To {
		d.line(b.Class, from, to)
	} else {
		d.rect(b.Class, from, to, b.Tip)
	}
	if b.Note != "" {
		d.text("note", start, note, b.Note)
	}
	if b.Value != "" {
		d.text("value", start, point{note.x, note.y + labelSpace}, b.Value)
	}
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
		d.text(class, at, left, clip(t.Text, chars))
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

func (d *plotting) series(s *Series, f frame, rows bool) {
	class := s.Look.class()
	d.group(s.Tip)
	if s.Bars {
		d.bars(s, f, rows)
	}
	if s.Line {
		var solid, dashed []point
		for i, q := range s.Points {
			if !q.Bound {
				solid = append(solid, f.at(q.X, q.Y))
				continue
			}
			if i > 0 && len(dashed) == 0 {
				dashed = append(dashed, f.at(s.Points[i-1].X, s.Points[i-1].Y))
			}
			dashed = append(dashed, f.at(q.X, q.Y))
		}
		d.line("line "+class, solid...)
		d.line("line bound "+class, dashed...)
	}
	for _, q := range s.Points {
		if q.Radius == 0 {
			continue
		}
		if d.inside && rows {
			q.Y += 0.2
		}
		at := f.at(q.X, q.Y)
		if !s.Line {
			d.whisker(class, f.at(q.XLow, q.Y), f.at(q.XHigh, q.Y), q.Bound)
			d.whisker(class, f.at(q.X, q.Low), f.at(q.X, q.High), q.Bound)
		}
		d.b.WriteString(`<path class="mark ` + class + `" d="` + s.Look.marker(at, q.Radius) + `">`)
		d.tip(q.Tip)
		d.b.WriteString("</path>")
	}
	d.close()
}

// bars draws all bars of a series as three paths: areas, lower and upper edges.
func (d *plotting) bars(s *Series, f frame, rows bool) {
	var areas, low, high strings.Builder
	for _, q := range s.Points {
		a, b := f.at(q.X, q.High), f.at(q.XHigh, q.Low)
		inset := min((b.x-a.x)*0.12, 1.5)
		a.x, b.x = a.x+inset, b.x-inset
		areas.WriteString(polyline(a, point{b.x, a.y}, b, point{a.x, b.y}) + "z")
		high.WriteString(polyline(a, point{b.x, a.y}))
		low.WriteString(polyline(point{a.x, b.y}, b))
	}
	class := s.Look.class()
	if rows {
		d.path("ran "+class, areas.String())
		return
	}
	d.path("bars "+class, areas.String())
	d.path("p50 "+class, low.String())
	d.path("p99 "+class, high.String())
}

// whisker draws an interval with a bar at either end, or an arrow where the upper end
// is only a bound. It stands upright or lies, and is not drawn without a length.
func (d *plotting) whisker(class string, low, high point, bound bool) {
	length := math.Hypot(high.x-low.x, high.y-low.y)
	if length == 0 {
		return
	}
	along := point{(high.x - low.x) / length, (high.y - low.y) / length}
	at := func(from point, ahead, aside float64) point {
		return point{from.x + ahead*along.x - aside*along.y, from.y + ahead*along.y + aside*along.x}
	}
	data := polyline(low, high) + polyline(at(low, 0, -5), at(low, 0, 5))
	if bound {
		data += polyline(high, at(high, 9, 0)) + polyline(at(high, 4, -4), at(high, 9, 0), at(high, 4, 4))
	} else {
		data += polyline(at(high, 0, -5), at(high, 0, 5))
	}
	d.path("whisker "+class, data)
}

// labels writes the names of series beside their last points, to the left where there
// is no room to the right, or in the margin. Those that would overlap are moved apart.
func (d *plotting) labels(panel *Panel, f frame) {
	sides := map[anchor][]label{}
	for i, s := range panel.Series {
		if s.Label == "" || len(s.Points) == 0 {
			continue
		}
		last := s.Points[len(s.Points)-1]
		at, side := f.at(last.X, last.Y), start
		if !panel.Margin && at.x+14+textWidth(clip(s.Label, d.chars)) > d.width {
			side = end
		}
		sides[side] = append(sides[side], label{want: at.y, index: i, x: at.x})
	}
	for _, side := range []anchor{start, end} {
		for _, l := range spread(sides[side], labelSpace, f.top+4, f.bottom-4) {
			s := panel.Series[l.index]
			at := point{l.x + 12, l.y + 4}
			switch {
			case panel.Margin:
				d.line("leader "+s.Look.class(), point{l.x + 5, l.want}, point{f.right + 8, l.y}, point{f.right + 13, l.y})
				at.x = f.right + 16
			case side == end:
				at.x = l.x - 12
			}
			d.text("name "+s.Look.class(), side, at, clip(s.Label, d.chars))
		}
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
