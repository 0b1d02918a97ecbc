package guard

import (
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// pace is the windows of one length.
type pace struct {
	window   watch.Time
	due      watch.Time // when the next window ends
	detector *detect.Detector
	findings []detect.Finding // of the last window
}

// newPaces makes the detector and its paces; the fast one is nil without the probe.
func (r *Runner) newPaces(probe bool) (slow, fast *pace, err error) {
	c := detect.Config{Machine: r.o.Machine, Window: watch.Time(r.o.Window), PeakBandwidth: r.o.PeakBandwidth}
	if probe {
		c.Near = watch.Time(FastWindow)
	}
	d, err := detect.New(c)
	if err != nil {
		return nil, nil, err
	}
	if probe {
		fast = &pace{window: c.Near, detector: d.Near()}
	}
	return &pace{window: c.Window, detector: d}, fast, nil
}

// newLoop makes the loop, which acts by windows of both paces.
func (r *Runner) newLoop() (*control.Loop, error) {
	c := r.o.Control
	c.Window, c.Near, c.Machine, c.Now = r.o.Window, FastWindow, r.o.Machine, func() time.Time { return r.now() }
	if r.o.Actuator == nil {
		return control.New(c, nil)
	}
	return control.New(c, r.o.Actuator)
}
