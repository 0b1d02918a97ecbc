package control

import (
	"fmt"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
)

// burst lets the victim save up a whole quota for later periods, which is the most that
// the kernel takes.
var burst = Remedy{
	Name:   detect.Burst,
	Knobs:  []string{"burst"},
	Gives:  true,
	Target: func(victim, _ string) (group, reason string) { return victim, "" },
	Propose: func(c *Case) (to cgroup.Limits, reason string) {
		own := c.Group.Limits
		switch {
		case c.Held != nil:
			return to, furthest
		case own.Quota <= 0 || own.Period <= 0:
			return to, "the quota is not its own, but that of a group around it"
		}
		to.Burst = own.Quota
		return to, ""
	},
	Amount: func(l cgroup.Limits) string { return fmt.Sprintf("burst %v", l.Burst) },
}
