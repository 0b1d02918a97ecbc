package control

import (
	"fmt"
	"math"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
)

// shrinkCPUs takes the CPUs of the victim away from the suspect, or half of what it has.
var shrinkCPUs = Remedy{
	Name:  detect.ShrinkCPUs,
	Knobs: []string{"cpus"},
	Below: true, // a v1 set holds those of the groups below
	Propose: func(c *Case) (to cgroup.Limits, reason string) {
		n := c.Host.CPUs.Len()
		if n == 0 {
			return to, "the host's CPUs are not known"
		}
		have := c.Group.CPUs
		if c.Held != nil {
			have = c.Held.CPUs
		} else if have.IsEmpty() {
			have = c.Host.CPUs
		}
		have = have.Intersect(c.Host.CPUs)
		floor := min(FloorCPUs(n), have.Len())
		count := max(floor, int(math.Ceil(shrinkBy*float64(have.Len()))))
		if outside := have.Minus(c.Victim.CPUs).Len(); outside < have.Len() && outside >= floor {
			count = outside
		}
		if count >= have.Len() || count == 0 {
			return to, fmt.Sprintf("%s is the least that best-effort work keeps", counted(have.Len(), "CPU"))
		}
		to.CPUs = choose(c.Machine, have, c.Victim.CPUs, count)
		return to, ""
	},
	Weaker: func(c *Case, from cgroup.Limits, before *cgroup.Limits) (to cgroup.Limits, ok bool) {
		n := c.Host.CPUs.Len()
		if c.Group.Group == "" || n == 0 {
			return to, false
		}
		target := c.Group.CPUs
		if target.IsEmpty() {
			target = c.Host.CPUs
		}
		if before != nil {
			target = before.CPUs
		}
		more, step := target.Minus(from.CPUs), (n+9)/10
		if more.Len() <= step {
			return to, false
		}
		to.CPUs = from.CPUs.Union(choose(c.Machine, more, cpuset.Set{}, step))
		return to, true
	},
	Amount: func(l cgroup.Limits) string { return "CPUs " + l.CPUs.String() },
	Sentence: func(group string, l cgroup.Limits) string {
		return fmt.Sprintf("%s runs on CPUs %s only", group, l.CPUs)
	},
}

// FloorCPUs is the least number of CPUs that a cpuset of best-effort work keeps on
// a node: 5 %, and two, or one where two would be more than half of the node.
func FloorCPUs(cpus int) int {
	return max(1, min(2, cpus/2), int(math.Ceil(0.05*float64(cpus))))
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// choose picks n of some CPUs: first those outside avoid, whole cores before
// parts of one, then the highest numbers, which are least likely to be where the
// host's own work gathers.
func choose(m *machine.Machine, from, avoid cpuset.Set, n int) cpuset.Set {
	var chosen cpuset.Set
	for _, part := range []cpuset.Set{from.Minus(avoid), from.Intersect(avoid)} {
		cores := coresIn(m, part)
		for i := len(cores) - 1; i >= 0; i-- {
			if chosen.Len()+cores[i].Len() <= n {
				chosen = chosen.Union(cores[i])
			}
		}
		ids := part.Minus(chosen).Slice()
		for i := len(ids) - 1; i >= 0 && chosen.Len() < n; i-- {
			chosen = chosen.Union(cpuset.MustOf(ids[i]))
		}
	}
	return chosen
}

// coresIn are the cores that lie wholly within some CPUs, by their lowest CPU.
func coresIn(m *machine.Machine, cpus cpuset.Set) []cpuset.Set {
	if m == nil {
		return nil
	}
	var cores []cpuset.Set
	for _, core := range m.ByKind(machine.Core) {
		if !core.CPUs.IsEmpty() && cpus.Contains(core.CPUs) {
			cores = append(cores, core.CPUs)
		}
	}
	return cores
}
