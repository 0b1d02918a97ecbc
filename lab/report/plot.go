package report

import (
	"strings"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// size is one of the two sizes that each plot is drawn in; the style sheet
// shows the one that fits the screen.
type size struct {
	name  string // "wide", "narrow"
	width float64
}

var (
	wide   = size{"wide", 960}
	narrow = size{"narrow", 380}
)

func (s size) narrow() bool { return s.name == narrow.name }

// either is the first value in a wide plot and the second in a narrow one.
func (s size) either(wide, narrow float64) float64 {
	if s.narrow() {
		return narrow
	}
	return wide
}

// canvas is what all plots draw from.
type canvas struct {
	size
	analysis *lab.Analysis
	rounds   []round
	curves   []curve
	looks    map[string]look
}

// id is unique for a plot in the page.
func (c canvas) id(plot string) string { return plot + "-" + c.name }

// frame is the area of a plot inside its axes.
type frame struct{ left, top, right, bottom float64 }

// yAxis draws a latency axis with grid lines: ticks in the unit that suits each.
func (d *drawing) yAxis(f frame, y scale, n int, format func(float64) string) {
	for _, v := range y.ticks(n) {
		at := y.at(v)
		d.line("grid", f.left, at, f.right, at)
		d.text("tick", end, f.left-6, at+4, format(v))
	}
}

// shortLatency formats a tick: "500 µs", "1 ms", "1.5 s".
func shortLatency(us float64) string {
	text := latency(us)
	number, unit, _ := strings.Cut(text, " ")
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + " " + unit
}

// shortTimes formats a tick of a ratio: "0.9×", "10×".
func shortTimes(v float64) string {
	number := digits3(v)
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + "×"
}

// bands shades ±10 % around no difference and the noise floor on a scale of
// ratios; horizontal scales shade columns, vertical ones rows.
func (d *drawing) bands(f frame, s scale, a *lab.Analysis, horizontal bool) {
	band := func(class string, low, high float64, tip string) {
		x1, x2 := s.clamped(low), s.clamped(high)
		x1, x2 = min(x1, x2), max(x1, x2)
		if horizontal {
			d.rect(class, x1, f.top, x2-x1, f.bottom-f.top, tip)
		} else {
			d.rect(class, f.left, x1, f.right-f.left, x2-x1, tip)
		}
	}
	band("band10", 1-stats.Margin, 1+stats.Margin, "within 10 % of the baseline")
	if a.Floor != nil && a.Floor.Low > 0 {
		band("floor", a.Floor.Low, a.Floor.High, "noise floor: baseline' / baseline "+times(*a.Floor))
	}
	one := s.at(1)
	if horizontal {
		d.line("one", one, f.top, one, f.bottom)
	} else {
		d.line("one", f.left, one, f.right, one)
	}
}
