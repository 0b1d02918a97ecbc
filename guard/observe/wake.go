package observe

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch/proc"
)

// WakeWindow is the time over which the kernel measures what Wake tells. A kernel before 6.4 takes
// half a second.
const WakeWindow = 200 * time.Millisecond

// wakeWindows are those that are tried.
func wakeWindows() []time.Duration { return []time.Duration{WakeWindow, 500 * time.Millisecond} }

// alarms is what an Observer needs of *proc.Triggers.
type alarms interface {
	Set(name string, t proc.Trigger) error
	Keep(names []string)
	Wait(ctx context.Context) (name string, gone bool, err error)
	Close() error
}

// WakeAt has Wake return, once, when tasks of a group wait for a CPU for more than a part (0-1) of
// the time (PSI, some); the group "" is the host. Groups that are not named are not waited for any
// more. It returns those that are: a group that is gone is not, which is no error. What the kernel
// or the rights of this process do not allow is a kernel.NotSupportedError. Wake can be called from
// the first WakeAt on, and beside it.
func (o *Observer) WakeAt(least map[string]float64) (asked map[string]float64, err error) {
	if o.triggers == nil {
		if o.site.Root != "/" {
			return nil, o.site.notLive("being woken by pressure")
		}
		triggers, err := proc.NewTriggers()
		if err != nil {
			return nil, err
		}
		o.triggers = triggers
	}
	asked = map[string]float64{}
	var errs []error
	for _, group := range sortedKeys(least) {
		err := o.wakeAt(group, least[group])
		switch gone := kernel.Absent(err); {
		case err == nil:
			asked[group] = least[group]
			continue
		case gone && group != "":
			continue
		case gone:
			err = proc.PressureNotSupported("/proc/pressure/cpu", err)
		}
		errs = append(errs, err)
	}
	o.triggers.Keep(slices.Collect(maps.Keys(asked))) // nor is one that could not be replaced
	return asked, errors.Join(errs...)
}

func (o *Observer) wakeAt(group string, least float64) error {
	file := filepath.Join(o.site.proc(), "pressure/cpu")
	if group != "" {
		tree, err := o.site.v2("pressure of groups")
		if err != nil {
			return err
		}
		file = filepath.Join(tree, group, "cpu.pressure")
	}
	windows := wakeWindows()
	for older := o.wakeOlder; ; older++ {
		window := windows[older]
		err := o.triggers.Set(group, proc.Trigger{Path: file, Stall: time.Duration(least * float64(window)), Window: window})
		if err == nil {
			o.wakeOlder = older // it was for the window that others were refused
		}
		if !errors.Is(err, kernel.ErrNotSupported) || older == len(windows)-1 {
			return err
		}
	}
}

// Wake waits until what WakeAt asked for a group has come about, or a group is gone that was waited
// for. When the context ends nothing is waited for any more, and its error is returned.
func (o *Observer) Wake(ctx context.Context) (group string, gone bool, err error) {
	return o.triggers.Wait(ctx)
}
