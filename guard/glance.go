package guard

import (
	"errors"

	"berth.dev/berth/watch"
)

// glancer are Sensors that can tell at little cost how long the groups in focus wait.
type glancer interface {
	Glance(now watch.Time, to []watch.Sample) ([]watch.Sample, error)
}

// glance has the sentry look, between two slow windows, and arms the probe if it sees something.
func (r *Runner) glance(now watch.Time) watch.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	samples, err := r.o.Sensors.(glancer).Glance(now, r.glanced[:0])
	r.glanced = samples
	r.failed(err)
	if !r.sentry.glance(samples) {
		return r.step()
	}
	r.alarm(now)
	return r.step()
}

func (r *Runner) read(now watch.Time, full bool, to []watch.Sample) ([]watch.Sample, error) {
	var errs []error
	if full {
		var err error
		to, err = r.o.Sensors.Tick(now, to)
		errs = append(errs, err)
		if r.o.Read != nil && len(to) > 0 {
			r.o.Read(to)
		}
	}
	r.near = len(to)
	if r.armed {
		var err error
		to, err = r.o.Sensors.TickNear(now, to)
		errs = append(errs, err)
	}
	return to, errors.Join(errs...)
}
