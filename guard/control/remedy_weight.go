package control

import (
	"fmt"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
)

// weight makes a best-effort group yield the CPU (cpu.idle, or the least cpu.weight
// without it), and gives others a quarter of their weight.
var weight = Remedy{
	Name:   detect.Weight,
	Knobs:  []string{"idle", "weight"},
	Weighs: true,
	Yields: true,
	Target: diverging,
	Propose: func(c *Case) (to cgroup.Limits, reason string) {
		have := weightOr(c.Group.Limits.Weight)
		switch {
		case c.Held != nil:
			return to, furthest
		case c.Group.Limits.Idle == cgroup.On:
			return to, c.Group.Group + " is idle already"
		case c.BestEffort && c.Host.NoIdle == "":
			to.Idle = cgroup.On
		case c.BestEffort:
			to.Weight = 1
		default:
			to.Weight = max(have/4, 1)
		}
		if have == to.Weight {
			return to, fmt.Sprintf("%s has weight %d already", c.Group.Group, have)
		}
		return to, ""
	},
	Amount: func(l cgroup.Limits) string {
		if l.Idle == cgroup.On {
			return "idle"
		}
		return fmt.Sprintf("weight %d", l.Weight)
	},
	Sentence: func(group string, l cgroup.Limits) string {
		if l.Idle == cgroup.On {
			return group + " runs only when nobody else wants to"
		}
		return fmt.Sprintf("%s has CPU weight %d", group, l.Weight)
	},
}

// weightOr is a weight, or the default for 0.
func weightOr(w int) int {
	if w == 0 {
		return 100
	}
	return w
}
