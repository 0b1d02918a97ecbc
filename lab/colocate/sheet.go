package colocate

import (
	"fmt"
	"slices"
	"strconv"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/place"
)

// Document is the report in its JSON form. The raw rounds are in the result.
type Document struct {
	*report.JudgedDocument
	Service  string       `json:"service"`
	Services int          `json:"services"`
	CPUsEach int          `json:"cpusEach"`
	Scaled   string       `json:"scaled"`
	Placed   []Placed     `json:"placed"`
	Each     []ServiceRow `json:"each"`
	Bills    []ModeBill   `json:"bills"`
}

// Judged are the figures of the result by which two results are compared.
func (x *Experiment) Judged() ([]report.Judged, error) {
	v, err := x.view()
	if err != nil {
		return nil, err
	}
	return []report.Judged{v.Judged}, nil
}

// Sheet is what the result comes to: first words that a person can act on.
func (x *Experiment) Sheet() (*report.Sheet, error) {
	v, err := x.view()
	if err != nil {
		return nil, err
	}
	s := report.NewSheet("colocate: many services on one machine", &x.Header)
	s.Answer, s.Headline = v.words(), v.Headline(lab.P99)
	s.Open = !slices.ContainsFunc(v.own(), func(m Mode) bool {
		verdict := v.Of(m.Name, v.Reference, lab.P99.Name).Verdict
		return verdict == stats.Better || verdict == stats.Worse || verdict == stats.Equivalent
	})
	s.Document = Document{v.Judged.Document(&x.Header, x.Experiment, s.Answer), x.Service, x.Services, x.CPUsEach, x.Scaled, x.Placed, v.each, v.bills}
	v.facts(s)
	if len(x.Rounds) == 0 {
		return s, nil
	}
	s.Add(report.Block{Table: v.Judged.Table()}, v.placesTable(), report.Costs(v.measured, v.Judged, "services", ""), v.billTable(), v.eachTable())
	s.Page = func() report.Page {
		return report.Page{Plots: append(v.Plots("How p99 compares", lab.P99, v.measured, v.Reference), v.heat()), Details: []report.Block{v.Comparisons()}}
	}
	return s, nil
}

func (v *view) facts(s *report.Sheet) {
	e, setup := v.Experiment.Experiment, v.Setup
	s.Fact("services", v.Scaled)
	server := v.Service
	if setup.Server != "" {
		server = setup.Server
	}
	workers := "1 worker"
	if v.CPUsEach > 1 {
		workers = fmt.Sprintf("%d workers", v.CPUsEach)
	}
	s.Fact("server", fmt.Sprintf("%s, %s each, on CPUs %s; placed by policy %s", server, workers, setup.CPUs, e.Policy))
	if e.Load == wrk {
		s.Fact("load", fmt.Sprintf("wrk, closed loop, %d connections to each service: a stall holds back the requests that would have shown it", e.Connections))
	} else {
		s.Fact("load", fmt.Sprintf("open loop, %.0f requests/s to all of them, a service by chance each; they want %.2f CPUs", setup.Rate, setup.TenantCPUs))
		if setup.RateNote != "" {
			s.Fact("note", setup.RateNote)
		}
	}
	settle := fmt.Sprintf(" after %s to settle", e.Settle)
	if e.Load == wrk {
		settle = ""
	}
	s.Fact("rounds", fmt.Sprintf("%s × %s%s, seed %d", plain.Count(e.Blocks, "block"), e.Window, settle, e.Seed))
	if e.Weight > 0 {
		s.Fact("weight", fmt.Sprintf("the run had CPU weight %d together against all else on the host", e.Weight))
	}
	s.Others(v.measured, v.undisturbed)
	failed := 0
	for _, d := range v.measured.Decoded {
		failed += d.Censored
	}
	s.Failed(failed)
}

