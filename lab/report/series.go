package report

import (
	"math"
	"strings"
)

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
