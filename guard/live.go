package guard

import (
	"os"

	"berth.dev/berth/guard/observe"
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
