package report

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"

	"berth.dev/berth/lab"
)

// drawTradeoff sets what the tenant gets against what the neighbour keeps.
func (c canvas) drawTradeoff() template.HTML {
	height := c.either(420, 400)
	f := frame{c.either(64, 48), 30, c.width - c.either(150, 16), height - 46}
	rows := tradeRows(c.analysis)
	d := newDrawing(c.id("tradeoff"), c.width, height, "Protection of the tenant against work of the neighbour", describeTrade(c.analysis, rows))
	values, most := []float64{1 / 1.2, 1.2}, 1.0
	for _, row := range rows {
		values = append(values, row.Ratio.Estimate, row.Ratio.Low, row.Ratio.High)
		most = max(most, *row.WorkShare)
	}
	x := scale{min: 0, max: most * 100 * 1.06, from: f.left, to: f.right}
	y := logScale(values, f.bottom, f.top)
	d.bands(f, y, c.analysis, false)
	d.yAxis(f, y, 8, shortTimes)
	for _, v := range x.ticks(int(c.either(10, 5))) {
		d.line("grid", x.at(v), f.top, x.at(v), f.bottom)
		d.text("tick", middle, x.at(v), f.bottom+18, strconv.FormatFloat(v, 'f', -1, 64))
	}
	d.text("axis", middle, (f.left+f.right)/2, f.bottom+38, "neighbour's work, % of what it does unisolated →")
	d.text("axis", start, 0, 12, "tenant's p99 ÷ baseline's p99")
	d.text("note", end, f.right-6, f.bottom-8, "best corner ↘")
	d.text("note", start, f.left+6, y.at(1)-c.either(12, 14), "as if alone")
	c.placeTrade(d, f, x, y, rows)
	return d.done()
}

// placeTrade draws the points and writes their names to the right or, near the
// edge, to the left, moved apart where they would overlap.
func (c canvas) placeTrade(d *drawing, f frame, x, y scale, rows []lab.Row) {
	var right, left []label
	room := f.right + c.either(140, 8)
	for i, row := range rows {
		l := label{want: y.at(row.Ratio.Estimate), index: i}
		if x.at(*row.WorkShare*100)+14+textWidth(c.tradeLabel(row)) < room {
			right = append(right, l)
		} else {
			left = append(left, l)
		}
	}
	for _, row := range rows {
		l := c.looks[row.Scenario]
		at := x.at(*row.WorkShare * 100)
		low, high := y.clamped(row.Ratio.Low), y.clamped(row.Ratio.High)
		d.open("series", fmt.Sprintf("%s: p99 %s, work %s %%", row.Scenario, ratioWords(c.analysis, row), percent(*row.WorkShare)))
		d.line("whisker "+l.class, at, low, at, high)
		d.line("whisker "+l.class, at-5, low, at+5, low)
		if ratioBound(c.analysis, row) {
			d.path("whisker "+l.class, polyline([]point{{at, high}, {at, high - 9}})+polyline([]point{{at - 4, high - 4}, {at, high - 9}, {at + 4, high - 4}}))
		} else {
			d.line("whisker "+l.class, at-5, high, at+5, high)
		}
		d.mark(l, at, y.at(row.Ratio.Estimate), 6)
		d.close()
	}
	write := func(labels []label, side anchor, dx float64) {
		for _, l := range spread(labels, 16, f.top+8, f.bottom-8) {
			row := rows[l.index]
			d.text("name "+c.looks[row.Scenario].class, side, x.at(*row.WorkShare*100)+dx, l.y+4, c.tradeLabel(row))
		}
	}
	write(right, start, 12)
	write(left, end, -12)
}

func (c canvas) tradeLabel(row lab.Row) string {
	text := clip(row.Scenario, 18)
	if ratioBound(c.analysis, row) {
		text += " (≥)"
	}
	return text
}

// tradeRows are those with both a ratio and a neighbour.
func tradeRows(a *lab.Analysis) []lab.Row {
	var out []lab.Row
	for _, row := range a.Rows {
		if row.Ratio != nil && row.Ratio.Estimate > 0 && row.WorkShare != nil {
			out = append(out, row)
		}
	}
	return out
}

func describeTrade(a *lab.Analysis, rows []lab.Row) string {
	var parts []string
	for _, row := range rows {
		parts = append(parts, fmt.Sprintf("%s: the neighbour keeps %s %% and the tenant's p99 is %s", row.Scenario, percent(*row.WorkShare), ratioWords(a, row)))
	}
	return "Further right the neighbour gets more done, further down the tenant is better protected. " + strings.Join(parts, "; ") + "."
}
