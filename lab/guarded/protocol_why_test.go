package guarded

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/lab"
)

// single is what was seen of one onset.
type single struct {
	at       time.Duration // since the run began
	ratio    float64       // the p99 over that of the period alone beside it
	work     float64
	capped   bool
	fresh    bool
	reaction float64   // in seconds; NaN without one
	delay    float64   // the run delay before the first remedy that was judged, by the probe; NaN without one
	after    float64   // and after it
	quota    float64   // when the first was applied, in seconds from the onset on; NaN without one
	cap      float64   // its CPUs
	waits    []float64 // per second run, by the kernel
	others   float64   // share of the shared CPUs that others took in the period
	inForce  bool      // a remedy against who is to blame at the end
}

// placed is an onset of an arm: in which period of which quadruplet it lies, and what was made of it.
type placed struct {
	q      *Quadruple
	n      int
	judged *Onset
}

// onsetsOf are those of an arm.
func (a *ProtocolAnalysis) onsetsOf(arm string) (all []placed) {
	next := 0
	for i := range a.Quadruplets {
		q := &a.Quadruplets[i]
		for n := range q.of.Periods {
			if q.Arm == Placebo || !q.of.second(n) {
				continue
			}
			if next++; q.Arm == arm {
				all = append(all, placed{q, n, &a.Onsets[next-1]})
			}
		}
	}
	return all
}

// singles are what was seen of the onsets of an arm.
func (a *ProtocolAnalysis) singles(arm string, washout time.Duration) (all []single) {
	for _, o := range a.onsetsOf(arm) {
		q, n, judged, p := o.q, o.n, o.judged, o.q.of.Periods[o.n]
		s := single{
			at: q.of.Started.Sub(a.Quadruplets[0].of.Started) + time.Duration(p.Onset*float64(time.Second)), ratio: math.Exp(q.pairs[n/2]),
			work: work(q.fault, q.of, p, washout.Seconds()), capped: strings.Contains(strings.Join(p.Changed, " "), "cpu.cfs_quota_us"),
			fresh: judged.Fresh, inForce: judged.InForce, others: q.of.others(bins(p.From, p.To, len(q.of.Bins))), reaction: math.NaN(), delay: math.NaN(), quota: math.NaN(),
		}
		if judged.Reaction != nil {
			s.reaction = *judged.Reaction
		}
		for _, e := range p.Events {
			if e.Effect != nil && e.Effect.RunDelay != nil && math.IsNaN(s.delay) {
				s.delay, s.after = e.Effect.RunDelay.Before, e.Effect.RunDelay.After
			}
			if e.Outcome == control.Applied && e.Action.Remedy == detect.HeadroomCap && math.IsNaN(s.quota) {
				s.quota, s.cap = e.At, e.Action.Limits.Quota.Seconds()/e.Action.Limits.Period.Seconds()
			}
			for _, v := range e.Evidence {
				if v.Signal == detect.WaitRatio {
					s.waits = append(s.waits, v.Value/(1-v.Value))
				}
			}
		}
		all = append(all, s)
	}
	return all
}

