package guard

import (
	"slices"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

const (
	// mostOutsiders is how many programs a finding names, of those that use leastOutsider CPUs.
	mostOutsiders, leastOutsider = 3, 0.05
	// askedFor is how long the processes in no group are read after they were last accused.
	askedFor = 10 * watch.Second
)

// outsideReader are Sensors that can tell what processes in no group use, by program: CPUTime of
// subjects of the scope watch.Process. It costs two files per process, so it is asked only while
// they are accused.
type outsideReader interface {
	Outsiders(now watch.Time, to []watch.Sample) ([]watch.Sample, error)
}

// outsiders has what processes in no group use.
type outsiders struct {
	until watch.Time // they are read until then
	at    watch.Time
	used  map[string]float64
	now   []detect.Outsider // of the time between the last two readings
}

// take takes in a reading.
func (o *outsiders) take(now watch.Time, samples []watch.Sample) {
	used := map[string]float64{}
	var all []detect.Outsider
	for i := range samples {
		s := &samples[i]
		if s.Subject.Scope != watch.Process || s.Subject.Name == "" || s.Quantity != watch.CPUTime || s.Time != now {
			continue
		}
		used[s.Subject.Name] = s.Value
		if cpus := (s.Value - o.used[s.Subject.Name]) / (now - o.at).Seconds(); o.used != nil && cpus >= leastOutsider {
			all = append(all, detect.Outsider{Program: s.Subject.Name, CPUs: cpus})
		}
	}
	slices.SortStableFunc(all, func(a, b detect.Outsider) int {
		if a.CPUs > b.CPUs {
			return -1
		}
		return 1
	})
	o.used, o.at, o.now = used, now, all[:min(len(all), mostOutsiders)]
}

// nameOutsiders says in findings who the accused processes in no group are, and asks for it.
func (r *Runner) nameOutsiders(found []detect.Finding, now watch.Time) {
	for i := range found {
		if found[i].Suspect == detect.Outside {
			r.outside.until = now + askedFor
			found[i].Outsiders = r.outside.now
		}
	}
}

// readOutsiders reads them in a slow window while they are asked for.
func (r *Runner) readOutsiders(now watch.Time) {
	s, ok := r.o.Sensors.(outsideReader)
	if !ok || now >= r.outside.until {
		r.outside = outsiders{until: r.outside.until}
		return
	}
	samples, err := s.Outsiders(now, nil)
	r.failed(err)
	if err == nil {
		r.outside.take(now, samples)
	}
}
