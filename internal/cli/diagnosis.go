package cli

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
	"berth.dev/berth/watch/proc"
)

// notable is the CPU time per second from which a group is looked at, in CPUs.
const notable = 0.02

// diagnosis is the output of berth diagnose; docs/diagnose.md documents it.
type diagnosis struct {
	// Target is the workload asked about, "" for all. Sensitive is the one that matters.
	Target    string  `json:"target,omitempty"`
	Sensitive string  `json:"sensitive,omitempty"`
	Seconds   float64 `json:"seconds"`
	// Windows is how often the detector judged.
	Windows int `json:"windows"`
	// Looked are the workloads that were looked at, Others how many more could be
	// suspects.
	Looked []string `json:"looked"`
	Others int      `json:"others"`
	// Pods are those of them, and of whom they accuse, that are containers of pods.
	Pods []pods.Name `json:"pods,omitempty"`
	// Answer is a sentence that names the workload that takes the CPUs and the one that waits for
	// one; "" if that is not the matter, or not known.
	Answer string  `json:"answer,omitempty"`
	Host   hostRow `json:"host"`
	// Programs are the processes in no group of their own that used CPU time.
	Programs []programRow     `json:"programs,omitempty"`
	Findings []foundRow       `json:"findings"`
	Gaps     []detect.Gap     `json:"gaps,omitempty"`
	Missing  []observe.Signal `json:"missingSignals,omitempty"`
	Next     nextStep         `json:"next"`

	overview    string
	verbose     bool
	about       string     // Target or Sensitive, by its group
	programs    int        // that were looked at
	victim      string     // by its group, as the first finding has it
	antagonist  string     // likewise, or who may have taken the CPUs
	guessed     bool       // no rule accuses the antagonist: it used most CPU time
	busiest     string     // who used most CPU time, but for who is asked about
	worst       programRow // who is worst off, where neither a user nor a rule says who suffers
	levels      map[string]map[watch.Quantity]float64
	cpus        map[string]cpuset.Set // that groups may use
	longestWait []programRow
}

// hostRow is what was had of the CPUs of the host.
type hostRow struct {
	CPUs int     `json:"cpus"`
	Used float64 `json:"used"`
	// Stall is the part of the time in which some task waited for a CPU (PSI); nil if
	// the host does not tell.
	Stall *float64 `json:"stall,omitempty"`
	// InNoGroup is the CPU time per second of processes in no group of their own.
	InNoGroup float64 `json:"inNoGroup,omitempty"`
}

// programRow is the CPU time of a program, and for how long its threads waited for a CPU,
// both per second.
type programRow struct {
	Name string  `json:"name"`
	Used float64 `json:"used"`
	Wait float64 `json:"wait"`

	workload string
}

// foundRow is a finding at its surest, and in how many windows it was found.
type foundRow struct {
	detect.Finding
	Found int `json:"found"`
	// Behind are those that had the CPU for most of the time in which the victim waited for
	// it, itself among them; empty without the run-queue probe.
	Behind []behindRow `json:"behind,omitempty"`
}

// behindRow is who had the CPU for a share of a wait.
type behindRow struct {
	Name  string  `json:"name"`
	Share float64 `json:"share"`
}

