package hardware

import (
	"golang.org/x/sys/unix"

	"berth.dev/berth/watch"
)

// EventSet is events that are counted together: all or none of them have the CPU's
// counters at any time, so that their ratios hold.
type EventSet uint8

// The sets.
const (
	// HardwareEvents is cycles, instructions, and references and misses of the
	// last-level cache as the kernel's generic events know them: of the CPUs that
	// have no such event, AMD's since Zen count those of the L2 cache.
	HardwareEvents EventSet = iota
	// SoftwareEvents is context switches, migrations and page faults, which the kernel
	// counts itself.
	SoftwareEvents
)

// eventSets is the table of sets. The first event leads the others.
var eventSets = [...]struct {
	name   string
	kind   uint32 // as perf_event_open(2) calls it
	events []perfEvent
}{
	HardwareEvents: {"hardware counters", unix.PERF_TYPE_HARDWARE, []perfEvent{
		{unix.PERF_COUNT_HW_CPU_CYCLES, watch.Cycles},
		{unix.PERF_COUNT_HW_INSTRUCTIONS, watch.Instructions},
		{unix.PERF_COUNT_HW_CACHE_REFERENCES, watch.LLCReferences},
		{unix.PERF_COUNT_HW_CACHE_MISSES, watch.LLCMisses},
	}},
	SoftwareEvents: {"software events", unix.PERF_TYPE_SOFTWARE, []perfEvent{
		{unix.PERF_COUNT_SW_CPU_CLOCK, watch.CPUTime},
		{unix.PERF_COUNT_SW_CONTEXT_SWITCHES, watch.Switches},
		{unix.PERF_COUNT_SW_CPU_MIGRATIONS, watch.Migrations},
		{unix.PERF_COUNT_SW_PAGE_FAULTS, watch.PageFaults},
	}},
}

// perfEvent is one of the kernel's, and what it counts.
type perfEvent struct {
	config   uint64
	quantity watch.Quantity
}

// String returns "hardware counters" or "software events".
func (s EventSet) String() string { return eventSets[s].name }
