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
	last     float64
	at       watch.Time
	n        int
	mean     float64 // what is usual, in threads
	variance float64
	sum      float64
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

// add takes in the time waited so far, and returns the sum of surprises.
func (w *guardedWait) add(at watch.Time, total float64) float64 {
	since, before := (at - w.at).Seconds(), w.last
	w.last, w.at = total, at
	if w.n++; w.n == 1 || !(since > 0) || since > 4*GlanceWindow.Seconds() || total < before {
		return 0 // what was waited in a longer time is not compared
	}
	rate := (total - before) / since
	deviation := max(math.Sqrt(w.variance), w.mean/4, leastStarved/4)
	over := (rate - w.mean) / deviation
	known := w.n > enoughGlances
	if known && rate >= leastStarved {
		w.sum = max(0, w.sum+min(over, mostSurprise)-1)
	} else {
		w.sum = 0
	}
	// What is beyond three standard deviations is learnt as that much, so that it becomes
	// usual if it lasts.
	weight := max(1/float64(w.n-1), 1.0/glances)
	if known {
		rate = min(rate, w.mean+3*deviation)
	}
	d := rate - w.mean
	w.mean += weight * d
	w.variance = (1 - weight) * (w.variance + weight*d*d)
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