// diagnose judges ticks about a target, or about all workloads that use CPU time. It
// depends on nothing else.
func diagnose(h *observe.Header, ticks [][]watch.Sample, target, sensitive string) (*diagnosis, error) {
	if len(ticks) < 2 {
		return nil, errors.New("diagnose: fewer than two readings, nothing to compare")
	}
	first, last := ticks[0][0].Time, ticks[len(ticks)-1][0].Time
	d := &diagnosis{
		Target: shownName(h, target), Sensitive: shownName(h, sensitive), Seconds: (last - first).Seconds(),
		Looked: []string{}, Findings: []foundRow{}, levels: meanLevels(inFocus(ticks)), about: target + sensitive,
		cpus: map[string]cpuset.Set{},
	}
	for _, g := range h.Groups {
		d.cpus[g.Path] = g.CPUs
	}
	d.describe(h, ticks[0])
	window := max(watch.Second, (last-first)/watch.Time(len(ticks)-1))
	detector, err := detect.New(detect.Config{Machine: h.Machine, Window: window})
	if err != nil {
		return nil, err
	}
	looked := d.track(detector, h, target, sensitive)
	due := first
	for _, tick := range ticks {
		detector.Observe(tick)
		// Ticks are never exactly on time.
		if now := tick[0].Time; now >= due+window-window/10 {
			due = now
			d.Windows++
			d.take(detector.Judge(now))
		}
	}
	d.rank(sensitive)
	d.Gaps = commonGaps(detector, looked)
	d.overview = d.figures(h, ticks, target)
	if len(d.Findings) > 0 {
		d.victim, d.antagonist = d.Findings[0].Victim, d.Findings[0].Suspect
	}
	for i := range d.Findings {
		if f := &d.Findings[i]; f.Resource == detect.CPU || f.Resource == detect.OwnLoad {
			f.Behind = behind(ticks, f.Victim)
		}
	}
	d.Pods = podsAmong(h, looked, d.Findings)
	d.blame()
	d.Answer = d.answer(h)
	for i := range d.Findings {
		who := slices.DeleteFunc(d.Findings[i].Behind, func(b behindRow) bool { return b.Share < 0.05 })
		d.Findings[i].Behind = who[:min(few, len(who))]
		for j := range d.Findings[i].Behind {
			d.Findings[i].Behind[j].Name = shownName(h, d.Findings[i].Behind[j].Name)
		}
		d.Findings[i].Finding = named(d.Findings[i].Finding, func(group string) string { return shownName(h, group) })
	}
	return d, nil
}

// blame sets who may have taken the CPUs where the first finding accuses nobody: who had them while
// its victim waited or, if no rule says because of whom anybody suffers, who used most CPU time.
func (d *diagnosis) blame() {
	d.busiest = d.mostUsed(d.about, cpuset.Set{})
	switch {
	case len(d.Findings) == 0:
		victim := d.about
		if victim == "" {
			d.worst = d.worstOff()
			victim = d.worst.workload
		}
		d.antagonist, d.guessed = d.mostUsed(victim, d.cpus[victim]), true
	case d.unaccused():
		d.worst = d.worstOff()
		d.antagonist, d.guessed = d.mostUsed("", d.cpus[d.victim]), true
	case d.antagonist == "":
		d.antagonist = d.mostBehind()
	}
}

// mostBehind is the group that had the CPU for most of the time in which the victim of the first finding
// waited for it, unless processes in no group, which are one suspect for the guard, had it for longer together:
// then it is the program of theirs that had most of that. "" if it is nobody with a name.
func (d *diagnosis) mostBehind() string {
	group, program, share, outside := "", "", 0.0, 0.0
	for _, b := range d.Findings[0].Behind { // by share
		comm, isProgram := programOf(b.Name)
		switch {
		case b.Name == d.victim:
		case detect.InNoGroup(b.Name):
			outside += b.Share
			if program == "" && isProgram && comm != "" && comm != proc.KernelThreads && comm != proc.OtherPrograms {
				program = b.Name
			}
		case group == "":
			group, share = b.Name, b.Share
		}
	}
	if share >= outside {
		return group
	}
	return program
}

// podsAmong are the containers of pods among some groups, and among those that findings
// accuse, by their groups.
func podsAmong(h *observe.Header, groups []string, findings []foundRow) (all []pods.Name) {
	for _, g := range h.Groups {
		accused := func(f foundRow) bool { return f.Suspect == g.Path }
		within := func(group string) bool { return kernel.Within(g.Path, group) }
		if g.Pod != nil && (slices.ContainsFunc(groups, within) || slices.ContainsFunc(findings, accused)) {
			all = append(all, *g.Pod)
		}
	}
	return all
}

// describe sets what is known of the host and of the processes in no group of their own.
func (d *diagnosis) describe(h *observe.Header, tick []watch.Sample) {
	host := d.levels[""]
	d.Host.Used = host[watch.CPUTime]
	if stall, ok := host[watch.CPUSome]; ok {
		d.Host.Stall = &stall
	}
	if h.Machine != nil {
		d.Host.CPUs = h.Machine.Online.Len()
	} else {
		for _, s := range tick {
			if s.Subject.Scope == watch.Host && s.Subject.Part.Kind == watch.CPU && s.Quantity == watch.CPUTime {
				d.Host.CPUs++
			}
		}
	}
	for name, of := range d.levels {
		comm, ok := programOf(name)
		switch {
		case of[watch.CPUWait] >= notable && ok && comm != "":
			d.longestWait = append(d.longestWait, programRow{name, of[watch.CPUTime], of[watch.CPUWait], name})
			fallthrough
		case ok && comm != "":
			d.Programs = append(d.Programs, programRow{comm, of[watch.CPUTime], of[watch.CPUWait], name})
		case ok:
			d.Host.InNoGroup = of[watch.CPUTime]
		case name != "" && of[watch.CPUWait] >= notable:
			d.longestWait = append(d.longestWait, programRow{shownName(h, name), of[watch.CPUTime], of[watch.CPUWait], name})
		}
	}
	by := func(key func(programRow) float64) func(a, b programRow) int {
		return func(a, b programRow) int { return cmp.Or(cmp.Compare(key(b), key(a)), cmp.Compare(a.Name, b.Name)) }
	}
	slices.SortFunc(d.Programs, by(func(r programRow) float64 { return r.Used }))
	slices.SortFunc(d.longestWait, by(func(r programRow) float64 { return r.Wait }))
}

