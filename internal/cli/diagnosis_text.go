package cli

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
)

// printed is a finding whose names fit in a line of text each.
func printed(f detect.Finding) detect.Finding {
	f.Victim, f.Suspect = plain.Line(f.Victim), plain.Line(f.Suspect)
	f.Evidence = slices.Clone(f.Evidence)
	for i := range f.Evidence {
		f.Evidence[i].Subject.Name = plain.Line(f.Evidence[i].Subject.Name)
	}
	return f
}

// text says it all in plain words.
func (d *diagnosis) text() string {
	var b strings.Builder
	if d.Answer != "" {
		fmt.Fprintf(&b, "%s\n\n", d.Answer)
	}
	fmt.Fprintf(&b, "Looked at %s for %.0f s, beside %d more.\nDELAY: seconds for which threads waited for a CPU, per second; P99: of single waits. Means, but for P99\nand MEMORY, which are the last:\n\n%s", d.whom(), d.Seconds, d.Others, d.overview)
	d.writeInNoGroup(&b)
	d.writeFindings(&b)
	d.writeUnknown(&b)
	fmt.Fprintf(&b, "\nNext, to %s:\n  %s\n", d.Next.To, d.Next.Command)
	return b.String()
}

// whom says at whom was looked.
func (d *diagnosis) whom() string {
	groups := plain.Count(len(d.Looked)-d.programs, "control group")
	switch programs := plain.Count(d.programs, "program") + " in no group of their own"; {
	case d.Target != "":
		return plain.Line(d.Target)
	case d.programs == 0:
		return groups + " that used CPU time"
	case d.programs == len(d.Looked):
		return programs + " that used CPU time"
	default:
		return groups + " and " + programs + " that used CPU time"
	}
}

// few is how many are named in a sentence.
const few = 4

// writeInNoGroup says which processes in no group of their own used the CPUs.
func (d *diagnosis) writeInNoGroup(b *strings.Builder) {
	if d.Host.InNoGroup < 0.1 {
		return
	}
	var who []string
	rest := 0
	for _, p := range d.Programs {
		switch {
		case p.Used < 0.05:
		case len(who) < few:
			who = append(who, fmt.Sprintf("%s %.1f", plain.Line(p.Name), p.Used))
		default:
			rest++
		}
	}
	if rest > 0 {
		who = append(who, fmt.Sprintf("and %d more", rest))
	}
	fmt.Fprintf(b, "\n%.1f of %d.0 CPUs used by processes in no group of their own: %s\n", d.Host.InNoGroup, d.Host.CPUs, strings.Join(who, ", "))
}

// writeFindings says what was found: the first in full.
func (d *diagnosis) writeFindings(b *strings.Builder) {
	if len(d.Findings) == 0 {
		d.writeNothing(b)
		return
	}
	if d.Sensitive != "" && !slices.ContainsFunc(d.Findings, func(f foundRow) bool { return f.Victim == d.Sensitive }) {
		fmt.Fprintf(b, "\nNothing found about %s%s. Of others:\n", plain.Line(d.Sensitive), d.idle())
	}
	victim := d.Findings[0].Victim
	var others []string
	for i, f := range d.Findings {
		if d.verbose || i == 0 {
			fmt.Fprintf(b, "\n%s", printed(f.Finding).String())
			var who []string
			for _, by := range f.Behind {
				who = append(who, fmt.Sprintf("%s %.0f %%", detect.Called(plain.Line(by.Name)), 100*by.Share))
			}
			if len(who) > 0 {
				fmt.Fprintf(b, "  behind: %s of the wait\n", strings.Join(who, ", "))
			}
			fmt.Fprintf(b, "  found: in %d of %d windows\n", f.Found, d.Windows)
			continue
		}
		if slices.ContainsFunc(d.Findings[:i], func(g foundRow) bool { return g.Victim == f.Victim && g.Resource == f.Resource }) {
			continue // with another suspect, or none
		}
		text, _, _ := strings.Cut(printed(f.Finding).String(), "\n")
		others = append(others, fmt.Sprintf("  %s (sure %.0f %%, in %d of %d windows)\n", text, 100*f.Confidence, f.Found, d.Windows))
	}
	if len(others) > 0 {
		fmt.Fprintf(b, "\nAlso (--verbose shows the evidence):\n%s", strings.Join(others, ""))
	}
	if d.unaccused() {
		b.WriteString("\n")
		d.writeShort(b)
	}
	if matters := d.mayMatter(victim); matters != "" {
		fmt.Fprintf(b, "\nThis is the order of harm, as it is not known here who matters.\n--sensitive NAME says so, as in --sensitive %s.\n", plain.Shell(matters))
	}
}

