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
}

// singles are the onsets of an arm.
func (a *ProtocolAnalysis) singles(arm string, washout time.Duration) (all []single) {
	next := 0
	for i := range a.Quadruplets {
		q := &a.Quadruplets[i]
		for n, p := range q.of.Periods {
			if q.Arm == Placebo || !q.of.second(n) {
				continue
			}
			judged := a.Onsets[next]
			if next++; q.Arm != arm {
				continue
			}
			s := single{
				at: q.of.Started.Sub(a.Quadruplets[0].of.Started) + time.Duration(p.Onset*float64(time.Second)), ratio: math.Exp(q.pairs[n/2]),
				work: work(q.fault, q.of, p, washout.Seconds()), capped: strings.Contains(strings.Join(p.Changed, " "), "cpu.cfs_quota_us"),
				fresh: judged.Fresh, reaction: math.NaN(), delay: math.NaN(), quota: math.NaN(),
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

	var windows, periods [2]int // that name the neighbour, and others
	last := 0.0
	for i := range a.Quadruplets {
		q := &a.Quadruplets[i]
		for n, p := range q.of.Periods {
			if q.Arm != Placebo && q.of.second(n) {
				continue
			}
			var here [2]int
			for _, f := range p.Findings {
				switch f.Suspect {
				case "":
				case lab.Neighbour:
					here[0], last = here[0]+1, max(last, f.At)
				default:
					here[1]++
				}
			}
			for who, n := range here {
				if windows[who] += n; n > 0 {
					periods[who]++
				}
			}
		}
	}
	add("%d windows in %d periods name the neighbour, all up to %.2f s after it had stopped", windows[0], periods[0], last)
	add("%d in %d periods name processes in no group", windows[1], periods[1])

	blamed := a.singles(Blame, washout)
	none := those(blamed, func(s single) bool { return math.IsNaN(s.reaction) })
	add("in %d of %d such onsets set nobody idle", len(none), len(those(blamed, func(s single) bool { return !s.fresh })))
	add("(%.1f and %.1f times; %s in the others)", none[0].ratio, none[1].ratio, fromTo("%.1f", sorted(those(blamed, func(s single) bool { return s.reaction > 0 }), ratio)))
	return said
}

// whyThird is what guard-protocol.md says of single onsets and periods of run 3.
func whyThird(a *ProtocolAnalysis, washout time.Duration) (said []string) {
	add := func(format string, values ...any) { said = append(said, fmt.Sprintf(format, values...)) }
	kept := func(s single) float64 { return 100 * s.work }
	typical := func(all []single) float64 {
		return math.Exp(meanOf(sorted(all, func(s single) float64 { return math.Log(s.ratio) })))
	}
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
