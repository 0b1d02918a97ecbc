package control

import (
	"math"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/evidence"
)

const (
	agreeing    = 3    // windows before a step over which the run delay is taken: as many make a finding
	mostWindows = 11   // windows over which the run delay is known
	leastPart   = 0.05 // of the run delay, and of that behind others, for which a suspect may be judged by the probe
	quarter     = 0.25 // of the suspect's part, at least, by which the run delay has to fall
	half        = 0.5  // of the suspect's part before, at least, that a trial has to bring back to go badly
	few         = 0.2  // of the suspect's part before, at most, is as good as none
	mostOutside = 0.5  // of the run delay that is left, from which processes in no group are reported
)

// delayed is the run delay of a victim, in seconds per second that it runs.
type delayed struct {
	total  float64 // with the probe behind others, else all of it; 0 is unknown
	part   float64 // of that, the suspect's
	probed bool    // by the run-queue probe; else by the suspect's share of the CPU time that others use
	run    float64 // the CPU time that it is of, per second
}

// delayBefore is the run delay before a step against a suspect.
func (l *Loop) delayBefore(at *escalation, suspect string, windows int) delayed {
	r, ok := l.runDelay(at, suspect, windows)
	switch {
	case ok && r.Suspect > 0 && r.Suspect >= leastPart*max(r.Others, r.Wait):
		return delayed{total: r.Others, part: r.Suspect, probed: true}
	case ok && r.UseShare > 0:
		return delayed{total: r.Wait, part: r.UseShare * r.Wait}
	}
	return delayed{}
}

// delayNow is that of the last windows, measured as it was before a step.
func (l *Loop) delayNow(at *escalation, s *step, windows int) (d delayed, r detect.RunDelay, known bool) {
	r, ok := l.runDelay(at, s.action.Suspect, windows)
	d = delayed{total: r.Wait, part: r.UseShare * r.Wait, run: r.Run}
	if math.IsNaN(r.UseShare) {
		d.part = 0 // its use is not read any more; the whole tells
	}
	if s.delay.probed {
		d = delayed{total: r.Others, part: r.Suspect, probed: true, run: r.Run}
	}
	return d, r, ok && d.total >= 0 && d.part >= 0
}

func (l *Loop) runDelay(at *escalation, suspect string, windows int) (detect.RunDelay, bool) {
	if at.resource != detect.CPU || suspect == "" || l.in.Symptoms == nil || l.late {
		return detect.RunDelay{}, false
	}
	return l.in.Symptoms.RunDelay(at.victim, suspect, windows)
}

// less reports whether the run delay has fallen by a quarter of the suspect's part before.
func (d *delayed) less(before *delayed) bool { return d.total <= before.total-quarter*before.part }

// returned reports whether a trial has brought back at least half of the suspect's part
// before the step, and half of that is not what others have less.
func (d *delayed) returned(held, before *delayed) bool {
	if !before.probed {
		return d.total >= worse*held.total
	}
	return d.part >= half*before.part && d.total >= held.total+half*(d.part-held.part)
}

// freed reports whether the victim waits for the suspect of the last step no more: what
// is left is due to others.
func (l *Loop) freed(at *escalation) bool {
	if len(at.steps) == 0 || at.steps[len(at.steps)-1].delay.total == 0 {
		return false
	}
	last := &at.steps[len(at.steps)-1]
	since := int(l.now.Sub(last.at.Add(last.remedy.Delay)) / l.window)
	now, _, known := l.delayNow(at, last, min(max(since, 1), mostWindows))
	if !last.delay.probed {
		return known && now.total <= last.delay.total-(1-few)*last.delay.part
	}
	return known && now.part <= few*last.delay.part
}

// What the noise of the run delay is taken for until it is known, and how much that weighs.
const (
	guessedNoise = 0.1
	guessed      = 3 // windows
	lasting      = 500 * time.Millisecond
	least        = 0.05 // of the suspect's part before, is as little as none
)

// tally is the run delay in the windows since a change. Its noise is about as large by
// proportion whatever its level, so evidence is taken from its logarithm. Its level is what was
// waited in all of them, over what the victim ran: as before the step, whatever the noise, and a
// window in which the victim hardly ran counts for no more than it waited.
type tally struct {
	total, part        evidence.Mean // of the logarithms: of the whole, and of the suspect's part
	waited, ofIt, over float64       // the sums: of the whole, of the suspect's part, of the CPU time
}

func (y *tally) add(d *delayed, before *delayed) {
	y.total.Add(math.Log(max(d.total, 0.01*before.total)))
	y.part.Add(math.Log(max(d.part, least*before.part)))
	y.waited += d.total * d.run
	y.ofIt += d.part * d.run
	y.over += d.run
}

func (y *tally) join(o *tally) {
	y.total.Join(&o.total)
	y.part.Join(&o.part)
	y.waited, y.ofIt, y.over = y.waited+o.waited, y.ofIt+o.ofIt, y.over+o.over
}

func (y *tally) windows() int { return y.total.N }

// level is the run delay over all windows, and partLevel the suspect's part of it.
func (y *tally) level() float64     { return y.waited / y.over }
func (y *tally) partLevel() float64 { return y.ofIt / y.over }

// since is the information in the difference between the few windows before a step and
// those of a tally.
func (y *tally) since(window time.Duration) float64 {
	alike := alike(window)
	return evidence.Information(max(1, agreeing/alike), float64(y.windows())/alike)
}

// alike is how many windows carry as much information as one independent window: noise
// lasts for half a second.
func alike(window time.Duration) float64 { return 1 + 2*lasting.Seconds()/window.Seconds() }

// fell is the e-value against that a mean of logarithms has not fallen to so many times what
// it was before a step, rose that against that it has.
func (y *tally) fell(m *evidence.Mean, before, to float64, window time.Duration) float64 {
	return evidence.Against((math.Log(before*to)-m.Mean)/m.Deviation(guessedNoise, guessed), y.since(window))
}

func (y *tally) stayed(m *evidence.Mean, before, to float64, window time.Duration) float64 {
	return evidence.Against((m.Mean-math.Log(before*to))/m.Deviation(guessedNoise, guessed), y.since(window))
}

// gain is by how much the logarithm of the run delay has fallen further than by a quarter
// of the suspect's part.
func (y *tally) gain(before *delayed) float64 {
	return math.Log((before.total - quarter*before.part) / y.level())
}

// loss says what the windows without a step and those with it tell: more, that the victim is worse
// without it, and no, that it is not. With the probe the suspect's part tells, as when a step is
// verified, and more quickly than the whole, in which others are.
func (y *tally) loss(held *tally, before *delayed, yields bool, window time.Duration) (more, no bool) {
	alike := alike(window)
	information := evidence.Information(float64(held.windows())/alike, float64(y.windows())/alike)
	differ := func(a, b *evidence.Mean, by float64) float64 {
		return (a.Mean - b.Mean - by) / max(a.Deviation(guessedNoise, guessed), b.Deviation(guessedNoise, guessed))
	}
	whole := differ(&y.total, &held.total, -math.Log(1-quarter*before.part/before.total))
	no = evidence.Against(-whole, information) >= evidence.Enough
	if !before.probed {
		return evidence.Against(whole, information) >= evidence.Enough, no
	}
	no = no || evidence.Against(-differ(&y.part, &held.part, -math.Log(half)), information) >= evidence.Enough
	if !yields {
		whole -= 1 / math.Sqrt(information)
	}
	return whole >= 0 && evidence.Against(differ(&y.part, &held.part, -math.Log(weaker)), information) >= evidence.Enough, no
}
