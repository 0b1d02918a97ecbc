package services

import (
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// Document is the report in its JSON form. The raw rounds are in the result.
type Document struct {
	*report.JudgedDocument
	Places []Place `json:"places"`
	// Services are what each typically was in each placement.
	Services []ServiceFigures `json:"services"`
}

// ServiceFigures is what a service typically was in the rounds of a placement; times of a
// request in microseconds.
type ServiceFigures struct {
	Cell     string   `json:"cell"`
	Service  string   `json:"service"`
	Requests float64  `json:"requests"` // for each from outside
	CPU      float64  `json:"cpu"`
	RunDelay float64  `json:"runDelay"`
	OwnMean  float64  `json:"ownMean"`
	OwnP50   float64  `json:"ownP50"`
	OwnP99   float64  `json:"ownP99,omitempty"` // absent with fewer than 100 requests a round
	WholeP99 float64  `json:"wholeP99,omitempty"`
	Local    *float64 `json:"localMemory,omitempty"` // share (0-1)
}

// Judged are the figures of the result by which two results are compared.
func (x *Experiment) Judged() ([]report.Judged, error) {
	a, err := x.analyse()
	if err != nil {
		return nil, err
	}
	return []report.Judged{a.Judged}, nil
}

// Sheet is what the result comes to: first words that a person can act on.
func (x *Experiment) Sheet() (*report.Sheet, error) {
	a, err := x.analyse()
	if err != nil {
		return nil, err
	}
	s := report.NewSheet("services", &x.Header)
	s.Answer, s.Headline = a.answer(), a.Headline(lab.P99)
	a.facts(s)
	if len(x.Rounds) > 0 {
		s.Add(report.Block{Table: a.Judged.Table()}, a.standing(), a.took(), a.each(a.Reference))
	}
	s.Page = a.page
	s.Document = a.document(s.Answer)
	return s, nil
}

func (a *analysis) document(answer []string) *Document {
	d := &Document{JudgedDocument: a.Judged.Document(&a.Header, a.Experiment.Experiment, answer), Places: a.Places, Services: []ServiceFigures{}}
	for _, c := range a.Cells {
		for i, s := range a.graph.services {
			if o := a.one(c.Name, i); o.known {
				f := ServiceFigures{Cell: c.Name, Service: s.Name, Requests: o.requests, CPU: o.cpu, RunDelay: o.delay, OwnMean: o.ownMean, OwnP50: o.ownP50, OwnP99: o.ownP99, WholeP99: o.wholeP99}
				if o.localKnown {
					f.Local = &o.local
				}
				d.Services = append(d.Services, f)
			}
		}
	}
	return d
}

func (a *analysis) facts(s *report.Sheet) {
	e := a.Experiment.Experiment
	bytes := int64(0)
	for _, service := range e.Services {
		bytes += service.WorkingSetBytes
	}
	calls := fmt.Sprintf("%d processes, %.3g calls between them for each request", len(e.Services), a.graph.calls())
	if from, to, n := a.graph.hottest(); n > 0 {
		calls += fmt.Sprintf(", most of them from %s to %s (%.3g)", e.Services[from].Name, e.Services[to].Name, n)
	}
	s.Fact("services", calls+"; working sets of "+plain.Bytes(bytes)+" together")
	s.Fact("load", fmt.Sprintf("%.0f requests/s due (open loop), which want %.2f of CPUs %s", a.Setup.Rate, a.Setup.TenantCPUs, a.Setup.CPUs))
	if n := a.Setup.Neighbour; a.Setup.CPUs != "" {
		s.Fact("neighbour", fmt.Sprintf("%s, %s, in the placements that have one", n.Kernel, plain.Count(n.Threads, "thread")))
	}
	s.Fact("rounds", fmt.Sprintf("%s × %s after %s to settle; seed %d", plain.Count(e.Blocks, "block"), e.Window, e.Settle, e.Seed))
	if e.Weight > 0 {
		s.Fact("weight", fmt.Sprintf("the run had CPU weight %d together against all else on the host", e.Weight))
	}
	if free, err := cpuset.Parse(a.Setup.CPUs); err == nil && a.Host.Machine != nil && !(site{a.Host.Machine, free}).numa() {
		s.Fact("memory", "the CPUs that take part are near one memory: all of it is local, wherever a service stands")
	}
	s.Others(a.measured, a.undisturbed)
	failed := 0
	for _, d := range a.measured.Decoded {
		failed += d.Censored
	}
	s.Failed(failed)
}

// standing is the table of where the services stand.
func (a *analysis) standing() report.Block {
	var rows [][]string
	for _, p := range a.Places {
		for i, part := range p.Parts {
			row := []string{"", part.CPUs.String(), orDash(part.Mems), "", "", strings.Join(part.Services, ", ")}
			if len(p.Parts) == 1 {
				row[5] = "all"
			}
			if i == 0 {
				row[0], row[3], row[4] = p.Cell, orDash(p.Neighbour), fmt.Sprintf("%.3g", p.Crossing)
			}
			rows = append(rows, row)
		}
	}
	if rows == nil {
		return report.Block{}
	}
	t := report.NewTable([]string{"placement", "CPUs", "memory nodes", "neighbour on", "calls across", "services"}, rows...)
	t.Columns[5].Left = true
	t.Legend = "calls across: how many of a request's calls go from one part to the other, as the graph has it."
	for i := range t.Columns { // what no placement has is on the page alone
		t.Columns[i].PageOnly = (i == 2 || i == 3) && !has(rows, i)
	}
	return report.Block{Heading: "Where they stand", Table: t}
}

func has(rows [][]string, column int) bool {
	for _, row := range rows {
		if row[column] != absent && row[column] != "" {
			return true
		}
	}
	return false
}

// took is the table of what each placement took.
func (a *analysis) took() report.Block {
	var rows [][]string
	for _, c := range a.Cells {
		var seconds, cpus, neighbour, delay, generator float64
		failed, requests := 0, 0
		var lag []stats.Distribution
		for _, d := range a.measured.Valid(c.Name) {
			seconds += d.Seconds
			cpus += d.Tenant.CPUSeconds
			delay += d.Tenant.WaitSeconds
			generator += d.Load.CPUSeconds
			failed += d.Censored
			lag = append(lag, d.Lag.Seconds...)
			if d.Neighbour != nil {
				neighbour += d.Neighbour.CPUSeconds
			}
			for _, s := range a.servedIn(c.Name, d.Block) {
				requests += s.Requests
			}
		}
		if seconds == 0 {
			continue
		}
		late, _ := stats.Merge(lag...).Quantile(99)
		rows = append(rows, []string{
			c.Name, report.Digits(cpus / seconds), report.Digits(neighbour / seconds), report.Digits(1e3 * delay / seconds), fmt.Sprintf("%.0f", float64(requests)/seconds),
			report.Digits(generator / seconds), report.Digits(late / 1e3), fmt.Sprint(failed),
		})
	}
	if rows == nil {
		return report.Block{}
	}
	t := report.NewTable([]string{"placement", "services' CPUs", "neighbour's", "run delay ms/s", "requests/s", "generator's CPUs", "lag ms", "failed"}, rows...)
	t.Legend = "run delay: how long the services' threads were ready and waited for a CPU, added up; requests/s: of all services together; " +
		"lag: how late the generator itself was (p99); failed: or not answered."
	return report.Block{Heading: "What it took", Table: t}
}

// each is the table of the services in a placement.
func (a *analysis) each(cell string) report.Block {
	var rows [][]string
	for i, s := range a.graph.services {
		o := a.one(cell, i)
		if !o.known {
			continue
		}
		local := absent
		if o.localKnown {
			local = fmt.Sprintf("%.0f", 100*o.local)
		}
		rows = append(rows, []string{
			s.Name, report.Digits(o.requests), micros(s.CPU), fmt.Sprintf("%.0f", o.cpu), fmt.Sprintf("%.0f", o.delay), whole(o.ownMean), whole(o.ownP50), whole(o.ownP99),
			whole(o.wholeP50), whole(o.wholeP99), local,
		})
	}
	if rows == nil {
		return report.Block{}
	}
	t := report.NewTable([]string{"service", "requests", "work µs", "CPU µs", "run delay µs", "own mean µs", "own p50 µs", "own p99 µs", "whole p50 µs", "whole p99 µs", "local memory %"}, rows...)
	t.Columns[10].PageOnly = !has(rows, 10)
	t.Legend = "requests: for each from outside. work: the CPU time of its own work, as asked for; CPU: what a request took of it, HTTP included; run delay: waiting for one. " +
		"own: from the start of the handler to the answer, without waiting for those that it calls; whole: with that. A p99 takes 100 requests a round. Figures are those of the typical round."
	return report.Block{Heading: fmt.Sprintf("Each service, with %q", cell), Table: t}
}

// whole is a figure without decimals; nothing stands for none.
func whole(v float64) string {
	if v == 0 {
		return absent
	}
	return fmt.Sprintf("%.0f", v)
}

func micros(d lab.Duration) string {
	return fmt.Sprintf("%.0f", float64(d)/float64(time.Microsecond))
}

// unjudged says what the colours of single services are worth.
const unjudged = "No verdicts: what differs by more than 10 %% is coloured, and where the same placement stands twice, by chance."

// page has the plots, and the figures of each service in each placement.
func (a *analysis) page() report.Page {
	if len(a.Rounds) == 0 {
		return report.Page{}
	}
	own := func(o one) float64 { return o.ownMean }
	cpu := func(o one) float64 { return o.cpu }
	p := report.Page{
		Plots: append(a.Judged.Plots("How the tail of the whole compares", lab.P99, a.measured, a.Reference),
			a.heat("own", "Where each service loses time", fmt.Sprintf("Mean of each service's own time (its work, and waiting for a CPU), relative to that with %q. "+unjudged, a.Reference), own),
			a.heat("cpu", "Where each service takes more CPU time", fmt.Sprintf("CPU time of a request to each service, relative to that with %q. "+unjudged, a.Reference), cpu),
		),
		Details: []report.Block{a.matrix("Mean of own time (µs)", own), a.matrix("p99 of own time (µs)", func(o one) float64 { return o.ownP99 }), a.matrix("CPU time per request (µs)", cpu), a.matrix("Run delay per request (µs)", func(o one) float64 { return o.delay })},
	}
	if a.numa() {
		p.Details = append(p.Details, a.matrix("Local memory (%)", func(o one) float64 { return 100 * o.local }))
	}
	p.Details = append(p.Details, a.Judged.Comparisons())
	return p
}

// numa says whether any round has where memory was.
func (a *analysis) numa() bool {
	for _, f := range a.Figures {
		if f.Name == localMemory.Name {
			return true
		}
	}
	return false
}

// measuredCells are the placements that have figures.
func (a *analysis) measuredCells() (names []string) {
	for _, c := range a.Cells {
		if a.ran(c.Name) {
			names = append(names, c.Name)
		}
	}
	return names
}

// matrix is a figure by service and placement.
func (a *analysis) matrix(heading string, value func(one) float64) report.Block {
	cells := a.measuredCells()
	var rows [][]string
	for i, s := range a.graph.services {
		row := []string{s.Name}
		for _, c := range cells {
			text := absent
			if o := a.one(c, i); o.known {
				text = whole(value(o))
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return report.Block{Heading: heading, Table: report.NewTable(append([]string{"service"}, cells...), rows...), Fold: true}
}

// heat is a figure by service and placement, coloured by how much more it is than in the first.
func (a *analysis) heat(id, heading, caption string, value func(one) float64) report.Plot {
	cells := a.measuredCells()
	if len(cells) > 0 {
		cells = cells[1:] // the first is 1 throughout
	}
	var rows []string
	var fields []report.Field
	for i, s := range a.graph.services {
		rows = append(rows, s.Name)
		reference := value(a.one(a.Reference, i))
		for n, c := range cells {
			v := value(a.one(c, i))
			if v == 0 || reference == 0 {
				continue
			}
			times := v / reference
			f := report.Field{Row: i, Column: n, Text: report.Digits(times), Tip: fmt.Sprintf("%s, %s: %s µs, ×%s of %s µs with %s", s.Name, c, report.Digits(v), report.Digits(times), report.Digits(reference), a.Reference)}
			f.Times(times, 10)
			fields = append(fields, f)
		}
	}
	return report.HeatMap(id, heading, caption, "service", "placement", rows, cells, fields)
}
