package agent

import (
	"errors"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
)

// Lacks returns what says why groups of a host cannot have a setting; nil if they can. An
// error is why no group can be placed there at all.
func Lacks(root *kernel.Root) (func(*knob.Knob) error, error) {
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, err
	}
	g, err := openGroups(root, host)
	if err != nil {
		return nil, err
	}
	const none = "berth-yet-to-come"
	return func(k *knob.Knob) error {
		_, _, err := g.base.Child(none).Locate(k)
		if err != nil && !errors.Is(err, kernel.ErrNotSupported) {
			return err
		}
		if t, ok := host.Hierarchy(k.Controller); err == nil && ok {
			if why, known := t.Lacks(root, k); known && why != nil {
				return why
			}
		}
		return err
	}, nil
}
