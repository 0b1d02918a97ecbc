package report

import (
	"fmt"
	"html/template"
	"strings"
)

// drawPercentiles is response time by percentile: the further right, the rarer
// the request. One line per scenario with its bootstrap band.
func (c canvas) drawPercentiles() template.HTML {
	height := c.either(460, 420)
	f := frame{c.either(64, 56), 28, c.width - c.either(150, 92), height - 46}
	d := newDrawing(c.id("percentiles"), c.width, height, "Response time by percentile", c.describeCurves())
	var values []float64
	last := 99.0
	for _, cv := range c.curves {
		for _, p := range cv.points {
			values = append(values, p.Estimate, p.Low, p.High)
			last = max(last, p.p)
		}
	}
	x := scale{min: 0, max: nines(last), from: f.left, to: f.right}
	y := logScale(values, f.bottom, f.top)
	d.yAxis(f, y, 9, shortLatency)
	c.percentileAxis(d, f, x, last)
	for _, cv := range c.curves {
		d.path("area "+c.looks[cv.row.Scenario].class, curveBand(cv, x, y))
	}
	for _, cv := range c.curves {
		c.drawCurve(d, cv, x, y)
	}
	c.labelCurves(d, f, x, y)
	return d.done()
}

func (c canvas) percentileAxis(d *drawing, f frame, x scale, last float64) {
	ticks := []float64{0, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.99}
	if c.narrow() {
		ticks = []float64{0, 50, 90, 99, 99.9, 99.99}
	}
	for _, p := range ticks {
		if p > last {
			break
		}
		at := x.at(nines(p))
		d.line("grid", at, f.top, at, f.bottom)
		d.text("tick", middle, at, f.bottom+18, quantileName(p)[1:])
	}
	words := "percentile of requests, stretched towards the rarest"
	if c.narrow() {
		words = "percentile of requests"
	}
	d.text("axis", middle, (f.left+f.right)/2, f.bottom+38, words)
	d.text("axis", start, 0, 12, "response time, from due to done")
}

func curveBand(cv curve, x, y scale) string {
	var up, down []point
	for _, p := range cv.points {
		at := x.at(nines(p.p))
		up = append(up, point{at, y.clamped(p.High)})
		down = append([]point{{at, y.clamped(p.Low)}}, down...)
	}
	if len(up) < 2 {
		return ""
	}
	return polyline(append(up, down...)) + "z"
}

// drawCurve draws the line, dashed from where requests that never finished make
// it a lower bound, with markers at the percentiles that have names.
func (c canvas) drawCurve(d *drawing, cv curve, x, y scale) {
	l := c.looks[cv.row.Scenario]
	d.open("series", cv.row.Scenario)
	var solid, dashed []point
	for i, p := range cv.points {
		at := point{x.at(nines(p.p)), y.at(p.Estimate)}
		if !p.atLeast {
			solid = append(solid, at)
			continue
		}
		if i > 0 && len(dashed) == 0 && len(solid) > 0 {
			dashed = append(dashed, solid[len(solid)-1])
		}
		dashed = append(dashed, at)
	}
	d.path("line "+l.class, polyline(solid))
	d.path("line bound "+l.class, polyline(dashed))
	for _, p := range cv.points {
		switch p.p {
		case 50, 90, 95, 99, 99.9, 99.99:
			d.open("", pointTip(cv, p))
			d.mark(l, x.at(nines(p.p)), y.at(p.Estimate), 4)
			d.close()
		}
	}
	d.close()
}

func pointTip(cv curve, p curvePoint) string {
	bound := ""
	if p.atLeast {
		bound = "at least "
	}
	return fmt.Sprintf("%s %s: %s%s [%s, %s]", cv.row.Scenario, quantileName(p.p), bound, latency(p.Estimate), latency(p.Low), latency(p.High))
}

// labelCurves writes each scenario's name beside the end of its line.
func (c canvas) labelCurves(d *drawing, f frame, x, y scale) {
	var labels []label
	for i, cv := range c.curves {
		labels = append(labels, label{want: y.at(cv.points[len(cv.points)-1].Estimate), index: i})
	}
	for _, l := range spread(labels, 15, f.top+4, f.bottom-4) {
		cv := c.curves[l.index]
		look := c.looks[cv.row.Scenario]
		from := x.at(nines(cv.points[len(cv.points)-1].p))
		d.path("leader "+look.class, polyline([]point{{from + 5, l.want}, {f.right + 8, l.y}, {f.right + 13, l.y}}))
		d.text("name "+look.class, start, f.right+16, l.y+4, clip(cv.row.Scenario, int(c.either(18, 11))))
	}
}

func (c canvas) describeCurves() string {
	var parts []string
	for _, cv := range c.curves {
		p := cv.points[len(cv.points)-1]
		for _, q := range cv.points {
			if q.p == 99 {
				p = q
			}
		}
		parts = append(parts, pointTip(cv, p))
	}
	return "One line per scenario, logarithmic on both axes. " + strings.Join(parts, "; ") + ". The table below has the figures."
}
