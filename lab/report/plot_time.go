package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// slots are the places of the rounds on an axis of time: in the order run,
// side by side, each as wide as its seconds, with a gap between blocks.
type slots struct {
	x, w []float64 // left edge and width, by round
	cuts []float64 // between blocks
}

func (c canvas) slots(f frame) slots {
	total, gaps := 0, 0
	for i, r := range c.rounds {
		total += max(len(r.Response.Seconds), 1)
		if i > 0 && r.Block != c.rounds[i-1].Block {
			gaps++
		}
	}
	gap := min(6, (f.right-f.left)*0.1/float64(max(gaps, 1)))
	perSecond := (f.right - f.left - gap*float64(gaps)) / float64(max(total, 1))
	var s slots
	at := f.left
	for i, r := range c.rounds {
		if i > 0 && r.Block != c.rounds[i-1].Block {
			s.cuts = append(s.cuts, at+gap/2)
			at += gap
		}
		w := perSecond * float64(max(len(r.Response.Seconds), 1))
		s.x, s.w = append(s.x, at), append(s.w, w)
		at += w
	}
	return s
}

// drawTime is p50 and p99 of every second in the order run, above a strip that
// shows which scenario ran when.
func (c canvas) drawTime() template.HTML {
	rows := c.ran()
	const lane = 17.0
	plot := c.either(290, 260)
	strip := lane * float64(len(rows))
	height := 28 + plot + 12 + strip + 44
	f := frame{c.either(96, 78), 28, c.width - 8, 28 + plot}
	d := newDrawing(c.id("time"), c.width, height, "Latency over time, in the order the rounds were run",
		fmt.Sprintf("Bars from p50 to p99 of response time; %s in %s. The table of rounds has the figures.",
			plain.Count(len(c.rounds), "round"), plain.Count(blocksIn(c.rounds), "block")))
	s := c.slots(f)
	n := c.secondsPerBar(s)
	all, values := make([][]bar, len(c.rounds)), []float64{}
	for i, r := range c.rounds {
		all[i] = barsOf(r, n)
		for _, b := range all[i] {
			values = append(values, b.p50, b.p99)
		}
	}
	y := logScale(values, f.bottom, f.top)
	d.yAxis(f, y, 8, shortLatency)
	each := "each second"
	if n > 1 {
		each = fmt.Sprintf("each %d seconds", n)
	}
	d.text("axis", start, 0, 12, "response time, p50 to p99 of "+each)
	for i, row := range rows {
		top := f.bottom + 12 + lane*float64(i)
		d.rect("lane", f.left, top+1, f.right-f.left, lane-2, "")
		d.text("tick name "+c.looks[row.Scenario].class, end, f.left-6, top+12.5, clip(row.Scenario, int(c.either(13, 11))))
	}
	for _, x := range s.cuts {
		d.line("cut", x, f.top, x, f.bottom+12+strip)
	}
	for _, row := range rows {
		c.drawBars(d, s, y, row, all)
	}
	hatch := d.hatch()
	for i, r := range c.rounds {
		c.drawSlot(d, f, s, i, r, rows, lane, hatch)
	}
	c.numberBlocks(d, s, f.bottom+12+strip+15)
	d.text("axis", middle, (f.left+f.right)/2, height-8, c.timeAxisLabel())
	return d.done()
}

func (c canvas) timeAxisLabel() string {
	if c.narrow() {
		return "blocks of rounds, in the order run"
	}
	return "blocks of rounds, in the order run; hatched rounds do not count"
}

// ran are the rows of the scenarios that have rounds.
func (c canvas) ran() []lab.Row {
	var out []lab.Row
	for _, row := range c.analysis.Rows {
		if row.Skipped == nil && row.Rounds > 0 {
			out = append(out, row)
		}
	}
	return out
}

func blocksIn(rounds []round) int {
	seen := map[int]bool{}
	for _, r := range rounds {
		seen[r.Block] = true
	}
	return len(seen)
}

