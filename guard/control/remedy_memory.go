package control

import (
	"fmt"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
)

const (
	highStep    = 0.9 // of the memory in use
	leastHigh   = 64 << 20
	leastOfUsed = 0.5 // of what was in use before the first step
)

// memoryHigh has the suspect reclaim a tenth of its memory; further steps a tenth of what
// is left.
var memoryHigh = Remedy{
	Name:  detect.MemoryHigh,
	Knobs: []string{"memoryHigh"},
	Delay: 2 * time.Second,
	Propose: func(c *Case) (to cgroup.Limits, reason string) {
		used := c.Group.Memory
		if used <= 0 {
			return to, "how much memory the suspect uses is not known"
		}
		floor, high := used, int64(highStep*float64(used))
		if c.Held != nil {
			floor, high = c.MemoryBefore, int64(highStep*float64(c.Held.MemoryHigh))
		}
		if floor = max(int64(leastOfUsed*float64(floor)), leastHigh); high < floor {
			return to, fmt.Sprintf("%d MiB is the least that best-effort work keeps", floor>>20)
		}
		to.MemoryHigh = high
		return to, ""
	},
	Amount: func(l cgroup.Limits) string { return fmt.Sprintf("high %d MiB", l.MemoryHigh>>20) },
	Sentence: func(group string, l cgroup.Limits) string {
		return fmt.Sprintf("%s is to have at most %d MiB", group, l.MemoryHigh>>20)
	},
}
