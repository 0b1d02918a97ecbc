package guard

import (
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// pace is a detector and a loop with windows of one length.
type pace struct {
	window   watch.Time
	due      watch.Time // when the next window ends
	detector *detect.Detector
	loop     *control.Loop
	findings []detect.Finding // of the last window
	samples  int              // how many of the samples of now are the slow pace's
}

func (r *Runner) newPace(window time.Duration) (*pace, error) {
	p := &pace{window: watch.Time(window)}
	var err error
	p.detector, err = detect.New(detect.Config{Machine: r.o.Machine, PeakBandwidth: r.o.PeakBandwidth, Window: p.window})
	if err != nil {
		return nil, err
	}
	c := r.o.Control
	if r.slow != nil {
		c.Suppression = nil // it is the slow one's to set
	}
	c.Window, c.Machine, c.Now = window, r.o.Machine, func() time.Time { return r.now() }
	var act control.Actuator
	if r.o.Actuator != nil {
		act = r.o.Actuator
	}
	p.loop, err = control.New(c, act)
	return p, err
}
