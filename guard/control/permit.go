package control

import (
	"fmt"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
)

// bestEffort reports whether a group may be squeezed: it is BE, or allowed.
func (l *Loop) bestEffort(group string) bool {
	w := l.byGroup[group]
	return w != nil && (w.Class.Traits().Squeezed || l.allowed(group))
}

func (l *Loop) allowed(group string) bool {
	for _, glob := range l.cfg.Allowed {
		if kernel.Covers(glob, group) {
			return true
		}
	}
	return false
}

// permits says why an action must not be taken; "" if it may.
func (l *Loop) permits(a Action) string {
	w, r := l.byGroup[a.Group], l.remedy(a.Remedy)
	if r != nil && r.Processes {
		if a.Group != detect.Outside || w == nil || len(w.Processes) == 0 {
			return "there is no process in no group that may be acted on"
		}
		return ""
	}
	if reason := l.protects(a.Group); reason != "" {
		return reason
	}
	if w == nil {
		return a.Group + " is not a known workload"
	}
	if a.Group == a.Victim {
		return ""
	}
	for _, o := range l.exempt {
		if !kernel.Within(o.group, a.Group) || o.class.Traits().Squeezed || l.allowed(o.group) {
			continue
		}
		if l.cfg.Weigh && r != nil && r.Weighs && o.class.Traits().Weighed {
			continue
		}
		if o.group == a.Group {
			return fmt.Sprintf("%s is %v, not BE: it is reported and left alone", o.group, o.class)
		}
		return fmt.Sprintf("%s holds %s, which is %v, not BE", a.Group, o.group, o.class)
	}
	return ""
}

// protects says why a group must not be touched; "" if it may be.
func (l *Loop) protects(group string) string {
	if group == "" || group == detect.Outside {
		return "the root group / holds the processes outside of any group, and is never acted on"
	}
	for _, own := range [...]string{"init.scope", l.cfg.Own} {
		if own != "" && related(group, own) {
			return fmt.Sprintf("%s is, holds or lies in %s, which is never acted on", group, own)
		}
	}
	for _, glob := range l.cfg.Protected {
		if kernel.Covers(glob, group) || below(glob, group) {
			return fmt.Sprintf("%s is protected by %q", group, glob)
		}
	}
	for _, o := range l.exempt {
		if o.protected && related(o.group, group) {
			reason := fmt.Sprintf("%s is, holds or lies in %s, which is protected", group, o.group)
			if o.why != "" {
				reason += ": " + o.why
			}
			return reason
		}
	}
	return ""
}
