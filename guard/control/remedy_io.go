package control

import (
	"fmt"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
)

// ioWeight gives the suspect a tenth of its share of disk time, again and again.
var ioWeight = Remedy{
	Name:   detect.IOWeight,
	Knobs:  []string{"ioWeight"},
	Weighs: true,
	Delay:  time.Second,
	Target: diverging,
	Propose: func(c *Case) (to cgroup.Limits, reason string) {
		have := weightOr(c.Group.Limits.IOWeight)
		if c.Held != nil {
			have = c.Held.IOWeight
		}
		if have <= 1 {
			return to, furthest
		}
		to.IOWeight = max(have/10, 1)
		return to, ""
	},
	Amount: func(l cgroup.Limits) string { return fmt.Sprintf("weight %d", l.IOWeight) },
	Sentence: func(group string, l cgroup.Limits) string {
		return fmt.Sprintf("%s has I/O weight %d", group, l.IOWeight)
	},
}