// bar is a stretch of a round: p50 and p99 of what was due in it, in
// microseconds, 0 without a request.
type bar struct{ p50, p99 float64 }

// minBar is the least width of a bar that can be seen.
const minBar = 3

// secondsPerBar is how many seconds a bar must stand for to be wide enough.
func (c canvas) secondsPerBar(s slots) int {
	for i, r := range c.rounds {
		if n := len(r.Response.Seconds); n > 0 && s.w[i] > 0 {
			return min(n, int(math.Ceil(minBar*float64(n)/s.w[i])))
		}
	}
	return 1
}

// barsOf merges every n seconds of a round.
func barsOf(r round, n int) []bar {
	var out []bar
	for part := range slices.Chunk(r.Response.Seconds, n) {
		all := stats.Merge(part...)
		p50, _ := all.Quantile(50)
		p99, _ := all.Quantile(99)
		out = append(out, bar{p50, p99})
	}
	return out
}

// drawBars draws one scenario's bars as three paths: areas, p50 and p99.
func (c canvas) drawBars(d *drawing, s slots, y scale, row lab.Row, all [][]bar) {
	var areas, low, high strings.Builder
	for i, r := range c.rounds {
		if r.Scenario != row.Scenario {
			continue
		}
		step := s.w[i] / float64(max(len(all[i]), 1))
		inset := min(step*0.12, 1.5)
		for k, b := range all[i] {
			if b.p50 <= 0 {
				continue
			}
			x1, x2 := s.x[i]+step*float64(k)+inset, s.x[i]+step*float64(k+1)-inset
			top, bottom := y.at(b.p99), y.at(b.p50)
			fmt.Fprintf(&areas, "M%s %sH%sV%sH%sz", num(x1), num(top), num(x2), num(bottom), num(x1))
			fmt.Fprintf(&high, "M%s %sH%s", num(x1), num(top), num(x2))
			fmt.Fprintf(&low, "M%s %sH%s", num(x1), num(bottom), num(x2))
		}
	}
	class := c.looks[row.Scenario].class
	d.path("bars "+class, areas.String())
	d.path("p50 "+class, low.String())
	d.path("p99 "+class, high.String())
}

// drawSlot marks a round in its scenario's lane and gives it a tooltip over
// its whole height.
func (c canvas) drawSlot(d *drawing, f frame, s slots, i int, r round, rows []lab.Row, lane float64, hatch string) {
	strip := f.bottom + 12
	for k, row := range rows {
		if row.Scenario == r.Scenario {
			d.rect("ran "+c.looks[row.Scenario].class, s.x[i]+0.5, strip+lane*float64(k)+3, s.w[i]-1, lane-6, "")
		}
	}
	class := `hover`
	if r.Excluded != "" {
		class = `hover invalid" fill="` + hatch
	}
	d.rect(class, s.x[i], f.top, s.w[i], strip+lane*float64(len(rows))-f.top, roundTip(r))
}

// numberBlocks writes each block's number below its rounds, where there is room.
func (c canvas) numberBlocks(d *drawing, s slots, y float64) {
	rounds := c.rounds
	for i, written := 0, -100.0; i < len(rounds); {
		k := i
		for k+1 < len(rounds) && rounds[k+1].Block == rounds[i].Block {
			k++
		}
		if at := (s.x[i] + s.x[k] + s.w[k]) / 2; at-written >= 18 {
			d.text("tick", middle, at, y, strconv.Itoa(rounds[i].Block+1))
			written = at
		}
		i = k + 1
	}
}

func roundTip(r round) string {
	tip := fmt.Sprintf("%s, block %d, position %d", r.Scenario, r.Block+1, r.Position+1)
	if p50, ok := at(r.response, 50); ok {
		p99, _ := at(r.response, 99)
		tip += fmt.Sprintf(": p50 %s, p99 %s", latency(p50), latency(p99))
	}
	if r.Excluded != "" {
		tip += "; does not count: " + r.Excluded
	}
	return tip
}
