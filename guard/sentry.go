package guard

import (
	"math"
	"slices"
	"time"

	"berth.dev/berth/watch"
)

const (
	// GlanceWindow is the time between two glances while the probe is not armed (ProbeEager).
	GlanceWindow = 25 * time.Millisecond

	// glances is over how many of them what is usual is learnt, enoughGlances how many that needs.
	glances, enoughGlances = 400, 120
	// leastStarved is the waiting, in threads, from which it may be a symptom.
	leastStarved = 0.1
	// surprise is the sum of deviations from which the probe is armed, and by how much one
	// glance can add to it.
	surprise, mostSurprise = 4, 20
	// mostDoubt bounds by what the first is multiplied after alarms for nothing.
	mostDoubt = 8
)

// sentry says when a sensitive group begins to wait for a CPU more than it usually does, so that
// the run-queue probe, which costs more, is armed in time to see for whom. It accuses nobody:
// that is for the windows with the probe. It adds up by how many standard deviations each glance
// is above what is usual, less one (a cumulative sum: Page, "Continuous inspection schemes",
// Biometrika 1954).
type sentry struct {
	groups map[string]*guardedWait
	doubt  float64 // the more alarms were for nothing, the more it takes
}

// guardedWait is the waiting of one group.
type guardedWait struct {
	quantity watch.Quantity
	counter
	usual // in threads
	sum   float64
}

// counter is the last reading of something that is counted.
type counter struct {
	read bool
	last float64
	at   watch.Time
}

// rate takes in a reading and returns the rate since the one before, if there was one, no longer
// ago than that.
func (c *counter) rate(at watch.Time, total float64, longest time.Duration) (rate float64, ok bool) {
	before := *c
	*c = counter{true, total, at}
	since := (at - before.at).Seconds()
	if !before.read || !(since > 0) || since > longest.Seconds() || total < before.last {
		return 0, false
	}
	return (total - before.last) / since, true
}

// usual is what is usual of a rate.
type usual struct {
	n              int // rates learnt
	mean, variance float64
}

func (u *usual) deviation() float64 {
	return max(math.Sqrt(u.variance), u.mean/4, leastStarved/4)
}

// learn takes in a rate, as one of as many as are remembered. Once enough are known, what is beyond
// three standard deviations is learnt as that much, so that it becomes usual if it lasts.
func (u *usual) learn(rate float64, enough, remembered int) {
	if u.n >= enough {
		rate = min(rate, u.mean+3*u.deviation())
	}
	u.n++
	weight := max(1/float64(u.n), 1/float64(remembered))
	d := rate - u.mean
	u.mean += weight * d
	u.variance = (1 - weight) * (u.variance + weight*d*d)
}

func newSentry() sentry { return sentry{groups: map[string]*guardedWait{}, doubt: 1} }

// glance takes in samples of CPUWait or CPUSome, and reports whether a group has begun to wait.
func (s *sentry) glance(samples []watch.Sample) (alarm bool) {
	for i := range samples {
		x := &samples[i]
		if x.Subject.Scope != watch.Group || x.Quantity != watch.CPUWait && x.Quantity != watch.CPUSome {
			continue
		}
		w := s.groups[x.Subject.Name]
		if w == nil {
			w = &guardedWait{quantity: x.Quantity}
			s.groups[x.Subject.Name] = w
		}
		if w.quantity == x.Quantity && w.add(x.Time, x.Value) >= surprise*s.doubt {
			alarm = true
		}
	}
	if alarm {
		s.rest()
	}
	return alarm
}

// add takes in the time waited so far, and returns the sum of surprises. What was waited in a
// longer time than some glances is not compared.
func (w *guardedWait) add(at watch.Time, total float64) float64 {
	rate, ok := w.rate(at, total, 4*GlanceWindow)
	if !ok {
		return 0
	}
	if w.n >= enoughGlances && rate >= leastStarved {
		w.sum = max(0, w.sum+min((rate-w.mean)/w.deviation(), mostSurprise)-1)
	} else {
		w.sum = 0
	}
	w.learn(rate, enoughGlances, glances)
	return w.sum
}

// rest begins anew: what comes next is no surprise by what came before.
func (s *sentry) rest() {
	for _, w := range s.groups {
		w.sum = 0
	}
}

// judged says what came of an alarm.
func (s *sentry) judged(found bool) {
	if found {
		s.doubt = 1
	} else {
		s.doubt = min(2*s.doubt, mostDoubt)
	}
}

// keep forgets groups that are not in focus any more.
func (s *sentry) keep(focus []string) {
	for group := range s.groups {
		if !slices.Contains(focus, group) {
			delete(s.groups, group)
		}
	}
}