// words are what to know, and to do.
func (v *view) words() []string {
	switch {
	case !v.Ran(v.Reference):
		return []string{"Nothing can be said: no round of " + v.Reference + " counts."}
	case v.Bound(v.Reference):
		return []string{"Nothing can be said: even on shared CPUs the services cannot keep up with their load. Offer less (--set demand=0.2), or run where the machine is not busy with something else."}
	}
	own := v.own()
	if len(own) == 0 {
		return []string{fmt.Sprintf("Leave %s on shared CPUs: no mode with CPUs of their own fits here. One request in 100 takes %s.", v.Experiment, v.P99(v.Reference))}
	}
	var answer, against []string
	best := own[0] // of those that are shown to be better than shared CPUs, if one is
	for _, m := range own[1:] {
		c := v.Of(m.Name, own[0].Name, lab.P99.Name)
		against = append(against, fmt.Sprintf("p99 of %s against %s: %s.", m.Name, own[0].Name, c.Words()))
		if v.better(m) && (c.Verdict == stats.Better || !v.better(best)) {
			best = m
		}
	}
	ordered := append([]Mode{best}, slices.DeleteFunc(slices.Clone(own), func(m Mode) bool { return m.Name == best.Name })...)
	for _, want := range []stats.Verdict{stats.Better, stats.Worse, stats.Equivalent, stats.Inconclusive, stats.Invalid} { // what is decided comes first
		for _, m := range ordered {
			if c := v.Of(m.Name, v.Reference, lab.P99.Name); c.Verdict == want {
				answer = append(answer, v.verdict(m, c))
			}
		}
	}
	answer = append(answer, against...)
	for _, b := range v.bills {
		text := fmt.Sprintf("The bill of %s: %d of %d CPUs are reserved, and the services use %.0f %% of that", b.Mode, b.Reserved, b.Of, 100*(1-b.Lost()))
		if v.Setup.GeneratorCPUs == "" {
			text += fmt.Sprintf("; the load generator, on the same CPUs, uses %.2g CPUs", v.asking(b.Mode))
		}
		answer = append(answer, text+".")
	}
	if v.better(best) {
		answer = append(answer, "Do it: "+best.command(v.CPUsEach))
	}
	return answer
}

// better says whether a mode is shown to be better than shared CPUs.
func (v *view) better(m Mode) bool {
	return v.Of(m.Name, v.Reference, lab.P99.Name).Verdict == stats.Better
}

// command places a service as the mode does.
func (m Mode) command(cpus int) string {
	text := fmt.Sprintf("berth run --class %s --cpus %d", m.Class, cpus)
	if m.Bind != place.BindAny {
		text += " --bind " + m.Bind.String()
	}
	if m.Exclusive != place.CPULevel {
		text += " --exclusive " + m.Exclusive.String()
	}
	return text + " -- SERVICE"
}

// asking is the CPUs that asking took in a mode.
func (v *view) asking(mode string) float64 {
	cpu, seconds := 0.0, 0.0
	for _, r := range v.measured.Valid(mode) {
		cpu += r.Load.CPUSeconds
		seconds += r.Seconds
	}
	return cpu / max(seconds, 1e-9)
}

// verdict is what CPUs of their own do to p99, in words.
func (v *view) verdict(m Mode, c stats.Compared) string {
	shared, own := v.P99(v.Reference), v.P99(m.Name)
	switch c.Verdict {
	case stats.Better:
		return fmt.Sprintf("Give %s CPUs of their own (%s): one request in 100 then takes %s instead of %s: %s.", v.Experiment, m.Name, own, shared, c.Words())
	case stats.Worse:
		return fmt.Sprintf("Leave %s on shared CPUs: with CPUs of their own (%s) one request in 100 takes %s instead of %s: %s.", v.Experiment, m.Name, own, shared, c.Words())
	case stats.Equivalent:
		return fmt.Sprintf("Leave %s on shared CPUs: CPUs of their own (%s) change p99 by less than 10 %% (%s, shared %s).", v.Experiment, m.Name, own, shared)
	}
	text := fmt.Sprintf("Leave %s on shared CPUs for now: this run does not show that CPUs of their own (%s) change p99 (%s, shared %s; %.3g to %.3g times).", v.Experiment, m.Name, own, shared, c.Low, c.High)
	if c.MoreBlocks > 0 {
		text += fmt.Sprintf(" About %d blocks more would decide: --set blocks=%d, and a longer --for.", c.MoreBlocks, v.Experiment.Experiment.Blocks+c.MoreBlocks)
	}
	return text
}

// placesTable is which service has which CPUs.
func (v *view) placesTable() report.Block {
	heads := []string{"mode"}
	for n := range v.Services {
		heads = append(heads, fmt.Sprintf("service %d", n+1))
	}
	heads = append(heads, "kept idle")
	var rows [][]string
	for _, p := range v.Placed {
		row := []string{p.Mode}
		for n := range v.Services {
			text := absent
			if n < len(p.Services) {
				text = p.Services[n].CPUs.String()
			}
			row = append(row, text)
		}
		idle := absent
		if all := p.idle(); !all.IsEmpty() {
			idle = all.String()
		}
		rows = append(rows, append(row, idle))
	}
	t := report.NewTable(heads, rows...)
	t.Legend = fmt.Sprintf("The CPUs of each service, as the placement policy %s answered; kept idle: siblings beside them.", v.Experiment.Experiment.Policy)
	return report.Block{Heading: "Which CPUs each service has", Table: t, Fold: v.Services > 4}
}