// behind is who had the CPU while a workload waited for it, by share.
func behind(ticks [][]watch.Sample, victim string) (who []behindRow) {
	first, last, whole := map[string]float64{}, map[string]float64{}, 0.0
	for _, tick := range ticks {
		for _, s := range tick {
			if s.Quantity != watch.QueuedBy || detect.Name(s.Subject) != victim {
				continue
			}
			if _, told := first[s.By]; !told || s.Value < last[s.By] { // it was forgotten meanwhile
				first[s.By] = s.Value
			}
			last[s.By] = s.Value
		}
	}
	for name, v := range last {
		whole += v - first[name]
		who = append(who, behindRow{name, v - first[name]})
	}
	if whole == 0 {
		return nil
	}
	slices.SortFunc(who, func(a, b behindRow) int { return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Name, b.Name)) })
	for i := range who {
		who[i].Share /= whole
	}
	return who
}

// track adds the workloads in the samples to the detector. Groups above and below the
// target are no suspects.
func (d *diagnosis) track(detector *detect.Detector, h *observe.Header, target, sensitive string) (looked []string) {
	for _, name := range slices.Sorted(maps.Keys(d.levels)) {
		use, uses := d.levels[name][watch.CPUTime]
		comm, isProgram := programOf(name)
		if name == "" || !uses || isProgram && comm == "" {
			continue
		}
		w := detect.Workload{Group: name, CPUs: d.cpus[name], Sensitive: name == target || name == sensitive || target == "" && use >= notable}
		if comm == proc.KernelThreads || comm == proc.OtherPrograms {
			w.Sensitive = false
		}
		if name != target && target != "" && (kernel.Within(name, target) || kernel.Within(target, name)) {
			continue
		}
		detector.Track(w)
		if !w.Sensitive {
			d.Others++
			continue
		}
		looked = append(looked, name)
		d.Looked = append(d.Looked, shownName(h, name))
		if isProgram {
			d.programs++
		}
	}
	return looked
}

// inFocus are the ticks from the third on, if there are as many: the first of those in focus.
func inFocus(ticks [][]watch.Sample) [][]watch.Sample { return ticks[min(2, len(ticks)-2):] }

// meanLevels is by how much the counters of each workload, and of the host (""), grew per
// second: those of groups while they were seen, those of programs, which may be of many
// short processes, in all the time.
func meanLevels(ticks [][]watch.Sample) map[string]map[watch.Quantity]float64 {
	type key struct {
		name     string
		quantity watch.Quantity
	}
	first, levels := map[key]watch.Sample{}, map[string]map[watch.Quantity]float64{}
	for _, tick := range ticks {
		for _, s := range tick {
			switch s.Quantity {
			case watch.CPUTime, watch.CPUWait, watch.CPUSome:
			default:
				continue
			}
			if s.Subject.Part != (watch.Part{}) {
				continue
			}
			at := key{detect.Name(s.Subject), s.Quantity}
			if levels[at.name] == nil {
				levels[at.name] = map[watch.Quantity]float64{}
			}
			if began, ok := first[at]; !ok {
				if levels[at.name][at.quantity] = 0; s.Subject.Scope == watch.Process {
					s.Time = ticks[0][0].Time
				}
				first[at] = s
			} else if s.Time > began.Time {
				levels[at.name][at.quantity] = (s.Value - began.Value) / (s.Time - began.Time).Seconds()
			}
		}
	}
	return levels
}

