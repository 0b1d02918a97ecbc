package control

import (
	"math"
	"time"

	"berth.dev/berth/guard/detect"
)

const (
	agreeing    = 3    // windows before a step over which the run delay is taken: as many make a finding
	mostWindows = 11   // windows over which the run delay is known
	leastPart   = 0.05 // of the run delay behind others, for which a suspect may be judged by the probe
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
}

// delayBefore is the run delay before a step against a suspect.
func (l *Loop) delayBefore(at *escalation, suspect string, windows int) delayed {
	r, ok := l.runDelay(at, suspect, windows)
	switch {
	case ok && r.Suspect > 0 && r.Suspect >= leastPart*r.Others:
		return delayed{total: r.Others, part: r.Suspect, probed: true}
	case ok && r.UseShare > 0:
		return delayed{total: r.Wait, part: r.UseShare * r.Wait}
	}
	return delayed{}
}

// delayNow is that of the last windows, measured as it was before a step.
func (l *Loop) delayNow(at *escalation, s *step, windows int) (d delayed, r detect.RunDelay, known bool) {
	r, ok := l.runDelay(at, s.action.Suspect, windows)
	d = delayed{total: r.Wait, part: r.UseShare * r.Wait}
	if s.delay.probed {
		d = delayed{total: r.Others, part: r.Suspect, probed: true}
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
)

// tally is the run delay in the windows since a change. Its noise is about as large by
// proportion whatever its level, so it is taken by its logarithm.
type tally struct {
	n             int
	mean, squares float64 // of the logarithms, and of their deviations from the mean
	parts         float64 // the sum of the suspect's part
}

func (y *tally) add(d *delayed, before *delayed) {
	y.n++
	v := math.Log(max(d.total, 0.01*before.total))
	from := v - y.mean
	y.mean += from / float64(y.n)
	y.squares += from * (v - y.mean)
	y.parts += d.part
}

func (y *tally) part() float64 { return y.parts / float64(y.n) }

// noise is the standard deviation of the logarithm of one window.
func (y *tally) noise() float64 {
	return math.Sqrt((y.squares + guessed*guessedNoise*guessedNoise) / float64(y.n-1+guessed))
}

// level is the logarithm of the mean.
func (y *tally) level() float64 { return y.mean + y.noise()*y.noise()/2 }

// gain is by how many standard errors the run delay has fallen by more than a quarter of
// the suspect's part, from the few windows before a step to those since.
func (y *tally) gain(before *delayed, window time.Duration) float64 {
	needed := math.Log(1 - quarter*before.part/before.total)
	return (needed - y.level() + math.Log(before.total)) / y.unsure(window)
}

// remaining is by how many standard errors the suspect's part is more than what it has to
// fall to.
func (y *tally) remaining(before *delayed, window time.Duration) float64 {
	return math.Log(y.part()/(weaker*before.part)) / y.unsure(window)
}

// unsure is the standard error of a difference of logarithms between the few windows
// before a step and those since. Noise lasts for half a second, so that neighbouring
// windows carry less information than independent ones.
func (y *tally) unsure(window time.Duration) float64 {
	alike := alike(window)
	return y.noise() * math.Sqrt(min(1, alike/agreeing)+alike/float64(y.n))
}

// alike is how many windows carry as much information as one independent window.
func alike(window time.Duration) float64 { return 1 + 2*lasting.Seconds()/window.Seconds() }

// loss is likewise by how many the run delay in a trial is above that with the step active.
func (y *tally) loss(held *tally, before *delayed, window time.Duration) float64 {
	alike := alike(window)
	needed := -math.Log(1 - quarter*before.part/before.total)
	rose := y.level() - held.level()
	return (rose - needed) / (max(y.noise(), held.noise()) * math.Sqrt(alike/float64(held.n)+alike/float64(y.n)))
}