// sorted takes a figure of those singles that have it.
func sorted(all []single, figure func(single) float64) (values []float64) {
	for _, s := range all {
		if v := figure(s); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return values
}

func meanOf(values []float64) (mean float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	return mean
}

// typical is the geometric mean of what the p99 was over that alone.
func typical(all []single) float64 {
	return math.Exp(meanOf(sorted(all, func(s single) float64 { return math.Log(s.ratio) })))
}

func those(all []single, want func(single) bool) []single {
	return slices.DeleteFunc(slices.Clone(all), func(s single) bool { return !want(s) })
}

// fromTo says where ascending values lie.
func fromTo(format string, values []float64) string {
	return fmt.Sprintf(format+" to "+format, values[0], values[len(values)-1])
}

// whySecond is what guard-protocol-2.md says of single onsets and periods of run 2.
func whySecond(a *ProtocolAnalysis, washout time.Duration) (said []string) {
	add := func(format string, values ...any) { said = append(said, fmt.Sprintf(format, values...)) }
	ratio, kept, delay := func(s single) float64 { return s.ratio }, func(s single) float64 { return 100 * s.work }, func(s single) float64 { return s.delay }

	guarded := a.singles(Guarded, washout)
	capped := those(guarded, func(s single) bool { return s.capped })
	idle := those(guarded, func(s single) bool { return !s.capped })
	logs := sorted(idle, func(s single) float64 { return math.Log(s.ratio) })
	add("Of the guard's %d onsets, %d had `cpu.idle` alone: %.2f times", len(guarded), len(idle), math.Exp(meanOf(logs)))
	add("the neighbour kept %.1f %% on average, %.1f %% at least", meanOf(sorted(idle, kept)), sorted(idle, kept)[0])
	slices.SortFunc(capped, func(s, o single) int { return cmp.Compare(s.work, o.work) })
	add("left the neighbour %.0f and %.0f %% was the p99 %.2f and %.2f times", 100*capped[0].work, 100*capped[1].work, capped[0].ratio, capped[1].ratio)
	add("in the other %d %s", len(capped)-2, fromTo("%.1f", sorted(capped[2:], ratio)))
	add("In %d onsets the guard put a quota on top of `cpu.idle`, %s s after the onset", len(capped), fromTo("%.0f", sorted(guarded, func(s single) float64 { return s.quota })))
	add("the neighbour kept %.0f %% on average, %s %%", meanOf(sorted(capped, kept)), fromTo("%.0f", sorted(capped, kept)))

	began := func(from, to time.Duration) []single {
		return those(guarded, func(s single) bool { return s.at >= from && s.at < to })
	}
	add("%s s per second run in the first 80 s", fromTo("%.1f", sorted(began(0, 80*time.Second), delay)))
	add("%s up to 250 s", fromTo("%.1f", sorted(began(80*time.Second, 250*time.Second), delay)))
	add("%s from 350 s on", fromTo("%.0f", sorted(began(250*time.Second, time.Hour), delay)))
	add("(the %d of %d onsets in which one was judged)", len(sorted(guarded, delay)), len(guarded))
	most := slices.MaxFunc(those(guarded, func(s single) bool { return s.delay > 0 }), func(s, o single) int { return cmp.Compare(s.delay, o.delay) })
	add("a remedy seems to help little (%.1f, then %.1f)", most.delay, most.after)
	var waits []float64
	for _, s := range guarded {
		waits = append(waits, s.waits...)
	}
	slices.Sort(waits)
	add("it was %s throughout", fromTo("%.1f", waits))

	reactions := sorted(those(began(0, 230*time.Second), func(s single) bool { return s.fresh }), func(s single) float64 { return 1000 * s.reaction })
	add("Of the %d reactions in the first 230 s %d took %s ms, and one %.0f", len(reactions), len(reactions)-1, fromTo("%.0f", reactions[:len(reactions)-1]), reactions[len(reactions)-1])
	later := sorted(those(began(230*time.Second, time.Hour), func(s single) bool { return s.fresh }), func(s single) float64 { return 1000 * s.reaction })
	add("The %d after took %s", len(later), fromTo("%.0f", later))
	add("it took longer (%.1f s, the first of all", guarded[0].reaction)

	named, others := a.accusations(func(suspect string) bool { return suspect == lab.Neighbour }), a.accusations(func(suspect string) bool { return suspect != lab.Neighbour })
	add("%d windows in %d periods name the neighbour, all up to %.2f s after it had stopped", named.unfounded, named.without, named.last)
	add("%d in %d periods name processes in no group", others.unfounded, others.without)

	blamed := a.singles(Blame, washout)
	none := those(blamed, func(s single) bool { return math.IsNaN(s.reaction) })
	add("in %d of %d such onsets set nobody idle", len(none), len(those(blamed, func(s single) bool { return !s.fresh })))
	add("(%.1f and %.1f times; %s in the others)", none[0].ratio, none[1].ratio, fromTo("%.1f", sorted(those(blamed, func(s single) bool { return s.reaction > 0 }), ratio)))
	return said
}

// whyThird is what guard-protocol-3.md says of single onsets and periods of run 3.
func whyThird(a *ProtocolAnalysis, washout time.Duration) (said []string) {
	add := func(format string, values ...any) { said = append(said, fmt.Sprintf(format, values...)) }
	kept := func(s single) float64 { return 100 * s.work }
	guarded, hand := a.singles(Guarded, washout), a.singles(Hand, washout)
	capped := those(guarded, func(s single) bool { return s.capped })
	idle := those(guarded, func(s single) bool { return !s.capped })
	before, after := sorted(guarded, func(s single) float64 { return s.delay }), sorted(guarded, func(s single) float64 { return s.after })
	add("in %d of the guard's %d onsets: %.2f times (geometric mean), where set by hand in %d %.2f", len(idle), len(guarded), typical(idle), len(hand), typical(hand))
	add("from %s s to %s per second run", fromTo("%.2f", before), fromTo("%.2f", after))
	add("kept %.1f %% on average, %s, by hand %.1f, %s", meanOf(sorted(idle, kept)), fromTo("%.1f", sorted(idle, kept)), meanOf(sorted(hand, kept)), fromTo("%.1f", sorted(hand, kept)))
	add("In %d onset the guard put a cap of %.2f CPUs on top, %.1f s after it: the neighbour kept %.0f %%, the p99 was %.2f times", len(capped), capped[0].cap, capped[0].quota, 100*capped[0].work, capped[0].ratio)

	fresh := those(guarded, func(s single) bool { return s.fresh })
	slices.SortFunc(fresh, func(s, o single) int { return cmp.Compare(s.reaction, o.reaction) })
	soon := those(fresh, func(s single) bool { return s.reaction <= 0.2 })
	rest := fresh[len(soon) : len(fresh)-1]
	last := fresh[len(fresh)-1]
	ms := func(s single) float64 { return 1000 * s.reaction }
	add("%d of the %d took %s ms, %d %s, one %.2f s", len(soon), len(fresh), fromTo("%.0f", sorted(soon, ms)), len(rest), fromTo("%.0f", sorted(rest, ms)), last.reaction)
	add("waited %.2f s per second run before the remedy, the least of all", last.delay)
	if last.delay > before[0] {
		add("it is not the least: %.2f", before[0])
	}
	for i := range a.Quadruplets {
		for n, p := range a.Quadruplets[i].of.Periods {
			var at []float64
			for _, f := range p.Findings {
				if f.Suspect != "" && f.Suspect != lab.Neighbour {
					at = append(at, f.At)
				}
			}
			if len(at) > 0 {
				add("%d %s %s s", len(at), map[bool]string{true: "after an onset,", false: "before one,"}[a.Quadruplets[i].of.second(n)], fromTo("%.2f", at))
			}
		}
	}
	return said
}

// reactions tells how long those took that count for (c): which were within 0.2 s, and each other.
func reactions(all []single) string {
	fresh := those(all, func(s single) bool { return s.fresh })
	ms := func(s single) float64 { return 1000 * s.reaction }
	soon := those(fresh, func(s single) bool { return s.reaction <= 0.2 })
	rest := those(fresh, func(s single) bool { return s.reaction > 0.2 })
	long := strings.Fields(strings.Trim(fmt.Sprintf("%.0f", sorted(rest, ms)), "[]"))
	return fmt.Sprintf("%d of the %d took %s ms, the others %s", len(soon), len(fresh), fromTo("%.0f", sorted(soon, ms)), strings.Join(long, ", "))
}

// whyFourth is what guard-protocol-4.md says of single onsets and periods of run 4.
func whyFourth(a *ProtocolAnalysis, washout time.Duration) (said []string) {
	add := func(format string, values ...any) { said = append(said, fmt.Sprintf(format, values...)) }
	kept := func(s single) float64 { return 100 * s.work }
	ratio := func(s single) float64 { return s.ratio }
	guarded, hand, none := a.singles(Guarded, washout), a.singles(Hand, washout), a.singles(NoGuard, washout)
	beside := func(s single) bool { return s.others > 0.05 }
	alone := func(s single) bool { return !beside(s) }
	built, quiet := those(guarded, beside), those(guarded, alone)
	idle, left := those(quiet, func(s single) bool { return s.inForce }), those(quiet, func(s single) bool { return !s.inForce })
	add("In %d of the guard's %d onsets others took %s %% of the CPUs", len(built), len(guarded), fromTo("%.0f", sorted(built, func(s single) float64 { return 100 * s.others })))
	add("of the other %d, %d had `cpu.idle` at the end: %.2f times (geometric mean), where set by hand in %d %.2f", len(quiet), len(idle), typical(idle), len(hand), typical(hand))
	add("%d had nothing: %s times, and the neighbour kept %s %%", len(left), fromTo("%.2f", sorted(left, ratio)), fromTo("%.1f", sorted(left, kept)))
	add("where nobody acted it kept %s %%", fromTo("%.1f", sorted(those(none, alone), kept)))
	half := 250 * time.Second
	early, harmless := those(none, func(s single) bool { return s.at < half }), those(none, func(s single) bool { return s.at >= half })
	add("unguarded, the p99 was %s times in the %d up to 250 s, and %s in the %d after", fromTo("%.0f", sorted(early, ratio)), len(early), fromTo("%.1f", sorted(harmless, ratio)), len(harmless))
	capped := those(guarded, func(s single) bool { return !math.IsNaN(s.quota) })
	add("a cap in %d of %d onsets", len(capped), len(guarded))

	calm := slices.Concat(idle, those(hand, alone))
	from := func(from, to time.Duration) []float64 {
		return sorted(those(calm, func(s single) bool { return s.at >= from && s.at < to }), kept)
	}
	before, after, late := from(0, 165*time.Second), from(200*time.Second, 375*time.Second), from(375*time.Second, time.Hour)
	add("%s %% in the %d before the build, %s in the %d from its end up to 375 s, %s in the %d from then on", fromTo("%.0f", before), len(before), fromTo("%.0f", after), len(after), fromTo("%.0f", late), len(late))

	said = append(said, reactions(guarded))

	outside, named := a.accusations(func(suspect string) bool { return suspect == detect.Outside }), a.accusations(func(suspect string) bool { return suspect == lab.Neighbour })
	add("%d windows in %d periods name processes in no group, which took %s %% of the CPUs in these", outside.windows, outside.periods, fromTo("%.0f", outside.others))
	add("%d where nothing was done names the neighbour, %.2f s after it had stopped", named.unfounded, named.last)
	return said
}

// whyFifth is what guard-protocol-5.md says of single onsets and periods of run 5, whySixth what guard-protocol.md says of run 6.
func whyFifth(a *ProtocolAnalysis, washout time.Duration) (said []string) {
	add := func(format string, values ...any) { said = append(said, fmt.Sprintf(format, values...)) }
	kept := func(s single) float64 { return 100 * s.work }
	ratio := func(s single) float64 { return s.ratio }
	guarded, hand, none := a.singles(Guarded, washout), a.singles(Hand, washout), a.singles(NoGuard, washout)
	capped := those(guarded, func(s single) bool { return !math.IsNaN(s.quota) })
	add("a cap in %d of %d onsets", len(capped), len(guarded))
	add("%.2f times (geometric mean of the onsets), where set by hand in %d %.2f", typical(guarded), len(hand), typical(hand))
	add("Single onsets had %s times", fromTo("%.2f", sorted(guarded, ratio)))
	add("the neighbour kept %s %%, by hand %s; where nobody acted it kept %s", fromTo("%.1f", sorted(guarded, kept)), fromTo("%.1f", sorted(hand, kept)), fromTo("%.1f", sorted(none, kept)))

	said = append(said, reactions(guarded))

	outside, named := a.accusations(func(suspect string) bool { return suspect == detect.Outside }), a.accusations(func(suspect string) bool { return suspect == lab.Neighbour })
	add("%d windows in %d periods name processes in no group, which took %s %% of the CPUs in these", outside.windows, outside.periods, fromTo("%.0f", outside.others))
	if named.unfounded == 0 {
		add("Where nothing was done, no window names the neighbour")
	}
	return said
}

func whySixth(a *ProtocolAnalysis, washout time.Duration) []string {
	stolen := those(a.singles(Guarded, washout), func(s single) bool { return s.ratio > 4 })
	return append(whyFifth(a, washout), fmt.Sprintf("%d of the guard's onsets had more than 4 times", len(stolen)))
}

// whySixteen is what guard-sixteen.md says of single onsets of its runs.
func whySixteen(a *ProtocolAnalysis, washout time.Duration) (said []string) {
	add := func(format string, values ...any) { said = append(said, fmt.Sprintf(format, values...)) }
	kept := func(s single) float64 { return 100 * s.work }
	ratio := func(s single) float64 { return s.ratio }
	guarded, hand, none := a.singles(Guarded, washout), a.singles(Hand, washout), a.singles(NoGuard, washout)
	idle, left := those(guarded, func(s single) bool { return s.inForce }), those(guarded, func(s single) bool { return !s.inForce })
	add("With `cpu.idle` at the end, in %d of %d onsets, the p99 was %s times, where set by hand in %d %s", len(idle), len(guarded), fromTo("%.2f", sorted(idle, ratio)), len(hand), fromTo("%.2f", sorted(hand, ratio)))
	add("without, %s, where nobody acted %s", fromTo("%.0f", sorted(left, ratio)), fromTo("%.0f", sorted(none, ratio)))
	add("the neighbour kept %s %%, by hand %s, where nobody acted %s", fromTo("%.1f", sorted(idle, kept)), fromTo("%.1f", sorted(hand, kept)), fromTo("%.1f", sorted(none, kept)))
	named := a.accusations(func(suspect string) bool { return suspect == lab.Neighbour })
	add("%d windows in %d periods name the neighbour", named.windows, named.periods)
	innocent := 0
	for _, o := range a.Onsets {
		if o.Innocent > 0 {
			innocent++
		}
	}
	if innocent == 0 {
		add("Nobody acted against who is innocent")
	}
	return said
}

// accused is how often somebody was accused.
type accused struct {
	windows, periods   int
	unfounded, without int       // of these, where nothing was done
	others             []float64 // percent of the CPUs that others took in these periods, ascending
	last               float64   // the last of these windows, since the period began
}

// accusations counts windows that accuse some suspects.
func (a *ProtocolAnalysis) accusations(of func(suspect string) bool) (all accused) {
	for i := range a.Quadruplets {
		q := &a.Quadruplets[i]
		for n, p := range q.of.Periods {
			here, at := 0, 0.0
			for _, f := range p.Findings {
				if f.Suspect != "" && of(f.Suspect) {
					here, at = here+1, f.At
				}
			}
			if here == 0 {
				continue
			}
			all.windows, all.periods, all.others = all.windows+here, all.periods+1, append(all.others, 100*q.of.others(bins(p.From, p.To, len(q.of.Bins))))
			if q.Arm == Placebo || !q.of.second(n) {
				all.unfounded, all.without, all.last = all.unfounded+here, all.without+1, max(all.last, at)
			}
		}
	}
	slices.Sort(all.others)
	return all
}

// whyTruths is what guard-truths.md says of single onsets.
func whyTruths(a *ProtocolAnalysis) (said []string) {
	add := func(format string, values ...any) { said = append(said, fmt.Sprintf(format, values...)) }
	onsets, hit := map[string]int{}, map[string]int{}
	var first, second, one int
	var before, after, use, reactions []float64
	for _, o := range a.onsetsOf(Guarded) {
		q, judged, p := o.q, o.judged, o.q.of.Periods[o.n]
		onsets[q.fault.Name]++
		if judged.Innocent > 0 {
			hit[q.fault.Name]++
		}
		if judged.Fresh && !slices.Contains([]string{Outside, Foreign, Bursty}, q.fault.Name) {
			reaction := math.Inf(1)
			if judged.Reaction != nil {
				reaction = *judged.Reaction
			}
			reactions = append(reactions, reaction)
		}
		groups := map[string]bool{}
		for _, e := range p.Events {
			bystander := e.Action != nil && e.Action.Group == lab.Bystander
			switch {
			case e.Outcome == control.Applied:
				if q.fault.Name == Innocent && bystander {
					if len(groups) > 0 {
						second++
					} else {
						first++
					}
				}
				groups[e.Action.Group] = true
			case e.Outcome == control.Kept && q.fault.Name == Innocent && bystander:
				before, after = append(before, e.Effect.RunDelay.Before), append(after, e.Effect.RunDelay.After)
			}
		}
		if q.fault.Name == Two && len(groups) == 1 {
			one++
		}
		if q.fault.Name == Innocent {
			use = append(use, p.Use.Bystander/p.Use.Seconds)
		}
	}
	slices.Sort(before)
	slices.Sort(after)
	slices.Sort(use)
	slices.Sort(reactions)
	add("in %d of %d onsets of `innocent` the guard set the bystander idle, in %d of them after the neighbour, in %d before", hit[Innocent], onsets[Innocent], second, first)
	add("The bystander used %s CPUs", fromTo("%.2f", use))
	if len(before) > 0 {
		add("waited %s s per second for others before, and %s after", fromTo("%.2f", before), fromTo("%.2f", after))
	}
	add("in %d of %d onsets of `two` only one of the two hogs was acted on", one, onsets[Two])
	within := 0
	for _, r := range reactions {
		if r <= 0.2 {
			within++
		}
	}
	add("%d of %d onsets with a group to blame had a remedy within 0.2 s, half within %.2f", within, len(reactions), reactions[len(reactions)/2])
	return said
}
