package guard

import (
	"errors"
	"os"

	"berth.dev/berth/guard/observe"
	"berth.dev/berth/watch"
)

// Host has the sensors of a live host. It must be closed.
type Host struct {
	*observe.Observer
	near *observe.Near
}

// OpenHost opens the signals of the host below a root directory, "" for "/".
func OpenHost(root string) (*Host, error) {
	all, err := observe.Open(observe.Config{Root: root})
	if err != nil {
		return nil, err
	}
	near, err := observe.OpenNear(root)
	if err == nil {
		err = all.Closely(nil) // until it is known who is looked after
	}
	if err != nil {
		return nil, errors.Join(err, all.Close())
	}
	return &Host{all, near}, nil
}

// Focus implements Sensors.
func (h *Host) Focus(groups []string) error {
	return errors.Join(h.Observer.Focus(groups), h.near.Focus(groups))
}

// TickNear implements Sensors.
func (h *Host) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	return h.near.Tick(now, to)
}

// Arm implements Sensors.
func (h *Host) Arm(on bool) error { return h.near.Arm(on) }

// Probe implements Sensors.
func (h *Host) Probe() error { return h.near.Probe() }

// ProbeCost implements Sensors.
func (h *Host) ProbeCost() float64 { return h.near.Cost() }

// OwnGroup is the group of this process, "" if it is the root or not known: for
// control.Config.Own.
func (h *Host) OwnGroup() string {
	group, err := h.GroupOf(os.Getpid())
	if err != nil {
		return ""
	}
	return group
}

// Close ends all reading and detaches the probe.
func (h *Host) Close() error { return errors.Join(h.Observer.Close(), h.near.Close()) }

var _ Sensors = (*Host)(nil)
