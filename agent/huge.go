package agent

import (
	"fmt"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
	"berth.dev/berth/place"
)

var errNoSize = &kernel.NotSupportedError{Feature: "limit", Reason: "no kernel that Berth knows has pages of this size"}

// huge are the limits on huge pages that a spec comes to: to as much as it asks room for. What
// this host cannot limit is left out, and why says so.
func (g *groups) huge(s *Spec) (limits knob.Settings, why string) {
	limits = knob.Settings{}
	var lacks []string
	for _, a := range s.Request.Memory {
		size, isHuge := strings.CutPrefix(a.Resource, place.HugePagesPrefix)
		if !isHuge {
			continue
		}
		k := knob.Find(knob.HugePages(size))
		if err := g.canLimit(k); err != nil {
			lacks = append(lacks, fmt.Sprintf("its huge pages of %s are counted, and not limited: %v", size, err))
			continue
		}
		limits[knob.ID{Knob: k}] = strconv.FormatInt(a.Bytes, 10)
	}
	return limits, strings.Join(lacks, "; ")
}

// canLimit says why groups cannot have the limit of a size of huge pages; k is nil for a
// size that no kernel has.
func (g *groups) canLimit(k *knob.Knob) error {
	if k == nil {
		return errNoSize
	}
	if err := g.base.Has(cgroup.HugeTLB); err != nil {
		return err
	}
	if t, ok := g.host.Hierarchy(cgroup.HugeTLB); ok {
		if why, known := t.Lacks(g.root, k); known && why != nil {
			return why
		}
	}
	return nil
}

// values are the settings of a spec beyond placing, as far as this host has them.
func (g *groups) values(s *Spec) knob.Settings {
	l, _ := g.settings(s)
	all := ofLimits(l)
	huge, _ := g.huge(s)
	for id, value := range huge {
		all[id] = value
	}
	return all
}
