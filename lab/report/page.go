package report

import (
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// page is what the HTML template shows. All strings are plain text that the
// template escapes; only drawings and download addresses are markup.
type page struct {
	Title, When    string
	Warnings       []string
	Recommendation string
	Reading        []string
	Facts          []fact
	Columns        []string // quantiles of the table of scenarios
	Rows           []pageRow
	Effort         pageTable
	Notes          []string
	Figures        []figure
	Curves         pageTable
	Knobs          pageTable
	Machine        pageTable
	Experiment     pageTable
	Rounds         pageTable
	Downloads      []download
	Program        string
}

// pageRow is one scenario.
type pageRow struct {
	Name, Means string
	Swatch      template.HTML
	Marks       string
	Skipped     string
	Quantiles   []pageQuantile
	Ratio       string
	Verdict     string
	Class       string // of the verdict
	Work        string
	Chosen      bool
}

type pageQuantile struct{ Value, Interval string }

// pageTable is a plain table: the first column heads each row.
type pageTable struct {
	Heads []string
	Rows  [][]string
}

// figure is a plot in its two sizes with the words around it.
type figure struct {
	ID, Heading, Caption string
	Wide, Narrow         template.HTML
	Numbers              *pageTable // alternative to the plot; nil where another table has them
}

type download struct {
	Name, About string
	Address     template.URL
	Size        string
}

// effortHeads are the columns of effortTable.
var effortHeads = []string{
	"scenario", "host CPU %", "CPUs, tenant", "wait ms/s, tenant", "CPUs, neighbour", "throttled ms/s, tenant", "throttled ms/s, neighbour",
	"lag p99", "queue p99", "requests", "failed or unfinished", "rounds",
}

func pageRows(r *lab.Result, a *lab.Analysis, c canvas) ([]pageRow, []string) {
	notes := &footnotes{}
	means := map[string]string{}
	for _, s := range r.Experiment.Scenarios {
		means[s.Name] = s.Means
	}
	var rows []pageRow
	for _, row := range a.Rows {
		out := pageRow{
			Name: row.Scenario, Means: means[row.Scenario], Swatch: swatch(c.looks[row.Scenario]), Marks: notes.of(row),
			Ratio: ratioText(a, row), Work: workText(row), Verdict: string(row.Verdict), Class: verdictClass(row.Verdict),
			Chosen: a.Recommended != "" && row.Scenario == a.Recommended,
		}
		switch {
		case row.Skipped != nil:
			out.Skipped = skippedText(*row.Skipped)
		case row.Rounds == 0:
			out.Skipped = "not run"
		}
		for _, p := range shownQuantiles(a) {
			out.Quantiles = append(out.Quantiles, pageQuantileOf(row, p))
		}
		rows = append(rows, out)
	}
	var texts []string
	for i, text := range notes.texts {
		texts = append(texts, superscript(i)+" "+text)
	}
	return rows, append(texts, notes.general...)
}

func pageQuantileOf(row lab.Row, p float64) pageQuantile {
	q, ok := quantileOf(row, p)
	if !ok {
		return pageQuantile{Value: absent}
	}
	out := pageQuantile{Value: latency(q.Estimate)}
	if q.AtLeast || row.Saturated {
		out.Value = "≥ " + out.Value
	}
	if q.Rounds != 1 && q.Low < q.High {
		u := ownUnit(q.Estimate)
		out.Interval = fmt.Sprintf("[%s, %s]", u.in(q.Low), u.in(q.High))
	}
	return out
}

// effortTable is what the scenarios took, and how well they were measured.
func effortTable(a *lab.Analysis) pageTable {
	t := pageTable{Heads: effortHeads}
	for _, row := range a.Rows {
		if row.Skipped != nil || row.Rounds == 0 {
			continue
		}
		line := make([]string, len(effortHeads))
		for i := range line {
			line[i] = absent
		}
		line[0], line[len(line)-1] = row.Scenario, fmt.Sprintf("%d/%d", row.Valid, row.Rounds)
		if row.Valid > 0 {
			neighbourCPUs, throttled := absent, absent
			if row.Unit != "" {
				neighbourCPUs, throttled = digits3(row.NeighbourCPUs), digits3(row.NeighbourThrottled*1e3)
			}
			copy(line[1:], []string{
				strconv.FormatFloat(row.HostBusy*100, 'f', 0, 64), digits3(row.TenantCPUs), waitText(row), neighbourCPUs,
				digits3(row.TenantThrottled * 1e3), throttled,
				latency(row.LagP99), latency(row.QueueP99), strconv.Itoa(row.Requests), strconv.Itoa(row.Censored),
			})
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

func verdictClass(v stats.Verdict) string {
	switch v {
	case stats.Better, stats.Equivalent:
		return "good"
	case stats.Worse:
		return "bad"
	case stats.Inconclusive, stats.Invalid:
		return "unsure"
	}
	return ""
}

// swatch is a scenario's marker for the table.
func swatch(l look) template.HTML {
	return template.HTML(`<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true"><path class="mark ` + l.class + `" d="` + markPath(l.marker, 7, 7, 4.5) + `"/></svg>`)
}

// curveTable is the percentile plot in figures.
func curveTable(curves []curve) pageTable {
	t := pageTable{Heads: []string{"percentile"}}
	for _, c := range curves {
		t.Heads = append(t.Heads, c.row.Scenario)
	}
	for _, p := range curvePercentiles {
		line, any := []string{quantileName(p)}, false
		for _, c := range curves {
			text := absent
			for _, q := range c.points {
				if q.p != p {
					continue
				}
				any = true
				u := ownUnit(q.Estimate)
				text = fmt.Sprintf("%s [%s, %s]", latency(q.Estimate), u.in(q.Low), u.in(q.High))
				if q.atLeast {
					text = "≥ " + text
				}
			}
			line = append(line, text)
		}
		if any {
			t.Rows = append(t.Rows, line)
		}
	}
	return t
}

// knobTable has a line per kernel setting and a column per scenario, as read
// back while the rounds ran. Values that differ between rounds are all shown.
func knobTable(r *lab.Result, a *lab.Analysis) pageTable {
	t := pageTable{Heads: []string{"setting"}}
	values := map[string]map[string][]string{} // knob, scenario
	var knobs []string
	for _, round := range r.Rounds {
		for _, k := range round.Knobs {
			name := k.Of + " " + k.File
			if values[name] == nil {
				values[name] = map[string][]string{}
				knobs = append(knobs, name)
			}
			seen := values[name][round.Scenario]
			if !slices.Contains(seen, k.Value) {
				values[name][round.Scenario] = append(seen, k.Value)
			}
		}
	}
	for _, row := range a.Rows {
		if row.Skipped == nil {
			t.Heads = append(t.Heads, row.Scenario)
		}
	}
	for _, knob := range knobs {
		line := []string{knob}
		for _, row := range a.Rows {
			if row.Skipped == nil {
				line = append(line, orAbsent(strings.Join(values[knob][row.Scenario], " | ")))
			}
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

func orAbsent(s string) string {
	if s == "" {
		return absent
	}
	return s
}

func machineTable(h lab.Host) pageTable {
	t := pageTable{}
	add := func(name, value string) {
		if value != "" {
			t.Rows = append(t.Rows, []string{name, value})
		}
	}
	if m := h.Machine; m != nil {
		add("name", m.Name)
		add("processor", m.Model)
		add("online CPUs", m.Online.String())
		add("offline CPUs", m.Offline.String())
		add("isolated CPUs", m.Isolated.String())
		kinds := []struct {
			kind machine.Kind
			name string
		}{{machine.Socket, "socket"}, {machine.Die, "die"}, {machine.Node, "NUMA node"}, {machine.L3, "L3"}, {machine.L2, "L2"}, {machine.Core, "core"}}
		for _, k := range kinds {
			add(k.name+"s", domainsText(m, k.kind))
		}
	}
	add("kernel", h.Kernel)
	add("clock source", h.Clocksource)
	add("hypervisor", h.Hypervisor)
	add("frequency governor", h.Governor)
	if h.MemoryBytes > 0 {
		add("memory", plain.Bytes(h.MemoryBytes))
	}
	return t
}

// domainsText is "0: CPUs 0-7, 32 MiB; 1: ...", at most 16 of them.
func domainsText(m *machine.Machine, kind machine.Kind) string {
	var parts []string
	n := 0
	for _, d := range m.Domains {
		if d.Kind != kind {
			continue
		}
		if n++; n > 16 {
			continue
		}
		text := fmt.Sprintf("%d: CPUs %s", d.ID, orAbsent(d.CPUs.String()))
		if d.Bytes > 0 {
			text += ", " + plain.Bytes(d.Bytes)
		}
		parts = append(parts, text)
	}
	if n > 16 {
		parts = append(parts, fmt.Sprintf("and %d more", n-16))
	}
	return strings.Join(parts, "; ")
}

func experimentTable(r *lab.Result) pageTable {
	e, s := r.Experiment, r.Setup
	t := pageTable{}
	add := func(name, value string) { t.Rows = append(t.Rows, []string{name, orAbsent(value)}) }
	add("experiment", joined(e.Name, e.Preset))
	add("blocks", strconv.Itoa(e.Blocks))
	add("settle, then window", span(time.Duration(e.Settle))+", "+span(time.Duration(e.Window)))
	add("seed", strconv.FormatUint(e.Seed, 10))
	add("backend", backendLine(s))
	add("tenant", tenantLine(r))
	add("tenant, units of work per request", strconv.Itoa(s.Tenant.Units))
	add("neighbour", neighbourLine(r))
	add("generator", joined(s.GeneratorPolicy, s.GeneratorCPUs))
	if !r.Started.IsZero() {
		add("started", r.Started.UTC().Format(time.RFC3339))
	}
	if !r.Finished.IsZero() {
		add("finished", r.Finished.UTC().Format(time.RFC3339))
	}
	add("program", programLine(r.Program))
	return t
}

func programLine(p lab.Program) string {
	return joined(strings.TrimSpace("berth "+p.Version), p.Commit, p.Go)
}

// roundTable is every round as it was measured.
func roundTable(rounds []round) pageTable {
	t := pageTable{Heads: []string{
		"block.position", "scenario", "offered", "done", "failed", "unfinished", "p50", "p95", "p99", "max", "lag p99",
		"CPUs, tenant", "CPUs, neighbour", "neighbour's work /s", "host CPU %", "steal %", "foreign %", "does not count",
	}}
	for _, r := range rounds {
		us := func(quantiles []float64, p float64) string {
			if v, ok := at(quantiles, p); ok {
				return latency(v)
			}
			return absent
		}
		perSecond := func(v float64) string {
			if r.Seconds <= 0 {
				return absent
			}
			return digits3(v / r.Seconds)
		}
		host := func(v float64, cpus int) string {
			if r.Seconds <= 0 || cpus == 0 {
				return absent
			}
			return percent(v / r.Seconds / float64(cpus))
		}
		neighbourCPUs, work := absent, absent
		if n := r.Neighbour; n != nil {
			neighbourCPUs, work = perSecond(n.CPUSeconds), strings.TrimSpace(perSecond(n.Work)+" "+n.Unit)
		}
		t.Rows = append(t.Rows, []string{
			fmt.Sprintf("%d.%d", r.Block+1, r.Position+1), r.Scenario,
			strconv.Itoa(r.Load.Offered), strconv.Itoa(r.Load.Done), strconv.Itoa(r.Load.Failed), strconv.Itoa(r.Load.Unfinished),
			us(r.response, 50), us(r.response, 95), us(r.response, 99), us(r.response, 100), us(r.lag, 99),
			perSecond(r.Tenant.CPUSeconds), neighbourCPUs, work, host(r.Host.Busy, r.Host.CPUs), host(r.Host.Steal, r.Host.SharedCPUs), host(r.Host.Foreign, r.Host.SharedCPUs), r.Excluded,
		})
	}
	return t
}

// Span is how many columns a skipped scenario's row stretches over.
func (p page) Span() int { return len(p.Columns) + 3 }
