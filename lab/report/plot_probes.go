package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"
)

// probeLane is one small plot of the strip: a value per round.
type probeLane struct {
	name, about string
	values      []float64 // by round; NaN where not measured
	centre      float64   // the median, for deviations; 0 for lanes from zero
	deviation   bool      // values are deviations from the median, in percent
}

// drawProbes shows the machine itself over the run: control probes before each
// round, CPU time stolen, and load that was not the lab's.
func (c canvas) drawProbes() template.HTML {
	lanes := probeLanes(c.rounds)
	const laneHeight = 62.0
	height := 12 + laneHeight*float64(len(lanes)) + 24
	f := frame{c.either(96, 78), 12, c.width - c.either(64, 46), 12 + laneHeight*float64(len(lanes))}
	d := newDrawing(c.id("probes"), c.width, height, "The machine itself over the run", describeProbes(lanes))
	s := c.slots(f)
	for i, lane := range lanes {
		top := f.top + laneHeight*float64(i)
		c.drawLane(d, frame{f.left, top, f.right, top + laneHeight - 14}, s, lane)
	}
	for _, x := range s.cuts {
		d.line("cut", x, f.top, x, f.bottom-14)
	}
	for i, r := range c.rounds {
		d.rect("hover", s.x[i], f.top, s.w[i], f.bottom-f.top, probeTip(r, lanes, i))
	}
	d.text("axis", middle, (f.left+f.right)/2, height-6, "rounds in the order run")
	return d.done()
}

func (c canvas) drawLane(d *drawing, f frame, s slots, lane probeLane) {
	y := lane.scale(f)
	d.rect("lane", f.left, f.top, f.right-f.left, f.bottom-f.top, "")
	d.text("name", end, f.left-8, f.top+18, lane.name)
	d.text("tick", end, f.left-8, f.top+34, lane.about)
	if lane.deviation {
		d.rect("band10", f.left, y.at(5), f.right-f.left, y.at(-5)-y.at(5), "within 5 %")
		d.line("one", f.left, y.at(0), f.right, y.at(0))
		d.text("tick", start, f.right+6, y.at(y.max)+9, fmt.Sprintf("+%s %%", digits(y.max)))
		d.text("tick", start, f.right+6, y.at(y.min), fmt.Sprintf("−%s %%", digits(-y.min)))
	} else {
		d.text("tick", start, f.right+6, f.top+9, digits(y.max)+" %")
		d.text("tick", start, f.right+6, f.bottom, "0 %")
	}
	var line []point
	for i, v := range lane.values {
		if math.IsNaN(v) {
			continue
		}
		at := point{s.x[i] + s.w[i]/2, y.at(v)}
		line = append(line, at)
		d.path("mark probe", markPath(0, at.x, at.y, min(2.2, max(1, s.w[i]/3))))
	}
	d.path("line probe", polyline(line))
}

// scale fits the lane's values with a range that does not blow up noise: at
// least ±10 %, or 0 to 5 %.
func (l probeLane) scale(f frame) scale {
	low, high := 0.0, 5.0
	if l.deviation {
		low, high = -10, 10
	}
	for _, v := range l.values {
		if !math.IsNaN(v) {
			low, high = min(low, math.Floor(v)), max(high, math.Ceil(v))
		}
	}
	return scale{min: low, max: high, from: f.bottom, to: f.top}
}

func digits(v float64) string { return fmt.Sprintf("%.0f", v) }

func probeLanes(rounds []round) []probeLane {
	var names []string
	for _, r := range rounds {
		for _, p := range r.Probes {
			if !slices.Contains(names, p.Probe) {
				names = append(names, p.Probe)
			}
		}
	}
	var lanes []probeLane
	for _, name := range names {
		values := perRound(rounds, func(r round) (float64, bool) {
			for _, p := range r.Probes {
				if p.Probe == name && p.NS > 0 {
					return p.NS, true
				}
			}
			return 0, false
		})
		centre := median(values)
		for i := range values {
			values[i] = (values[i]/centre - 1) * 100
		}
		lanes = append(lanes, probeLane{name: probeName(name), about: digits3(centre) + " ns", values: values, centre: centre, deviation: true})
	}
	host := func(name, about string, of func(round) float64) {
		values := perRound(rounds, func(r round) (float64, bool) {
			if r.Host.SharedCPUs == 0 || r.Seconds <= 0 {
				return 0, false
			}
			return 100 * of(r) / (float64(r.Host.SharedCPUs) * r.Seconds), true
		})
		lanes = append(lanes, probeLane{name: name, about: about, values: values})
	}
	host("steal", "of shared CPUs", func(r round) float64 { return r.Host.Steal })
	host("foreign", "of shared CPUs", func(r round) float64 { return max(r.Host.Foreign, 0) })
	return lanes
}

func probeName(name string) string {
	names := map[string]string{"alu": "ALU", "l2": "L2", "l3": "L3", "dram": "DRAM"}
	if known, ok := names[name]; ok {
		return known
	}
	return clip(name, 10)
}

func perRound(rounds []round, value func(round) (float64, bool)) []float64 {
	out := make([]float64, len(rounds))
	for i, r := range rounds {
		v, ok := value(r)
		if !ok {
			v = math.NaN()
		}
		out[i] = v
	}
	return out
}

// median of the values that were measured; 1 if none was.
func median(values []float64) float64 {
	var known []float64
	for _, v := range values {
		if !math.IsNaN(v) {
			known = append(known, v)
		}
	}
	if len(known) == 0 {
		return 1
	}
	slices.Sort(known)
	n := len(known)
	return (known[(n-1)/2] + known[n/2]) / 2
}

// text is a value of the lane in words.
func (l probeLane) text(v float64) string {
	switch {
	case math.IsNaN(v):
		return l.name + " not measured"
	case l.deviation:
		return fmt.Sprintf("%s %s ns (%+.1f %%)", l.name, digits3(l.centre*(1+v/100)), v)
	}
	return fmt.Sprintf("%s %.1f %%", l.name, v)
}

func probeTip(r round, lanes []probeLane, i int) string {
	tip := fmt.Sprintf("block %d, position %d, %s", r.Block+1, r.Position+1, r.Scenario)
	for _, l := range lanes {
		tip += "; " + l.text(l.values[i])
	}
	return tip
}

func describeProbes(lanes []probeLane) string {
	desc := "A machine that does not change shows level lines."
	for _, l := range lanes {
		most := 0.0
		for _, v := range l.values {
			if !math.IsNaN(v) {
				most = max(most, math.Abs(v))
			}
		}
		if l.deviation {
			desc += fmt.Sprintf(" %s: median %s, at most %.1f %% away from it.", l.name, l.about, most)
		} else {
			desc += fmt.Sprintf(" %s: at most %.1f %% %s.", l.name, most, l.about)
		}
	}
	return desc
}
