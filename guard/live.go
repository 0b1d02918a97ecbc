package guard

import (
	"errors"
	"os"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
)

// Host has the sensors of a live host. It must be closed.
type Host struct{ *observe.Observer }

// OpenHost opens the signals of the host below a root directory, "" for "/".
func OpenHost(root string) (*Host, error) {
	all, err := observe.Open(observe.Config{Root: root})
	if err != nil {
		return nil, err
	}
	return &Host{all}, all.Closely(nil) // until it is known who is looked after
}

// OwnGroup is the group of this process, "" if it is the root or not known: for
// control.Config.Own.
func (h *Host) OwnGroup() string {
	group, err := h.GroupOf(os.Getpid())
	if err != nil {
		return ""
	}
	return group
}

var _ Sensors = (*Host)(nil)

// Live is what a guard of its own holds of a live host: the sensors and, if it may act,
// the groups. It must be closed.
type Live struct {
	*Host
	act *actuate.Host // nil if it only observes
}

// OpenLive opens the host below a root directory, "" for "/". With a Root to act on, it
// also takes the groups (actuate.Open), and restores what a killed guard left active: left
// says what that was, beside an error as well.
func OpenLive(root string, act actuate.Options) (l *Live, left []kernel.Item, err error) {
	l = &Live{}
	if l.Host, err = OpenHost(root); err != nil || act.Root == nil {
		return l, nil, err
	}
	if l.act, err = actuate.Open(act); err != nil {
		return nil, nil, errors.Join(err, l.Host.Close())
	}
	if left, err = l.act.Restore(); err != nil {
		return nil, left, errors.Join(err, l.Close())
	}
	return l, left, nil
}

// Guard has a Runner with these options read and act on the host.
func (l *Live) Guard(o *Options) {
	o.Sensors, o.Control.Own = l.Host, l.OwnGroup()
	if l.act != nil {
		o.Actuator = l.act
	}
}

// Close ends all reading, and gives the groups free. It restores nothing: Runner.Run does.
func (l *Live) Close() error {
	var err error
	if l.act != nil {
		err = l.act.Close()
	}
	return errors.Join(err, l.Host.Close())
}
