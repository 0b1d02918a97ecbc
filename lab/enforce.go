package lab

import (
	"math"
	"time"

	"berth.dev/berth/cpuset"
)

// party is one of the processes of a round.
type party string

const (
	tenantParty    party = "tenant"
	neighbourParty party = "neighbour"
	generatorParty party = "generator"
)

// enforcer puts parties into their places and tells the kernel what a scenario
// asks for. There are two: control groups, and scheduling attributes.
type enforcer interface {
	// about names the backend, and says why it is not a better one.
	about() (name, note string)
	// admit puts a fresh process where its party belongs.
	admit(p party, pid int) error
	// isolate gives the parties admitted from now on what they are ordered and
	// returns how to undo it. A kernel.NotSupportedError means that this host cannot.
	isolate(orders map[party]order) (undo func() error, err error)
	// preview says what isolate would do, one write per line.
	preview(orders map[party]order) (string, error)
	// knobs reads back what is in force.
	knobs() ([]Knob, error)
	// dismiss forgets a party that has ended.
	dismiss(p party)
	// usage reads what a party has used since it was admitted.
	usage(p party) (Usage, error)
	// close puts everything back.
	close() error
}

// order is what one party is given in a scenario; its zero value is nothing.
type order struct {
	weight uint64        // cpu.weight, 1-10000
	idle   bool          // cpu.idle
	quota  time.Duration // CPU time per quotaPeriod
	cpus   cpuset.Set
	mems   cpuset.Set
}

// quotaPeriod is the kernel's default period of cpu.max, which container
// runtimes leave as it is.
const quotaPeriod = 100 * time.Millisecond

// minQuota is the least that the kernel accepts (cgroup-v2.rst, cpu.max).
const minQuota = time.Millisecond

// orders fills in a scenario's numbers. left is the CPU time, in CPUs, that the
// tenant and the generator leave of the shared CPUs.
func orders(iso Isolation, pl places, left float64) map[party]order {
	o := order{weight: iso.Weight, idle: iso.Idle}
	if iso.Cap {
		o.quota = max(minQuota, time.Duration(math.Round(left*float64(quotaPeriod))).Truncate(time.Millisecond))
	}
	given := map[party]order{}
	if iso.Split {
		o.cpus, o.mems = pl.neighbour, pl.neighbourMems
		given[tenantParty] = order{cpus: pl.tenant, mems: pl.tenantMems}
	}
	if o != (order{}) {
		given[neighbourParty] = o
	}
	return given
}