// billTable is what CPUs of their own cost.
func (v *view) billTable() report.Block {
	if len(v.bills) == 0 {
		return report.Block{}
	}
	var rows [][]string
	for _, b := range v.bills {
		rows = append(rows, []string{
			b.Mode, fmt.Sprintf("%d of %d", b.Reserved, b.Of), strconv.Itoa(b.Idle), fmt.Sprintf("%.2f", b.Used),
			fmt.Sprintf("%.2f", float64(b.Reserved)*b.Lost()), fmt.Sprintf("%.0f", 100*b.Lost()), strconv.Itoa(b.Of - b.Reserved),
		})
	}
	t := report.NewTable([]string{"mode", "CPUs reserved", "kept idle", "used", "unused", "unused %", "left for others"}, rows...)
	t.Legend = "Reserved: nobody else may use them, idle siblings included. Used, unused: by the services, in CPUs; where the load comes from the same CPUs, it takes part of what they leave. On shared CPUs nothing is reserved."
	return report.Block{Heading: "The bill of CPUs of their own", Table: t}
}

// eachTable is every service by itself.
func (v *view) eachTable() report.Block {
	var rows [][]string
	for _, r := range v.each {
		rows = append(rows, []string{
			r.Mode, strconv.Itoa(r.Service), r.CPUs, latency(r.P50), latency(r.P95), latency(r.P99), latency(r.P999),
			fmt.Sprintf("%.0f", r.Throughput), fmt.Sprintf("%.2f", r.Used), perSecond(r.Throttled),
		})
	}
	if rows == nil {
		return report.Block{}
	}
	t := report.NewTable([]string{"mode", "service", "on CPUs", "p50", "p95", "p99", "p99.9", "requests/s", "CPUs used", "throttled ms/s"}, rows...)
	for i := range t.Columns {
		t.Columns[i].PageOnly = !slices.ContainsFunc(rows, func(row []string) bool { return row[i] != absent })
	}
	t.Legend = "Of all its requests in the rounds that count, those included that others disturbed. A percentile that the requests of a round are too few for is left out."
	return report.Block{Heading: "Each service", Table: t, Fold: v.Services > 4}
}

// heat is the p99 of every service, coloured by how it compares with the typical one of the
// first mode.
func (v *view) heat() report.Plot {
	var modes, services []string
	var fields []report.Field
	usual := v.usual()
	for n := range v.Services {
		services = append(services, strconv.Itoa(n+1))
	}
	for _, m := range v.Experiment.Experiment.Modes {
		if v.Ran(m.Name) {
			modes = append(modes, m.Name)
		}
	}
	for _, r := range v.each {
		row := slices.Index(modes, r.Mode)
		if row < 0 || r.P99 == 0 || usual == 0 {
			continue
		}
		times := r.P99 / usual
		f := report.Field{Row: row, Column: r.Service - 1, Text: lab.Latency(r.P99)}
		f.Tip = fmt.Sprintf("%s, service %d on CPUs %s: p99 %s, %.2f times the usual one of %s", r.Mode, r.Service, r.CPUs, f.Text, times, v.Reference)
		f.Times(times, 4)
		fields = append(fields, f)
	}
	caption := fmt.Sprintf("The p99 of each service in each mode, of all its requests; coloured where it is 10 %% or more from the median of the services in %s.", v.Reference)
	return report.HeatMap("each", "Is any service worse off?", caption, "mode", "service", modes, services, fields)
}

// usual is the median p99 of the services of the first mode, in µs.
func (v *view) usual() float64 {
	var all []float64
	for _, r := range v.each {
		if r.Mode == v.Reference && r.P99 > 0 {
			all = append(all, r.P99)
		}
	}
	if all == nil {
		return 0
	}
	return stats.Median(all)
}

const absent = "–"

func latency(us float64) string {
	if us == 0 {
		return absent
	}
	return lab.Latency(us)
}

// perSecond is seconds per second as milliseconds.
func perSecond(seconds float64) string {
	if seconds == 0 {
		return absent
	}
	return fmt.Sprintf("%.0f", 1e3*seconds)
}
