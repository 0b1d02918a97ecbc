package main

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// notable is the CPU time per second from which a group is looked at, in CPUs.
const notable = 0.02

// diagnosis is the output of berth diagnose; docs/diagnose.md documents it.
type diagnosis struct {
	// Target is the group asked about, "" for all.
	Target  string  `json:"target,omitempty"`
	Seconds float64 `json:"seconds"`
	// Windows is how often the detector judged.
	Windows int `json:"windows"`
	// Looked are the groups that were looked at, Others how many more could be
	// suspects.
	Looked   []string         `json:"looked"`
	Others   int              `json:"others"`
	Findings []foundRow       `json:"findings"`
	Gaps     []detect.Gap     `json:"gaps,omitempty"`
	Missing  []observe.Signal `json:"missingSignals,omitempty"`
	overview string
}

// foundRow is a finding at its surest, and in how many windows it was found.
type foundRow struct {
	detect.Finding
	Found int `json:"found"`
}

// diagnose judges ticks about a target, or about all groups that use CPU time. It
// depends on nothing else.
func diagnose(h *observe.Header, ticks [][]watch.Sample, target string) (*diagnosis, error) {
	if len(ticks) < 2 {
		return nil, errors.New("diagnose: fewer than two readings, nothing to compare")
	}
	first, last := ticks[0][0].Time, ticks[len(ticks)-1][0].Time
	d := &diagnosis{Target: shownName(h, target), Seconds: (last - first).Seconds(), Looked: []string{}, Findings: []foundRow{}}
	window := max(watch.Second, (last-first)/watch.Time(len(ticks)-1))
	detector, err := detect.New(detect.Config{Machine: h.Machine, Window: window})
	if err != nil {
		return nil, err
	}
	looked := d.track(detector, h, ticks, target)
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
	d.rank()
	d.Gaps = commonGaps(detector, looked)
	d.overview = d.figures(h, ticks, target)
	for i := range d.Findings {
		d.Findings[i].Finding = named(d.Findings[i].Finding, func(group string) string { return shownName(h, group) })
	}
	return d, nil
}

// track adds the groups in the samples to the detector. Groups above and below
// the target are no suspects.
func (d *diagnosis) track(detector *detect.Detector, h *observe.Header, ticks [][]watch.Sample, target string) (looked []string) {
	uses := meanUse(ticks)
	for _, group := range slices.Sorted(maps.Keys(uses)) {
		w := detect.Workload{Group: group, Sensitive: group == target || target == "" && uses[group] >= notable}
		for _, g := range h.Groups {
			if g.Path == group {
				w.CPUs = g.CPUs
			}
		}
		if group != target && target != "" && (kernel.Within(group, target) || kernel.Within(target, group)) {
			continue
		}
		detector.Track(w)
		if w.Sensitive {
			looked = append(looked, group)
			d.Looked = append(d.Looked, shownName(h, group))
		} else {
			d.Others++
		}
	}
	return looked
}

// meanUse is the CPU time per second of each group, while it was seen.
func meanUse(ticks [][]watch.Sample) map[string]float64 {
	first, uses := map[string]watch.Sample{}, map[string]float64{}
	for _, tick := range ticks {
		for _, s := range tick {
			if s.Quantity != watch.CPUTime || s.Subject.Scope != watch.Group || s.Subject.Part != (watch.Part{}) {
				continue
			}
			began, ok := first[s.Subject.Name]
			if !ok {
				first[s.Subject.Name], uses[s.Subject.Name] = s, 0
			} else if s.Time > began.Time {
				uses[s.Subject.Name] = (s.Value - began.Value) / (s.Time - began.Time).Seconds()
			}
		}
	}
	return uses
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

// rank puts the worst first: by how often it was found, and how sure it is.
func (d *diagnosis) rank() {
	slices.SortStableFunc(d.Findings, func(a, b foundRow) int {
		return cmp.Compare(float64(b.Found)*b.Confidence, float64(a.Found)*a.Confidence)
	})
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

// figures is a table of the target and its suspects, or of all groups, from the third tick on (the first of those in focus) to the last.
func (d *diagnosis) figures(h *observe.Header, ticks [][]watch.Sample, target string) string {
	var shown []string
	if target != "" {
		shown = []string{target}
		for _, f := range d.Findings {
			shown = append(shown, f.Suspect)
		}
	}
	table := newWatchTable(h, shown)
	table.add(ticks[min(2, len(ticks)-2)])
	table.add(ticks[len(ticks)-1])
	return table.text("cpu", 10)
}
