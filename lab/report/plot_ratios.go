package report

import (
	"fmt"
	"html/template"
	"strings"

	"berth.dev/berth/lab"
)

// drawRatios is each scenario's p99 relative to the baseline, with its
// interval, against the noise floor and the band of ±10 %.
func (c canvas) drawRatios() template.HTML {
	rowHeight, top := c.either(34, 48), 30.0
	rows := c.analysis.Rows
	height := top + rowHeight*float64(len(rows)) + 46
	f := frame{c.either(124, 12), top, c.width - c.either(250, 16), top + rowHeight*float64(len(rows))}
	d := newDrawing(c.id("ratios"), c.width, height, "p99 relative to the baseline", describeRatios(c.analysis))
	values := []float64{1 / 1.2, 1.2}
	for _, row := range rows {
		if row.Ratio != nil {
			values = append(values, row.Ratio.Estimate, row.Ratio.Low, row.Ratio.High)
		}
	}
	x := logScale(values, f.left, f.right)
	d.bands(f, x, c.analysis, true)
	d.text("note", start, max(x.clamped(1/1.1), 12), f.top-8, "dark: noise floor, light: ±10 %")
	for _, v := range x.ticks(int(c.either(9, 5))) {
		d.line("grid", x.at(v), f.top, x.at(v), f.bottom)
		d.text("tick", middle, x.at(v), f.bottom+18, shortTimes(v))
	}
	d.text("axis", middle, (f.left+f.right)/2, f.bottom+38, "p99 ÷ baseline's p99, over the same blocks")
	for i, row := range rows {
		c.drawRatio(d, f, x, row, f.top+rowHeight*float64(i), rowHeight)
	}
	return d.done()
}

func (c canvas) drawRatio(d *drawing, f frame, x scale, row lab.Row, top, height float64) {
	l := c.looks[row.Scenario]
	y := top + height/2
	words, class := ratioWords(c.analysis, row), "value"
	if row.Ratio == nil {
		class = "value muted"
	}
	d.line("rule", min(f.left, 12), top+height, c.width-12, top+height)
	if c.narrow() {
		y = top + height*0.7
		d.text("name "+l.class, start, 12, top+17, clip(row.Scenario, 14))
		d.text(class, end, c.width-12, top+17, clip(words, 38))
	} else {
		d.text("name "+l.class, end, f.left-12, y+4, clip(row.Scenario, 16))
		d.text(class, start, f.right+14, y+4, clip(words, 38))
	}
	if row.Ratio == nil || row.Ratio.Estimate <= 0 {
		if row.Scenario == lab.Baseline {
			d.mark(l, x.at(1), y, 5)
		}
		return
	}
	d.open("series", row.Scenario+": "+words)
	low, high := x.clamped(row.Ratio.Low), x.clamped(row.Ratio.High)
	d.line("whisker "+l.class, low, y, high, y)
	d.line("whisker "+l.class, low, y-5, low, y+5)
	if ratioBound(c.analysis, row) {
		d.path("whisker "+l.class, polyline([]point{{high, y}, {high + 9, y}})+polyline([]point{{high + 4, y - 4}, {high + 9, y}, {high + 4, y + 4}}))
	} else {
		d.line("whisker "+l.class, high, y-5, high, y+5)
	}
	d.mark(l, x.at(row.Ratio.Estimate), y, 5)
	d.close()
}

// ratioWords is "3.41× [2.97, 4.02] worse".
func ratioWords(a *lab.Analysis, row lab.Row) string {
	switch {
	case row.Skipped != nil:
		return "skipped"
	case row.Scenario == lab.Baseline:
		return "the reference"
	case row.Rounds == 0:
		return "not run"
	case row.Ratio == nil:
		return strings.TrimSpace("no ratio " + string(row.Verdict))
	}
	return ratioText(a, row) + " " + string(row.Verdict)
}

func describeRatios(a *lab.Analysis) string {
	var parts []string
	for _, row := range a.Rows {
		parts = append(parts, fmt.Sprintf("%s: %s", row.Scenario, ratioWords(a, row)))
	}
	return "One row per scenario with its interval, on a logarithmic axis; the table above has the figures. " + strings.Join(parts, "; ") + "."
}