// take adds the findings of a window.
func (d *diagnosis) take(findings []detect.Finding) {
	for _, f := range findings {
		i := slices.IndexFunc(d.Findings, func(r foundRow) bool {
			return r.Victim == f.Victim && r.Resource == f.Resource && r.Suspect == f.Suspect
		})
		if i < 0 {
			d.Findings = append(d.Findings, foundRow{Finding: f, Found: 1})
			continue
		}
		row := &d.Findings[i]
		row.Found++
		if f.Confidence >= row.Confidence {
			row.Finding = f
		}
	}
}

// rank puts first who matters. Without that being known the order is by harm; but whoever
// is accused by one that wants less CPU time comes after it: it waits because it takes all
// that it can get. So does whoever wants more of it than the host has.
func (d *diagnosis) rank(sensitive string) {
	wants := func(name string) float64 { return d.levels[name][watch.CPUTime] + d.levels[name][watch.CPUWait] }
	accused := map[string]bool{}
	for _, f := range d.Findings {
		if f.Suspect != "" && f.Suspect != sensitive && (f.Victim == sensitive || wants(f.Victim) < wants(f.Suspect)) {
			accused[f.Suspect] = true
		}
	}
	class := func(f foundRow) int {
		switch {
		case f.Victim == sensitive:
			return 0
		case !accused[f.Victim] && (f.Resource != detect.CPU || wants(f.Victim) <= float64(max(d.Host.CPUs, 1))):
			return 1
		}
		return 2
	}
	slices.SortStableFunc(d.Findings, func(a, b foundRow) int {
		return cmp.Or(cmp.Compare(class(a), class(b)), cmp.Compare(d.harm(b), d.harm(a)))
	})
}

// harm is how far the worst signal of the victim is beyond its threshold, times how sure that
// is and how often it was found.
func (d *diagnosis) harm(f foundRow) float64 {
	worst := 0.0
	for _, e := range f.Evidence {
		if detect.Name(e.Subject) == f.Victim && e.Threshold > 0 && e.Value >= e.Threshold {
			worst = max(worst, e.Value/e.Threshold)
		}
	}
	return max(worst, 1) * f.Confidence * float64(f.Found) / float64(d.Windows)
}

// commonGaps are the resources about which too little is known of every group.
func commonGaps(detector *detect.Detector, groups []string) []detect.Gap {
	var common []detect.Gap
	for i, group := range groups {
		gaps := detector.Gaps(group)
		if i == 0 {
			common = gaps
			continue
		}
		common = slices.DeleteFunc(common, func(g detect.Gap) bool {
			return !slices.ContainsFunc(gaps, func(o detect.Gap) bool { return o.Resource == g.Resource })
		})
	}
	return common
}

// missing notes which signals are not there.
func (d *diagnosis) missing(signals []observe.Signal) {
	for _, s := range signals {
		if !s.Available {
			d.Missing = append(d.Missing, s)
		}
	}
}

// named is a finding with the names of workloads in place of their groups.
func named(f detect.Finding, name func(group string) string) detect.Finding {
	f.Victim, f.Suspect = name(f.Victim), name(f.Suspect)
	f.Evidence = slices.Clone(f.Evidence)
	for i := range f.Evidence {
		f.Evidence[i].Subject.Name = name(f.Evidence[i].Subject.Name)
	}
	return f
}

// figures is a table of the target and its suspects, or of all groups, over the same time as levels.
func (d *diagnosis) figures(h *observe.Header, ticks [][]watch.Sample, target string) string {
	var shown []string
	if target != "" {
		shown = []string{target}
		for _, f := range d.Findings {
			shown = append(shown, f.Suspect)
		}
	}
	table := newWatchTable(h, shown)
	ticks = inFocus(ticks)
	table.add(append(slices.Clone(ticks[0]), laterPrograms(ticks)...))
	table.add(ticks[len(ticks)-1])
	table.always = d.Sensitive
	return table.text("cpu", 10)
}

// laterPrograms are the first samples of programs that the first tick does not tell of, as of
// its time: they had used as much then.
func laterPrograms(ticks [][]watch.Sample) (first []watch.Sample) {
	type key struct {
		watch.Subject
		watch.Quantity
	}
	known := map[key]bool{}
	for i, tick := range ticks {
		for _, s := range tick {
			at := key{s.Subject, s.Quantity}
			if s.Time = ticks[0][0].Time; i > 0 && s.Subject.Scope == watch.Process && !known[at] {
				first = append(first, s)
			}
			known[at] = true
		}
	}
	return first
}