// mayMatter is who could be the service that matters, where nobody said so and it is not
// plain; "" elsewhere.
func (d *diagnosis) mayMatter(victim string) string {
	if d.Target != "" || d.Sensitive != "" {
		return ""
	}
	if d.unaccused() {
		victim = d.worst.Name
	} else if !slices.ContainsFunc(d.Findings, func(f foundRow) bool { return f.Victim != victim }) {
		return ""
	}
	if name, isProgram := programOf(victim); isProgram {
		return name
	}
	return victim
}

// writeShort says that the host has too few CPUs, who waits for one and who has them.
func (d *diagnosis) writeShort(b *strings.Builder) {
	fmt.Fprintf(b, "The CPUs are short: some task waited for one in %.0f %% of the time. No rule is sure who suffers because of whom.\n", 100**d.Host.Stall)
	var who []string
	for _, r := range d.longestWait[:min(few, len(d.longestWait))] {
		who = append(who, fmt.Sprintf("%s %.2f", plain.Line(r.Name), r.Wait))
	}
	if len(who) > 0 {
		fmt.Fprintf(b, "Longest waits for one, in seconds of all threads per second: %s.\n", strings.Join(who, ", "))
	}
	if d.busiest != "" {
		most := "Most CPU time"
		if d.about != "" {
			most += " of all others"
		}
		fmt.Fprintf(b, "%s: %s %.2f.\n", most, plain.Line(d.busiest), d.levels[d.busiest][watch.CPUTime])
	}
}

// writeNothing says that no rule named anybody; beside a host that is short of CPUs, who
// waits and who has them.
func (d *diagnosis) writeNothing(b *strings.Builder) {
	about := d.Target + d.Sensitive
	switch {
	case !d.short() && about == "":
		b.WriteString("\nNothing found.\n")
	case about != "":
		fmt.Fprintf(b, "\nNothing found about %s%s.\n", plain.Line(about), d.idle())
	}
	if d.short() {
		b.WriteString("\n")
		d.writeShort(b)
	}
	if d.Windows < correlatedAfter && d.lacksProbe() {
		fmt.Fprintf(b, "Without the run-queue probe a neighbour on the CPU is named after %d s at the earliest.\n", correlatedAfter)
	}
}

// idle says that a workload got no CPU time meanwhile, and why: with nothing to do, nothing can be
// found about it.
func (d *diagnosis) idle() string {
	of := d.levels[d.about]
	used, known := of[watch.CPUTime]
	if !known || used >= 0.005 {
		return ""
	}
	switch wait, known := of[watch.CPUWait]; {
	case !known:
		return ": it got no CPU time, and whether it waited for any is not known"
	case wait >= 0.005:
		return fmt.Sprintf(": it got no CPU time, and waited for it, %.2f s of all threads per second", wait)
	}
	return ": it used no CPU time meanwhile. Look again while it is asked for something (as by berth lab probe URL)"
}

// writeUnknown says what could not be judged: in a line each or, if it is asked for, why.
func (d *diagnosis) writeUnknown(b *strings.Builder) {
	if len(d.Looked) == 0 {
		b.WriteString("\nNobody used enough CPU time to be judged.\n")
	} else if judged := d.judged(); len(judged) > 0 {
		fmt.Fprintf(b, "\nJudged by all signals: %s.\n", strings.Join(judged, ", "))
	}
	var gaps []string
	for _, gap := range d.Gaps {
		words := make([]string, len(gap.Missing))
		for i, s := range gap.Missing {
			words[i] = s.Words()
		}
		text := strings.ReplaceAll(gap.Resource.String(), "_", " ")
		if d.verbose {
			text = fmt.Sprintf("  %s, without %s\n", text, strings.Join(words, ", "))
		}
		gaps = append(gaps, text)
	}
	switch {
	case len(gaps) == 0:
	case d.verbose:
		fmt.Fprintf(b, "Judged by fewer signals, or not at all:\n%s", strings.Join(gaps, ""))
	default:
		fmt.Fprintf(b, "Judged by fewer signals, or not at all: %s.\n", strings.Join(gaps, ", "))
	}
	if len(d.Missing) > 0 && !d.verbose {
		fmt.Fprintf(b, "Signals that are not there: %d (--verbose lists them)\n", len(d.Missing))
		return
	}
	for i, s := range d.Missing {
		if i == 0 {
			b.WriteString("Signals that are not there:\n")
		}
		fmt.Fprintf(b, "  %s (%s): %s", s.Name, s.Of, plain.Line(s.Reason))
		if s.Remedy != "" {
			fmt.Fprintf(b, "; %s", plain.Line(s.Remedy))
		}
		b.WriteString("\n")
	}
}

