package control

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
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
		case c.BestEffort && c.Host.NoIdle == "" && c.Group.NoIdle == "":
			to.Idle = cgroup.On
		case c.BestEffort:
			to.Weight = 1
		default:
			to.Weight = max(have/4, 1)
		}
		if have == to.Weight {
			reason = fmt.Sprintf("%s has weight %d already", c.Group.Group, have)
			if c.Group.NoIdle != "" {
				reason += ", and must not be idle: " + c.Group.NoIdle
			}
		}
		return to, reason
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
			return none, "how much CPU time the host and the suspected antagonist use is not known"
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
			return to, fmt.Sprintf("%s is the least that best-effort work keeps", plain.Count(have.Len(), "CPU"))
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
	for _, core := range m.Inside(machine.Core, cpus) {
		cores = append(cores, core.CPUs)
	}
	return cores
}

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
			return to, "how much memory the suspected antagonist uses is not known"
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

// leastIO is what best-effort work may read, and write, per second of each disk at least.
const leastIO = 1 << 20

// ioThrottle bounds what the suspect reads and writes on the disks that the victim uses too,
// to half of what it does; further steps halve that. It works where no weights do.
var ioThrottle = Remedy{
	Name:  detect.IOThrottle,
	Knobs: []string{"readBPS", "writeBPS"},
	Delay: time.Second,
	Propose: func(c *Case) (to cgroup.Limits, reason string) {
		if c.Held != nil {
			further := false
			for _, m := range c.Held.IOMax {
				next := cgroup.IOMax{Device: m.Device, ReadBPS: halved(m.ReadBPS), WriteBPS: halved(m.WriteBPS)}
				to.IOMax, further = append(to.IOMax, next), further || next != m
			}
			if !further {
				return to, fmt.Sprintf("%d MiB/s is the least that best-effort work keeps", leastIO>>20)
			}
			return to, ""
		}
		for _, use := range c.Group.Devices {
			if !slices.ContainsFunc(c.Victim.Devices, func(v detect.DeviceUse) bool { return v.Device == use.Device }) {
				continue
			}
			var own cgroup.IOMax
			for _, m := range c.Group.Limits.IOMax {
				if m.Device == use.Device {
					own = m
				}
			}
			m := cgroup.IOMax{Device: use.Device, ReadBPS: throttled(use.Read, own.ReadBPS), WriteBPS: throttled(use.Written, own.WriteBPS)}
			if m.ReadBPS > 0 || m.WriteBPS > 0 {
				to.IOMax = append(to.IOMax, m)
			}
		}
		if len(to.IOMax) == 0 {
			return to, fmt.Sprintf("it uses no disk of the victim's by more than %d MiB/s", leastIO>>20)
		}
		return to, ""
	},
	Amount: func(l cgroup.Limits) string {
		var parts []string
		for _, m := range l.IOMax {
			for _, of := range []struct {
				words string
				bps   int64
			}{{"reads", m.ReadBPS}, {"writes", m.WriteBPS}} {
				if of.bps > 0 {
					parts = append(parts, fmt.Sprintf("%s %.1f MiB/s on %s", of.words, float64(of.bps)/(1<<20), m.Device))
				}
			}
		}
		return strings.Join(parts, ", ")
	},
}

// halved is half of a limit, down to the least; 0 is none.
func halved(bps int64) int64 {
	if bps <= leastIO {
		return bps
	}
	return max(bps/2, leastIO)
}

// throttled is a limit of half of what is used per second; 0 where that is little, or where
// the own limit is lower.
func throttled(use float64, own int64) int64 {
	to := int64(max(use/2, leastIO))
	if use <= leastIO || own > 0 && own <= to {
		return 0
	}
	return to
}

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

// processWeight has processes in no group yield the CPU (SCHED_IDLE, or nice 19 where that is
// not allowed, whatever groups can have). It weighs them against the groups at the root of the
// tree, as they compete there. New processes are added by a further step.
var processWeight = Remedy{
	Name:      detect.ProcessWeight,
	Knobs:     weight.Knobs,
	Processes: true,
	Yields:    true,
	Propose: func(c *Case) (to cgroup.Limits, reason string) {
		if c.Held != nil && c.More {
			return *c.Held, ""
		}
		of := *c
		of.Host.NoIdle = ""
		return weight.Propose(&of)
	},
	Amount: func(l cgroup.Limits) string {
		if l.Idle == cgroup.On {
			return "SCHED_IDLE"
		}
		return fmt.Sprintf("weight %d by nice", l.Weight)
	},
	Sentence: func(group string, l cgroup.Limits) string {
		if l.Idle == cgroup.On {
			return group + " run only when nobody else wants to"
		}
		return fmt.Sprintf("%s have CPU weight %d, by nice", group, l.Weight)
	},
}

// processCPUs has processes in no group run on fewer CPUs.
var processCPUs = Remedy{
	Name:      detect.ProcessCPUs,
	Knobs:     shrinkCPUs.Knobs,
	Processes: true,
	Propose: func(c *Case) (to cgroup.Limits, reason string) {
		if c.Held != nil && c.More {
			return *c.Held, ""
		}
		return shrinkCPUs.Propose(c)
	},
	Weaker: shrinkCPUs.Weaker,
	Amount: shrinkCPUs.Amount,
	Sentence: func(group string, l cgroup.Limits) string {
		return fmt.Sprintf("%s run on CPUs %s only", group, l.CPUs)
	},
}
