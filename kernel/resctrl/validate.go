package resctrl

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
)

var className = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$`)

// Validate reports all that is wrong on any host, joined, each as strictyaml.Error with its
// field.
func (c *Config) Validate() error {
	var errs []error
	fail := func(field string, err error) {
		if err != nil {
			errs = append(errs, &strictyaml.Error{Field: field, Err: err})
		}
	}
	in := map[string]string{}
	for _, pname := range slices.Sorted(maps.Keys(c.Partitions)) {
		p, field := c.Partitions[pname], "partitions."+pname
		for what, a := range map[string]any{"l2Allocation": p.L2Allocation, "l3Allocation": p.L3Allocation} {
			fail(field+"."+what, eachCache(a, func(s share) error {
				if s.low > 0 {
					return errors.New("a range of percent is for classes: a partition has a percentage, ways or a mask")
				}
				return nil
			}))
		}
		fail(field+".mbAllocation", eachBandwidth(p.MBAllocation))
		fail(field+".smbaAllocation", eachBandwidth(p.SMBAAllocation))
		for _, name := range slices.Sorted(maps.Keys(p.Classes)) {
			class, at := p.Classes[name], field+".classes."+name
			canonical := Canonical(name)
			if canonical != Default && !className.MatchString(name) {
				fail(at, fmt.Errorf("%q is not a name: 1 to 63 letters, digits, '-', '_' or '.', a letter or digit first", name))
			}
			if other, twice := in[canonical]; twice {
				fail(at, fmt.Errorf("there is a class %q in partition %q, too", name, other))
			}
			in[canonical] = pname
			if class == nil {
				continue
			}
			for what, a := range map[string]any{"l2Allocation": class.L2Allocation, "l3Allocation": class.l3()} {
				fail(at+"."+what, eachCache(a, nil))
			}
			fail(at+".mbAllocation", eachBandwidth(class.mb()))
			fail(at+".smbaAllocation", eachBandwidth(class.SMBAAllocation))
			fail(at+".mode", class.checkMode())
			if class.exclusive() && canonical == Default {
				fail(at+".exclusive", errors.New("the default group cannot be exclusive: the ways of all that has no class are shared"))
			}
			if class.exclusive() && len(p.Classes) > 1 {
				fail(at+".exclusive", fmt.Errorf("partition %q has other classes, which would share its ways: give it a partition of its own", pname))
			}
		}
	}
	for _, service := range slices.Sorted(maps.Keys(c.Service)) {
		at := "service." + service
		if !slices.Contains([]string{"LSE", "LSR", "LS", "BE", "SYSTEM"}, service) {
			fail(at, fmt.Errorf("%q is no class of service: LSE, LSR, LS, BE or SYSTEM", service))
		}
		if name := c.Service[service]; in[name] == "" || name == Default {
			fail(at, fmt.Errorf("there is no class %q%s", name, strictyaml.Nearest(name, c.Names())))
		}
	}
	return errors.Join(errs...)
}

// The modes of a group (resctrl.rst, "mode"), and those that stand for pseudo-locking.
const (
	modeShareable, modeExclusive    = "shareable", "exclusive"
	modePseudoLocked, modeLockSetup = "pseudo-locked", "pseudo-locksetup"
)

func (c *Class) exclusive() bool { return c != nil && (c.Exclusive || c.Mode == modeExclusive) }

// checkMode reports a mode that no class can have; pseudo-locking is a *kernel.NotSupportedError.
func (c *Class) checkMode() error {
	switch c.Mode {
	case "", modeExclusive:
		return nil
	case modeShareable:
		if c.Exclusive {
			return errors.New("it is shareable, and exclusive: true says that it is not")
		}
		return nil
	case modeLockSetup, modePseudoLocked:
		return &kernel.NotSupportedError{
			Feature: "cache pseudo-locking",
			Reason:  "a pseudo-locked region is memory that a program maps from /dev/pseudo_lock: no thread can be in its group, so that no workload could have the class",
			Remedy:  "exclusive: true keeps ways for one class; or lock a region without Berth, which gives no class its ways",
		}
	}
	return fmt.Errorf("%q is no mode: %s or %s", c.Mode, modeShareable, modeExclusive)
}
