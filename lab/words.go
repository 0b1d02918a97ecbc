package lab

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab/stats"
)

// words writes the answer, the reading and the recommendation. No sentence names a cause
// without a figure from the layer below it (CPU time got, throttling, lag).
func (a *analysis) words() {
	a.recommend()
	a.answer()
	rows := a.out.Rows
	a.say(a.readFloor())
	a.say(a.readDisturbed())
	for _, row := range rows {
		if row.Scenario == Unisolated && row.Ratio != nil && row.Verdict != stats.Invalid {
			a.say(a.readUnisolated(row))
		}
	}
	a.say(a.readSaturated())
	for _, s := range a.Experiment.Scenarios {
		a.say(a.readSplit(s))
		a.say(a.readGuard(s))
	}
	a.say(a.readDropped())
	a.say(a.readNearest())
	if len(rows) > 0 && a.out.Floor != nil && orCPU(a.Experiment.Resource) == CPU {
		a.say(otherOutput)
	}
}

func (a *analysis) say(paragraph string) {
	if paragraph != "" {
		a.out.Reading = append(a.out.Reading, paragraph)
	}
}

func (a *analysis) readFloor() string {
	f := a.out.Floor
	if f == nil {
		return "The tenant alone was not measured twice in the same blocks: by how much the same thing differs from itself here is unknown."
	}
	return fmt.Sprintf("The tenant alone, measured twice in every block, differs from itself by a factor of %.2f at p99 (%s): nothing was changed between the two.",
		f.Estimate, between(*f))
}

// readDisturbed says what others took, and what was left out for it.
func (a *analysis) readDisturbed() string {
	if !a.out.Undisturbed {
		return ""
	}
	left, all := 0, 0
	for _, row := range a.out.Rows {
		left += row.Disturbed
		all += row.Requests
	}
	if left == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %% of all requests were left out: they were due while others took more than a fifth of the CPUs or the whole machine stood still, or within 150 ms after. "+
		"The rule is the same in all scenarios. With them the figures are in the JSON form and on the page.", 100*float64(left)/float64(max(all, 1)))
}

func (a *analysis) readUnisolated(row Row) string {
	together := slices.ContainsFunc(a.Experiment.Scenarios, func(s Scenario) bool { return s.Name == Unisolated && s.Isolation.Together })
	text := fmt.Sprintf("Beside the neighbour and with no tuning the tenant's p99 is %.3g times its p99 alone (%s).", row.Ratio.Estimate, between(*row.Ratio))
	base, ok := a.find(Baseline)
	if !ok || base.Saturated {
		return text
	}
	if row.Verdict == stats.Equivalent {
		return text + " This neighbour does not compete for what this tenant needs: no isolation is called for."
	}
	if row.TenantCPUs < 0.97*base.TenantCPUs {
		text += fmt.Sprintf(" It used %.2f CPUs alone and got %.2f.", base.TenantCPUs, row.TenantCPUs)
		if together && row.Saturated {
			text += fmt.Sprintf(" In one control group each thread is due the same, and the neighbour has %s.", plain.Count(a.Setup.Neighbour.Threads, "thread"))
		} else if fair := float64(a.cpus()) / 2; a.Setup.Backend != schedBackend && base.TenantCPUs > fair && near(row.TenantCPUs, fair) && near(row.NeighbourCPUs, fair) {
			text += fmt.Sprintf(" Two groups of equal weight are each due %.2f of the %d CPUs while both are busy, and what the tenant wants beyond that comes late.", fair, a.cpus())
		}
	}
	return text + " " + a.symptoms(row, base)
}

