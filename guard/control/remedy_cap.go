package control

import (
	"fmt"
	"math"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
)

const (
	headroom = 0.2 // of the node, that a cap leaves idle (resctl-demo's sideloader)
	shrinkBy = 0.5 // of what is left, for caps and sets after the first step
	growBy   = 0.1 // of the node, at most, when a cap or set is relaxed
)

// headroomCap caps the suspect to what it uses and what is idle, less the headroom;
// further steps halve that.
var headroomCap = Remedy{
	Name:  detect.HeadroomCap,
	Knobs: []string{"quota"},
	Propose: func(c *Case) (none cgroup.Limits, reason string) {
		n, use := float64(c.Host.CPUs.Len()), c.Group.Use
		if n == 0 || math.IsNaN(c.Host.Use) || !(use > 0) {
			return none, "how much CPU time the host and the suspect use is not known"
		}
		floor := FloorQuota(int(n))
		idle := max(n-c.Host.Use, 0)
		to := max(floor, idle+use-headroom*n)
		if c.Held != nil {
			have := cpusOf(*c.Held)
			to = max(floor, min(to, shrinkBy*have))
			if to > have-0.01*n {
				return none, furthest
			}
		}
		if own := c.Group.Limits; own.Quota > 0 && own.Period > 0 && to >= float64(own.Quota)/float64(own.Period) {
			return none, "its own quota is below that"
		}
		if c.Held == nil && to >= use {
			return none, fmt.Sprintf("%.2f CPUs are idle: a cap that leaves %.0f %% of the node would not bind", idle, 100*headroom)
		}
		return quota(to), ""
	},
	Weaker: func(c *Case, from cgroup.Limits, before *cgroup.Limits) (cgroup.Limits, bool) {
		n := float64(c.Host.CPUs.Len())
		to, most := cpusOf(from)+growBy*n, n
		if before != nil {
			most = cpusOf(*before)
		}
		return quota(to), to < most
	},
	Amount: func(l cgroup.Limits) string { return fmt.Sprintf("%.2f CPUs", cpusOf(l)) },
	Sentence: func(group string, l cgroup.Limits) string {
		return fmt.Sprintf("%s has at most %.2f CPUs", group, cpusOf(l))
	},
}

// FloorQuota is the least CPU time that best-effort work keeps, in CPUs: 5 % of the
// node, and 0.1, as the kernel takes no quota below 1 ms (here of 10).
func FloorQuota(cpus int) float64 { return max(0.05*float64(cpus), 0.1) }

// period of caps: a short one bounds how long best-effort work runs at a stretch
// (resctl-demo's sideloader has the same).
const period = 10 * time.Millisecond

// quota is the setting for so many CPUs; the kernel takes 1 ms at least.
func quota(cpus float64) cgroup.Limits {
	us := max(math.Round(cpus*float64(period/time.Microsecond)), 1000)
	return cgroup.Limits{Quota: time.Duration(us) * time.Microsecond, Period: period}
}

// cpusOf is how many CPUs a quota is.
func cpusOf(l cgroup.Limits) float64 {
	if l.Period == 0 {
		return 0
	}
	return float64(l.Quota) / float64(l.Period)
}