// correlatedAfter is the number of windows that guard/detect needs to name a
// neighbour by correlation: ten for that, and three that agree.
const correlatedAfter = 13

func (d *diagnosis) lacksProbe() bool {
	return slices.ContainsFunc(d.Missing, func(s observe.Signal) bool { return s.Name == observe.RunQueue })
}

// judged are the resources about which everything is known.
func (d *diagnosis) judged() []string {
	var words []string
	for _, r := range detect.Resources() {
		if !slices.ContainsFunc(d.Gaps, func(g detect.Gap) bool { return g.Resource == r }) {
			words = append(words, strings.ReplaceAll(r.String(), "_", " "))
		}
	}
	return words
}

// nextStep is a command that a user can type now, and what for.
type nextStep struct {
	To      string `json:"to"`
	Command string `json:"command"`
}

// next is what to do about the first finding, or about who used most CPU time: then it may be what
// matters.
func (d *diagnosis) next(o *observation) nextStep {
	comm, isProgram := programOf(d.antagonist)
	yielding := func(whom string) string {
		if d.guessed {
			whom += ", if it may wait,"
		}
		return whom
	}
	_, inNoGroup := programOf(d.victim)
	switch {
	case len(d.Findings) == 0 && !d.short() || d.antagonist == "" || d.antagonist == detect.Outside:
		return nextStep{"see it live", "berth watch"}
	case isProgram:
		step := nextStep{fmt.Sprintf("have %s run only when nobody else wants the CPUs, start it by", yielding(plain.Line(comm))), "sudo berth run --class BE -- COMMAND"}
		if o.host == nil {
			return step
		}
		if pid, among, all := o.host.Busiest(comm); pid != 0 {
			whom := plain.Line(comm)
			if among < all {
				whom = fmt.Sprintf("%d of the %d processes of %s", among, all, whom)
			}
			return nextStep{fmt.Sprintf("have %s run only when nobody else wants the CPUs", yielding(whom)), fmt.Sprintf("sudo berth adopt --pid %d --class BE", pid)}
		}
		return step
	case (d.victim == "" || inNoGroup || d.victim == d.antagonist) && shownName(&o.header, d.antagonist) != d.antagonist:
		return nextStep{"see it live", "berth watch " + plain.Shell(podOrGroup(&o.header, d.antagonist))} // a pod, or one that has its place
	case d.victim == "" || inNoGroup || d.victim == d.antagonist:
		which := "--cgroup " + plain.Shell(d.antagonist)
		if unit, ok := strings.CutPrefix(d.antagonist, "system.slice/"); ok && path.Ext(unit) == ".service" && path.Base(unit) == unit {
			which = "--unit " + plain.Shell(unit)
		}
		return nextStep{fmt.Sprintf("have %s run only when nobody else wants the CPUs", yielding(plain.Line(d.antagonist))), fmt.Sprintf("sudo berth adopt %s --class BE", which)}
	}
	victim, antagonist := podOrGroup(&o.header, d.victim), podOrGroup(&o.header, d.antagonist)
	return nextStep{
		fmt.Sprintf("slow %s down while it hurts", yielding(plain.Line(antagonist))),
		fmt.Sprintf("sudo berth guard --mode enforce --sensitive %s --best-effort %s", plain.Shell(victim), plain.Shell(antagonist)),
	}
}

// podOrGroup is how a command names a group: by its pod or container, which may be another
// group by then.
func podOrGroup(h *observe.Header, group string) string {
	if g := pods.Parse(group); g.Level == pods.OnePod || g.Level == pods.OneContainer {
		return shownName(h, group)
	}
	return group
}