// readDropped says what was not run to the end, and why.
func (a *analysis) readDropped() string {
	var names []string
	blocks := 0
	for _, d := range a.Dropped {
		names, blocks = append(names, d.Scenario), d.Blocks
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("After %d blocks the run gave the time of %s to the others: what they do to the p99 was decided, and another strategy was ahead.", blocks, list(names))
}

// near reports whether got is within a fifth of want.
func near(got, want float64) bool { return got > 0.8*want && got < 1.2*want }

// Changes against the baseline that are worth words.
const (
	waitsMore = 1.2 // run delay
	costsMore = 1.1 // CPU time per request
)

// symptoms says what the layers below latency show for a scenario: waiting for a
// CPU, or more CPU time for the same work.
func (a *analysis) symptoms(row, base Row) string {
	var parts []string
	if row.TenantWait > waitsMore*base.TenantWait {
		parts = append(parts, fmt.Sprintf("its threads wait %.2f s per second for a CPU (alone %.2f)", row.TenantWait, base.TenantWait))
	}
	switch cost, alone := a.cpuPerRequest(row.Scenario), a.cpuPerRequest(Baseline); {
	case alone == 0 || cost == 0:
	case cost > costsMore*alone:
		parts = append(parts, fmt.Sprintf("a request takes %.0f %% more CPU time than alone, as when caches, memory, SMT siblings or frequency slow it down", 100*(cost/alone-1)))
	case cost > alone:
		parts = append(parts, fmt.Sprintf("a request takes %.0f %% more CPU time than alone", 100*(cost/alone-1)))
	default:
		parts = append(parts, fmt.Sprintf("a request takes %.0f %% less CPU time than alone", 100*(1-cost/alone)))
	}
	if len(parts) == 0 {
		return ""
	}
	text := strings.Join(parts, "; ")
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// cpuPerRequest is the tenant's CPU seconds per answered request.
func (a *analysis) cpuPerRequest(scenario string) float64 {
	var cpu, done float64
	for _, m := range a.Valid(scenario) {
		if m.Seconds > 0 {
			cpu += m.Tenant.CPUSeconds * float64(m.Load.WindowEnd-m.Load.WindowStart) / 1e9 / m.Seconds
			done += float64(m.Load.DoneInWindow)
		}
	}
	if done == 0 {
		return 0
	}
	return cpu / done
}

// readSaturated explains lower bounds.
func (a *analysis) readSaturated() string {
	var names []string
	for _, row := range a.out.Rows {
		if row.Saturated {
			names = append(names, row.Scenario)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("In %s the tenant answers more slowly than requests are due: its queue grows for as long as the round lasts (%s here), "+
		"so these latencies are lower bounds and would be larger in a longer round.", list(names), Latency(float64(a.Experiment.Window)/1e3))
}

// crowded is the share (0-1) of CPUs of its own that a tenant wants from which on words say so.
const crowded = 0.7

// readSplit says how many CPUs of its own the tenant had, and how full they were.
func (a *analysis) readSplit(s Scenario) string {
	own := a.ownCPUs(s.Name)
	if !s.Isolation.Split || own == 0 || a.Setup.TenantCPUs == 0 {
		return ""
	}
	wants := a.Setup.TenantCPUs / float64(own)
	text := fmt.Sprintf("In %s the tenant has %d of the %d shared CPUs to itself, and wants %.0f %% of that", s.Name, own, a.cpus(), 100*wants)
	if wants > crowded {
		text += ": so full, its requests wait for each other, whoever else runs"
	}
	return text + "."
}

// readGuard says in how many rounds the guard acted, when, what it did first, what failed, and of what
// the figures are.
func (a *analysis) readGuard(s Scenario) (text string) {
	rounds := a.Valid(s.Name)
	if !s.Isolation.Guard || len(rounds) == 0 {
		return ""
	}
	var at []float64
	what, failed, first := "", 0, ""
	for _, d := range rounds {
		if i := slices.IndexFunc(d.Guard, func(act Act) bool { return act.Failed }); i >= 0 {
			failed, first = failed+1, cmp.Or(first, d.Guard[i].What)
		}
		d.Guard = slices.DeleteFunc(slices.Clone(d.Guard), func(act Act) bool { return act.Failed })
		i := slices.IndexFunc(d.Guard, func(act Act) bool { return act.Applied })
		switch {
		case i >= 0:
			at, what = append(at, d.Guard[i].At), d.Guard[i].What
		case len(at) == 0 && len(d.Guard) > 0:
			what = d.Guard[0].What
		}
	}
	if len(at) == 0 {
		if what == "" {
			what = "it found nothing"
		}
		text = fmt.Sprintf("In %s the guard limited nobody: %s.", s.Name, what)
	} else {
		text = fmt.Sprintf("In %s the guard acted in %d of %s, in the median %.1f s after the neighbour began, and last so: %s. "+
			"That is not how fast it is on a host: it counts windows of the rounds before.",
			s.Name, len(at), plain.Count(len(rounds), "round"), stats.Median(at), what)
	}
	if failed > 0 {
		text += fmt.Sprintf(" It met errors in %s, the first: %s.", plain.Count(failed, "round"), first)
	}
	settle, _ := a.Experiment.lengthOf(s)
	return text + fmt.Sprintf(" Measured is from %.1f s after the neighbour began on: what tenant and neighbour lose before is in no figure.", settle.Seconds())
}

// readNearest says what still separates the best strategy from the baseline.
func (a *analysis) readNearest() string {
	base, ok := a.find(Baseline)
	row := a.nearest()
	if !ok || base.Saturated || row == nil || row.Scenario == Unisolated || row.Verdict != stats.Worse {
		return ""
	}
	symptoms := a.symptoms(*row, base)
	if symptoms == "" {
		return ""
	}
	return fmt.Sprintf("What is left under %s: %s", row.Scenario, lowerFirst(symptoms))
}

// otherOutput says what a different pattern would have meant.
const otherOutput = "How to read other patterns: idle as good as alone says that plain CPU time was the trouble, and the cheapest cure is enough; idle worse and pinned as good " +
	"points at what two threads share on one core (wake-up, private caches, SMT siblings); both worse, with more CPU time per request than alone, " +
	"at what cores share (L3, memory bandwidth), which no CPU scheduling separates; pinned overloaded means that the tenant's cores are too few for its load."

// nearest is the compared scenario with the lowest ratio.
func (a *analysis) nearest() *Row {
	var nearest *Row
	for i, row := range a.out.Rows {
		if row.Ratio == nil || row.Scenario == BaselineAgain || row.Verdict == stats.Invalid {
			continue
		}
		if nearest == nil || row.Ratio.Estimate < nearest.Ratio.Estimate {
			nearest = &a.out.Rows[i]
		}
	}
	return nearest
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// recommend names what to do: nothing, if that is as good as alone; else, of the strategies that are as good, the one that
// keeps most of the neighbour's work; else the best of those that are better than nothing.
func (a *analysis) recommend() {
	var best *Row
	for i, row := range a.out.Rows {
		protects := row.Ratio != nil && row.Scenario != BaselineAgain && (row.Verdict == stats.Equivalent || row.Verdict == stats.Better)
		if protects && row.Scenario == Unisolated {
			best = &a.out.Rows[i]
			break // nothing is cheaper than nothing
		}
		if protects && (best == nil || workOf(row) > workOf(*best)) {
			best = &a.out.Rows[i]
		}
	}
	if helps := a.best(); best == nil && len(helps) > 0 {
		best = &helps[0]
	}
	nearest := a.nearest()
	switch {
	case nearest == nil:
		a.out.Recommendation = "none: nothing could be compared with the tenant alone."
	case best == nil:
		a.out.Recommendation = fmt.Sprintf("none: no strategy is shown to be as good as alone, or better than nothing. The nearest is %s: p99 %.3g times that of alone (%s), %s.",
			nearest.Scenario, nearest.Ratio.Estimate, nearest.Verdict.Against("alone"), costOf(*nearest))
	case best.Scenario == Unisolated:
		a.out.Recommended = best.Scenario
		a.out.Recommendation = "no isolation: the tenant is as fast beside this neighbour as alone, at this load."
	default:
		a.out.Recommended = best.Scenario
		a.out.Recommendation = fmt.Sprintf("%s: the tenant's p99 is %.3g times that of alone (%s), %s.",
			best.Scenario, best.Ratio.Estimate, best.Verdict.Against("alone"), costOf(*best))
	}
}

func workOf(row Row) float64 {
	if row.WorkShare == nil {
		return 0
	}
	return *row.WorkShare
}

func costOf(row Row) string {
	if row.WorkShare == nil {
		return "the neighbour's cost is unknown without unisolated rounds"
	}
	return fmt.Sprintf("and the neighbour keeps %.0f %% of its work without isolation (%.2f CPUs), the host %.0f %% busy",
		100**row.WorkShare, row.NeighbourCPUs, 100*row.HostBusy)
}

func (a *analysis) find(scenario string) (Row, bool) {
	for _, row := range a.out.Rows {
		if row.Scenario == scenario && row.Valid > 0 {
			return row, true
		}
	}
	return Row{}, false
}

func between(iv stats.Interval) string {
	if !iv.Known() {
		return plain.Count(iv.Rounds, "block") + ": too few for an interval"
	}
	return fmt.Sprintf("%.0f %% interval %.3g to %.3g", 100*iv.Confidence, iv.Low, iv.High)
}

func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// warn collects what puts the run as a whole in doubt.
func (a *analysis) warn() {
	a.warnProbes()
	var steal, foreign, total float64
	perturbed := map[string]int{}
	for _, r := range a.Rounds {
		steal += r.Host.Steal
		foreign += r.Host.Foreign
		total += r.Seconds * float64(r.Host.SharedCPUs)
		for _, p := range r.Load.Perturbed {
			perturbed[p]++
		}
	}
	if total > 0 {
		if ok, why := stats.HostGate(steal/total, foreign/total); !ok {
			a.out.Warnings = append(a.out.Warnings, why)
		}
	}
	if p := a.Setup.GeneratorPolicy; p != "" && !ahead(a.Setup.GeneratorCPUs, p) {
		a.out.Warnings = append(a.out.Warnings, "the generator shares CPUs without real-time priority ("+p+
			"): beside a neighbour it is late itself; its lag is a part of the response times, which are upper bounds then; run as root or grant CAP_SYS_NICE")
	}
	for _, p := range slices.Sorted(maps.Keys(perturbed)) {
		a.out.Warnings = append(a.out.Warnings, fmt.Sprintf("generator: %s (%d of %d rounds)", p, perturbed[p], len(a.Rounds)))
	}
	if n := len(a.Resumed); n > 0 {
		a.out.Warnings = append(a.out.Warnings, fmt.Sprintf("the run was interrupted and resumed (%d times)", n))
	}
	for _, note := range []string{a.Setup.RateNote, a.Setup.NeighbourNote, a.Setup.ProbeNote, a.Setup.OtherLab} {
		if note != "" {
			a.out.Warnings = append(a.out.Warnings, note)
		}
	}
	if a.Setup.BackendNote != "" {
		a.out.Warnings = append(a.out.Warnings, "backend "+a.Setup.Backend+": "+a.Setup.BackendNote)
	}
}

// warnProbes looks for a machine that changed between rounds.
func (a *analysis) warnProbes() {
	series := map[string][]float64{}
	var order []string
	for _, r := range a.Rounds {
		for _, p := range r.Probes {
			if series[p.Probe] == nil {
				order = append(order, p.Probe)
			}
			series[p.Probe] = append(series[p.Probe], p.NS)
		}
	}
	for _, name := range order {
		if d, ok := stats.FindDrift(series[name]); ok && d.Kind != stats.Steady {
			a.out.Warnings = append(a.out.Warnings, fmt.Sprintf("control probe %s: %s (ns per operation): the machine changed under the experiment", name, d))
		}
	}
}

// cpus is how many CPUs tenant and neighbour share.
func (r *Result) cpus() int {
	set, err := cpuset.Parse(r.Setup.CPUs)
	if err != nil {
		return 0
	}
	return set.Len()
}
