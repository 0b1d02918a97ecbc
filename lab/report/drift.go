package report

import (
	"maps"
	"slices"

	"berth.dev/berth/lab/stats"
)

// Mark is an event on the horizontal axis, told in one panel.
type Mark struct {
	At   float64
	Text string
}

// DriftWords say what a mark of Drift is.
const DriftWords = "A line marked ▼ is where a level changed: found by ranks at 1 %, and of 5 % at least."

// Drift marks where the level of a series of positive values changed, given each by its number
// in the order measured, and where that stands. There is none where the level did not change,
// or where the values are too few to tell (stats.FindDrift).
func Drift(values map[int]float64, at func(int) float64, write func(float64) string) (Mark, bool) {
	order := slices.Sorted(maps.Keys(values))
	var series []float64
	for _, i := range order {
		series = append(series, values[i])
	}
	d, ok := stats.FindDrift(series)
	if !ok || d.Kind == stats.Steady {
		return Mark{}, false
	}
	m := Mark{At: at(order[d.Index]), Text: write(d.From) + " → " + write(d.To)}
	if d.Kind == stats.Switching {
		m.Text = "switches between " + write(d.From) + " and " + write(d.To)
	}
	return m, true
}

// marks draws each as a line with its text beside the top, one text below the other.
func (d *plotting) marks(marks []Mark, f frame) {
	for i, m := range marks {
		x, y := f.x.clamped(m.At), f.top+12+float64(i)*labelSpace
		d.line("drift", point{x, f.top}, point{x, f.bottom})
		room := int((f.right - f.left) / charWidth)
		text, side, at := clip("▼ "+m.Text, room), start, x+4
		if w := textWidth(text); at+w > f.right {
			if side, at = end, x-4; at-w < f.left {
				side, at = start, f.left // beside neither: from the left on
			}
		}
		d.text("drifted", side, point{at, y}, text)
	}
}
