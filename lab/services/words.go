package services

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// p99 is that of the typical round in words.
func (a *analysis) p99(cell string) string {
	us, ok := stats.Typical(a.Samples, cell, lab.P99.Name)
	switch {
	case !ok:
		return "unknown"
	case a.bound(cell):
		return "at least " + lab.Latency(us)
	}
	return lab.Latency(us)
}

// answer is what to know and what to do, a sentence or two each.
func (a *analysis) answer() []string {
	switch {
	case !a.ran(a.Reference):
		return []string{fmt.Sprintf("Nothing can be said: no round of %q counts.", a.Reference)}
	case a.bound(a.Reference):
		return []string{fmt.Sprintf("Nothing can be said: even with %q the services cannot keep up with their load. Offer less (--set demand=0.1), or run where the machine is not busy with something else.", a.Reference)}
	}
	all := a.advice()
	if _, ok := stats.Typical(a.Samples, a.Reference, lab.P99.Name); !ok {
		all = []string{fmt.Sprintf("Nothing can be said about response times: a round has about %.0f requests, and a p99 takes 100. Longer rounds have more: --set window=5s.",
			a.Setup.Rate*time.Duration(a.Experiment.Experiment.Window).Seconds())}
	}
	all = append(all, a.pairs()...)
	if s := a.beside(); s != "" {
		all = append(all, s)
	}
	if s := a.locality(); s != "" {
		all = append(all, s)
	}
	return all
}

// candidates are the placements without a neighbour that were measured, besides the first and
// its double.
func (a *analysis) candidates() (names []string) {
	e := a.Experiment.Experiment
	for _, p := range e.Placements {
		if p.Neighbour == "" && !slices.Contains(e.references(), p.Name) && a.ran(p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// advice is where to have the services, by the p99 of the whole.
func (a *analysis) advice() []string {
	best := stats.Compared{}
	by := map[stats.Verdict][]string{}
	candidates := a.candidates()
	for _, name := range candidates {
		c := a.of(name, a.Reference, lab.P99.Name)
		if c.Verdict == stats.Better && (best.Cell == "" || c.Estimate < best.Estimate) {
			best = c
		}
		text := fmt.Sprintf("%q", name)
		if c.Verdict != stats.Equivalent && c.Known() {
			text += fmt.Sprintf(" ×%s", span(c))
		}
		by[c.Verdict] = append(by[c.Verdict], text)
	}
	if len(candidates) == 0 {
		return []string{fmt.Sprintf("Nothing was compared: besides %q no placement could be measured on this machine.", a.Reference)}
	}
	if best.Cell != "" {
		text := fmt.Sprintf("Give the services their places: with %q one request in 100 takes %s, ×%s of %s with %q.", best.Cell, a.p99(best.Cell), span(best), a.p99(a.Reference), a.Reference)
		return []string{text + a.others(by, best.Cell), "Do it: " + a.how(best.Cell)}
	}
	reason := "no placement is better"
	if len(by[stats.Inconclusive])+len(by[stats.Invalid]) > 0 {
		reason = "no placement is shown to be better"
	}
	return []string{fmt.Sprintf("Leave the services to the scheduler: with %q one request in 100 takes %s, and %s.", a.Reference, a.p99(a.Reference), reason) + a.others(by, "")}
}

// others are the verdicts on the placements besides the best.
func (a *analysis) others(by map[stats.Verdict][]string, best string) string {
	var b strings.Builder
	for _, v := range []struct {
		verdict stats.Verdict
		words   string
	}{{stats.Better, "Better, too"}, {stats.Equivalent, "As good, within 10 %"}, {stats.Worse, "Worse"}, {stats.Inconclusive, "Not decided"}} {
		names := slices.DeleteFunc(slices.Clone(by[v.verdict]), func(text string) bool { return best != "" && strings.HasPrefix(text, fmt.Sprintf("%q", best)) })
		if len(names) > 0 {
			fmt.Fprintf(&b, " %s: %s.", v.words, strings.Join(names, ", "))
		}
	}
	return b.String()
}

// how is the commands that put services where a placement has them.
func (a *analysis) how(cell string) string {
	p, ok := a.placeOf(cell)
	if !ok {
		return fmt.Sprintf("as %q has it.", cell)
	}
	var all []string
	for _, part := range p.Parts {
		flags := "--cpuset " + part.CPUs.String()
		if !part.Mems.IsEmpty() {
			flags += " --mems " + part.Mems.String()
		}
		who := "each service"
		if len(p.Parts) > 1 {
			who = strings.Join(part.Services, ", ")
		}
		all = append(all, fmt.Sprintf("berth run %s -- SERVICE (%s)", flags, who))
	}
	return strings.Join(all, "; ")
}

// pairs are the comparisons that were asked for besides.
func (a *analysis) pairs() (all []string) {
	for _, p := range a.Experiment.Experiment.Compare {
		if !a.ran(p.Placement) || !a.ran(p.Against) {
			continue
		}
		text := fmt.Sprintf("%q against %q", p.Placement, p.Against)
		one, known := a.placeOf(p.Placement)
		other, knownToo := a.placeOf(p.Against)
		if known && knownToo && len(one.Parts) > 1 && len(other.Parts) > 1 {
			text += fmt.Sprintf(" (%.3g against %.3g of %.3g calls cross)", one.Crossing, other.Crossing, a.graph.calls())
		}
		all = append(all, fmt.Sprintf("%s: p99 %s; CPU time per request %s.", text, a.of(p.Placement, p.Against, lab.P99.Name).Words(), a.of(p.Placement, p.Against, lab.CPUPerRequest.Name).Words()))
	}
	return all
}

// beside is what a neighbour costs.
func (a *analysis) beside() string {
	for _, p := range a.Experiment.Experiment.Placements {
		if p.Neighbour != Everywhere || !a.ran(p.Name) {
			continue
		}
		return fmt.Sprintf("Beside the neighbour (%q) one request in 100 takes %s: %s.", p.Name, a.p99(p.Name), a.of(p.Name, a.Reference, lab.P99.Name).Words())
	}
	return ""
}

// locality is how much of the memory was local.
func (a *analysis) locality() string {
	var parts []string
	for _, c := range a.Cells {
		if share, ok := stats.Typical(a.Samples, c.Name, localMemory.Name); ok {
			parts = append(parts, fmt.Sprintf("%.0f %% with %q", 100*share, c.Name))
		}
	}
	if parts == nil {
		return ""
	}
	return "Memory on the node on which its service ran: " + strings.Join(parts, ", ") + "."
}

// span is a ratio and its interval: "1.2 (1.1 to 1.3)".
func span(c stats.Compared) string {
	if !c.Known() {
		return report.Digits(c.Estimate)
	}
	return fmt.Sprintf("%s (%s to %s)", report.Digits(c.Estimate), report.Digits(c.Low), report.Digits(c.High))
}

const absent = "–"
