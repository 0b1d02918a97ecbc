package report

import (
	"fmt"
	"slices"

	"berth.dev/berth/lab"
)

// look is how one scenario is told apart in every plot: a colour class of the
// style sheet, and a marker and line pattern for those who do not see colours.
type look struct {
	class  string // "s0" ... "s7"
	marker int
}

// looks is the number of colour classes and markers.
const looks = 8

// looksOf gives each scenario of the table its look. The scenarios of the
// built-in experiment always have the same one, whatever was left out.
func looksOf(rows []lab.Row) map[string]look {
	known := []string{lab.Baseline, lab.BaselineAgain, lab.Unisolated, "weighted", "idle", "limited", "pinned"}
	out := map[string]look{}
	next := len(known)
	for _, row := range rows {
		i := slices.Index(known, row.Scenario)
		if i < 0 {
			i = next % looks
			next++
		}
		out[row.Scenario] = look{fmt.Sprintf("s%d", i), i}
	}
	return out
}

// mark draws the scenario's marker.
func (d *drawing) mark(l look, x, y, r float64) {
	d.path("mark "+l.class, markPath(l.marker, x, y, r))
}

func markPath(kind int, x, y, r float64) string {
	switch kind % looks {
	case 0, 1: // circle; the style sheet leaves 1 hollow
		return fmt.Sprintf("M%s %sa%s %s 0 1 0 %s 0a%s %s 0 1 0 %s 0z", num(x-r), num(y), num(r), num(r), num(2*r), num(r), num(r), num(-2*r))
	case 2: // square
		return polyline([]point{{x - r, y - r}, {x + r, y - r}, {x + r, y + r}, {x - r, y + r}}) + "z"
	case 3: // triangle up
		return polyline([]point{{x, y - r*1.2}, {x + r*1.15, y + r}, {x - r*1.15, y + r}}) + "z"
	case 4: // diamond
		return polyline([]point{{x, y - r*1.35}, {x + r*1.35, y}, {x, y + r*1.35}, {x - r*1.35, y}}) + "z"
	case 5: // triangle down
		return polyline([]point{{x, y + r*1.2}, {x + r*1.15, y - r}, {x - r*1.15, y - r}}) + "z"
	case 6: // cross
		t := r * 0.42
		r *= 1.2
		return polyline([]point{{x - t, y - r}, {x + t, y - r}, {x + t, y - t}, {x + r, y - t}, {x + r, y + t}, {x + t, y + t},
			{x + t, y + r}, {x - t, y + r}, {x - t, y + t}, {x - r, y + t}, {x - r, y - t}, {x - t, y - t}}) + "z"
	}
	// hexagon
	return polyline([]point{{x - r, y - r*0.6}, {x, y - r*1.2}, {x + r, y - r*0.6}, {x + r, y + r*0.6}, {x, y + r*1.2}, {x - r, y + r*0.6}}) + "z"
}
