package beside

import (
	"fmt"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// Quick answers in half a minute: what does a CPU hog cost, and what is the cheapest cure?
func Quick() *Experiment { return quick.make() }

// The cells of quick and pinning.
const (
	alone    = "alone"
	nothing  = "nothing"
	weighted = "weighted"
	idle     = "idle"
)

var quick = &design{
	name: "quick", schema: "berth.dev/lab-quick/v1",
	spec: func() Spec {
		e := usual()
		e.Blocks, e.For, e.Window, e.Demand, e.ThreadsPerCPU = 20, lab.Duration(28*time.Second), lab.Duration(250*time.Millisecond), 0.4, 4
		return e
	},
	cells: []cell{
		{name: alone, means: "the tenant alone"},
		{name: nothing, means: "a CPU hog beside it in one control group: no isolation", neighbour: true, together: true},
		{name: weighted, means: "the hog at a tenth of the tenant's CPU weight", neighbour: true, place: isolated(lab.Isolation{Weight: 10})},
		{name: idle, means: "the hog in the idle class", neighbour: true, place: isolated(lab.Isolation{Idle: true})},
	},
	versus:  []stats.Versus{{Cell: weighted, Against: nothing}, {Cell: idle, Against: nothing}, {Cell: idle, Against: weighted}},
	figures: []stats.Figure{lab.P99, lab.Work},
	words:   quickWords,
}

func isolated(i lab.Isolation) func(*lab.Testbed) (lab.Settings, error) {
	return func(b *lab.Testbed) (lab.Settings, error) { return b.Settings(i) }
}

func quickWords(v *view) []string {
	if text := v.nothing(); text != "" {
		return []string{text}
	}
	harm := v.Of(nothing, alone, lab.P99.Name)
	scope := fmt.Sprintf("Measured in %s with Berth's own service at %.0f %% of CPUs %s. Longer, with more cures, and to see smaller differences: berth lab",
		blocks(harm.Rounds), 100*v.Setup.TenantCPUs/float64(max(1, v.sharedCPUs())), v.Setup.CPUs)
	switch harm.Verdict {
	case stats.Equivalent:
		return []string{"A CPU hog next door costs your p99 nothing here, within 10 %: no cure is needed at this load.", scope}
	case stats.Better:
		return []string{fmt.Sprintf("A CPU hog next door does no harm to your p99 here: it is ×%s beside it.", span(harm)), scope}
	case stats.Worse:
	default:
		if !harm.Known() {
			return []string{"Whether a CPU hog next door costs your p99 anything, this run is too short to tell.", scope}
		}
		return []string{fmt.Sprintf("Whether a CPU hog next door costs your p99 anything, this run cannot tell: ×%s.", span(harm)), scope}
	}
	text := fmt.Sprintf("A CPU hog next door costs your p99 ×%s: %s alone, %s beside it; ", span(harm), v.P99(alone), v.P99(nothing))
	if v.Bound(nothing) {
		text = fmt.Sprintf("A CPU hog next door costs your p99 at least ×%s: the tenant is overloaded beside it (%s alone, %s in rounds of %s); ", lab.Three(harm.Low), v.P99(alone), v.P99(nothing), v.Experiment.Experiment.Window)
	}
	cures, less := v.cures()
	switch len(cures) {
	case 0:
		return []string{text + "whether a low weight or the idle class cures that, this run cannot tell.", scope}
	case 1:
		return []string{text + "the cheapest cure here is " + cures[0].text + ".", "Do it: " + cures[0].how, scope}
	}
	text += "cures are " + cures[0].text + " and " + cures[1].text + ", whose p99 this run cannot tell apart"
	if less != "" {
		text += "; " + less + " takes less from the hog"
	}
	return []string{text + ".", "Do it: " + cures[0].how + ", or " + cures[1].how, scope}
}

// cure is one that is shown to help.
type cure struct{ name, text, how string }

// cures are those that are shown to be better than nothing. Of two it is the one that is
// shown to leave the tenant better off, or else, if they are shown to be alike in that, to
// take less from the hog. Of two that cannot be told apart, less takes less.
func (v *view) cures() (all []cure, less string) {
	for _, c := range []cure{{name: weighted, how: "berth run --weight 10 -- COMMAND, beside a service that berth run started"}, {name: idle, how: "berth run --class BE -- COMMAND"}} {
		against := v.Of(c.name, nothing, lab.P99.Name)
		if against.Verdict != stats.Better {
			continue
		}
		c.text = fmt.Sprintf("%s (p99 %s, ×%s of that of nothing", c.name, v.P99(c.name), span(against))
		if kept := v.Of(c.name, nothing, lab.Work.Name); kept.Estimate > 0 {
			c.text += fmt.Sprintf("; the hog keeps %.0f %% of its work", 100*kept.Estimate)
		}
		c.text += ")"
		all = append(all, c)
	}
	if len(all) < 2 {
		return all, ""
	}
	p99, work := v.Of(idle, weighted, lab.P99.Name).Verdict, v.Of(idle, weighted, lab.Work.Name).Verdict
	switch {
	case p99 == stats.Better, p99 == stats.Equivalent && work == stats.Better:
		return all[1:], ""
	case p99 == stats.Worse, p99 == stats.Equivalent && work == stats.Worse:
		return all[:1], ""
	case work == stats.Better:
		return all, idle
	case work == stats.Worse:
		return all, weighted
	}
	return all, ""
}

func (v *view) sharedCPUs() int {
	for _, r := range v.Rounds {
		return r.Host.SharedCPUs
	}
	return 0
}

// span is a ratio and its interval: "12 (9.1 to 16)".
func span(c stats.Compared) string {
	if !c.Known() {
		return lab.Three(c.Estimate)
	}
	return fmt.Sprintf("%s (%s to %s)", lab.Three(c.Estimate), lab.Three(c.Low), lab.Three(c.High))
}

func blocks(n int) string {
	if n == 1 {
		return "1 block"
	}
	return fmt.Sprintf("%d blocks", n)
}
