package report

import (
	"fmt"
	"math"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
)

// DemoSchema names the version of a demonstration's JSON form.
const DemoSchema = "berth.dev/lab-demo/v1"

// DemoDocument is a demonstration as JSON: what was run, and what it came to.
type DemoDocument struct {
	lab.Header
	Experiment lab.Spec   `json:"experiment"`
	Story      *lab.Story `json:"story"`
}

// NewDemoDocument returns the report of a demonstration.
func NewDemoDocument(r *lab.Result, s *lab.Story) *DemoDocument {
	d := &DemoDocument{r.Header, r.Experiment, s}
	d.Schema = DemoSchema
	return d
}

// Demo is the sheet of a demonstration: its words, the graph, and how to have it.
func Demo(m *lab.Measured, story *lab.Story) *Sheet {
	s := &Sheet{
		Title: title(m.Result), Headline: demoHeadline(story), When: m.Started, By: programLine(m.Program), Answer: story.Words,
		Open: demoHeadline(story) == "", Document: NewDemoDocument(m.Result, story),
	}
	for _, text := range alarms(m.Result) {
		s.Warn("warning", text)
	}
	s.Fact("machine", machineLine(m.Host))
	s.Fact("kernel", kernelLine(m.Host))
	s.Fact("backend", dotted(orUnknown(m.Setup.Backend), m.Setup.BackendNote))
	s.Fact("tenant", tenantLine(m.Result))
	s.Fact("neighbour", neighbourLine(m.Result))
	s.Fact("generator", Generator(m))
	s.Add(Block{Lines: Graph(story.Phases, 0), Terminal: true})
	if len(story.Commands) > 0 {
		s.Add(Block{Heading: "To do it with a hog of your own", Lines: strings.Join(story.Commands, "\n") + "\n"})
	}
	s.Page = func() Page { return Page{Plots: append([]Plot{demoPlot(story)}, demoRounds(m)...)} }
	s.Files = []File{resultFile(m)}
	return s
}

// demoRounds are the distributions of each part, and the machine meanwhile.
func demoRounds(m *lab.Measured) (plots []Plot) {
	p := played{rounds: roundsOf(m)}
	if len(p.rounds) == 0 {
		return nil
	}
	for _, s := range m.Experiment.Scenarios {
		p.cells = append(p.cells, playedCell{name: s.Name, label: s.Means, look: demoLook(lab.Phase{Neighbour: s.Neighbour, Protected: s.Isolation != (lab.Isolation{})})})
	}
	if curves := p.curves(); len(curves) > 0 {
		plots = append(plots, percentiles(curves))
	}
	return append(plots, p.probes())
}

// demoHeadline is the story in a line; "" where it has no point.
func demoHeadline(s *lab.Story) string {
	if !s.Helps() {
		return ""
	}
	return fmt.Sprintf("p99 beside a hog: %s without protection, %s with it", latency(s.Phases[1].P99), latency(s.Phases[2].P99))
}

// demoLook is that of alone, unprotected or protected seconds: of the baseline, of
// unisolated and of idle in other reports.
func demoLook(p lab.Phase) Look {
	switch {
	case !p.Neighbour:
		return 1
	case p.Protected:
		return 7
	}
	return 3
}

// demoPlot is the p99 of every second.
func demoPlot(story *lab.Story) Plot {
	panel := Panel{Height: 320, Y: Axis{Label: "p99 of each second", Log: true, Format: shortLatency, Grid: true}}
	p := Plot{
		ID: "story", Heading: "The service's p99, second by second",
		Caption: "From left to right: the service alone; a hog that wants all CPUs beside it; the same hog with protection on (shaded); off again.",
		X:       Axis{Label: "seconds", Format: func(v float64) string { return fmt.Sprint(math.Round(v)) }},
	}
	at := 0.0
	var rows [][]string
	for _, phase := range story.Phases {
		series := Series{Label: "", Look: demoLook(phase), Line: true, Tip: fmt.Sprintf("%s: p99 %s in the typical second", phase.Name, latency(max(phase.P99, 1)))}
		from := at
		for _, x := range phase.Seconds {
			y := max(x.P99, 1)
			tip := fmt.Sprintf("%s: p99 %s%s, p50 %s", phase.Name, atLeast(x.AtLeast), latency(y), latency(x.P50))
			series.Points = append(series.Points, Point{X: at + .5, Y: y, Low: y, High: y, Radius: 3.5, Tip: tip})
			rows = append(rows, []string{fmt.Sprint(int(at) + 1), phase.Name, latency(x.P50), atLeast(x.AtLeast) + latency(y)})
			at++
		}
		panel.Series = append(panel.Series, series)
		class := "plain"
		if phase.Protected {
			class = "good"
		}
		band := Band{From: from, To: at, Class: class, Note: phase.Name}
		if at > from {
			band.Value = latency(max(phase.P99, 1))
		}
		p.X.Bands = append(p.X.Bands, band)
		if at > from {
			p.Cuts = append(p.Cuts, at)
		}
	}
	p.X.Max = max(at, 1)
	for _, s := range panel.Series {
		for _, q := range s.Points {
			panel.Y.Max = max(panel.Y.Max, 2.5*q.Y) // room for the words at the top
		}
	}
	p.Panels = []Panel{panel}
	p.Numbers = NewTable([]string{"second", "phase", "p50", "p99"}, rows...)
	return p
}

// graphRows is how many lines the bars of a graph have.
const graphRows = 9

// Graph draws the p99 of each second as text: a column for each, higher by the logarithm.
// It leaves room for so many seconds of each phase, or as many as there are.
func Graph(phases []lab.Phase, seconds int) string {
	var values []float64
	for _, p := range phases {
		seconds = max(seconds, len(p.Seconds))
		for _, x := range p.Seconds {
			values = append(values, max(x.P99, 1))
		}
	}
	if len(values) == 0 {
		return ""
	}
	s := logScale(values, 0, graphRows)
	marks := map[int]string{}
	for _, v := range s.ticks(4) {
		marks[graphRows-1-min(int(s.at(v)), graphRows-1)] = shortLatency(v)
	}
	each := min(max(17/seconds, 1), 3) // columns, of 17 at least for each of four phases
	room := max(seconds*each, 9)
	var b strings.Builder
	for row := range graphRows {
		fmt.Fprintf(&b, "%8s ", marks[row])
		for _, p := range phases {
			b.WriteString("│")
			for i := range seconds {
				cell := ' '
				if i < len(p.Seconds) {
					cell = part(s.clamped(max(p.Seconds[i].P99, 1)) - float64(graphRows-1-row))
				}
				b.WriteString(strings.Repeat(string(cell), each))
			}
			b.WriteString(strings.Repeat(" ", room-seconds*each))
		}
		b.WriteString("\n")
	}
	line := func(text func(lab.Phase) string) {
		b.WriteString(strings.Repeat(" ", 9))
		for _, p := range phases {
			b.WriteString("│" + padded(clip(text(p), room), room))
		}
		b.WriteString("\n")
	}
	line(func(p lab.Phase) string { return p.Name })
	line(func(p lab.Phase) string {
		if p.P99 == 0 {
			return ""
		}
		return latency(p.P99)
	})
	text := b.String()
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// padded fills a text up with spaces.
func padded(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-plain.Width(text)))
}

// part is how much of a cell is filled.
func part(filled float64) rune {
	return []rune(" ▁▂▃▄▅▆▇█")[int(math.Round(8*min(max(filled, 0), 1)))]
}
