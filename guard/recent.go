package guard

import (
	"maps"

	"berth.dev/berth/watch"
)

// recentSpan is over how long the use of a group is taken, as one that works in bursts is not to be judged by
// one of them; leastCovered is the share of it that has to be known: two short windows.
const (
	recentSpan   = 200 * watch.Millisecond
	leastCovered = 0.35
)

// recent is the CPU time of the groups that the short windows read: those in focus, and those for which these
// wait longest.
type recent map[string]*watch.Series

// observe adds what a short window has read.
func (r recent) observe(samples []watch.Sample) {
	var now watch.Time
	for i := range samples {
		s := &samples[i]
		now = max(now, s.Time)
		if s.Quantity != watch.CPUTime || s.Subject.Scope != watch.Group || s.Subject.Part != (watch.Part{}) {
			continue
		}
		of := r[s.Subject.Name]
		if of == nil {
			of = watch.NewSeries(watch.CPUTime, int(recentSpan/watch.Time(FastWindow))+2)
			r[s.Subject.Name] = of
		}
		_ = of.Add(s.Time, s.Value) // a window that was read twice is not counted twice
	}
	maps.DeleteFunc(r, func(_ string, of *watch.Series) bool {
		_, age, ok := of.Last(now)
		return !ok || age > recentSpan
	})
}

// use is the CPU time of a group per second of late, in CPUs; nil if too little of it is known.
func (r recent) use(group string, now watch.Time) *float64 {
	of := r[group]
	if of == nil {
		return nil
	}
	use, covered := of.Mean(now-recentSpan, now)
	if covered < leastCovered {
		return nil
	}
	return &use
}

// above are the groups that use more than another of late; none if that is not known.
func (r recent) above(group string, now watch.Time) (all []string) {
	least := r.use(group, now)
	if least == nil {
		return nil
	}
	for name := range r {
		if use := r.use(name, now); use != nil && *use > *least {
			all = append(all, name)
		}
	}
	return all
}
