package observe

import (
	"cmp"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/hardware"
)

// Hardware reads the counters of the whole host, for agent/web: what lies in
// last-level caches and goes to memory, by cache, the cycles and instructions
// of all CPUs, and the energy of the processors. It is for one goroutine at a time.
type Hardware struct {
	began time.Time
	*Readers
}

// OpenHardware opens what there is of them below a root directory; Why says why
// the rest is not there.
func OpenHardware(root string) *Hardware {
	site := &Site{Root: cmp.Or(root, "/")}
	r := site.Open("", site.online(), []Source{
		{Name: "cache and bandwidth", Open: func(s *Site, _ string, _ cpuset.Set) (Reader, error) {
			return hardware.OpenCaches(s.resctrl())
		}},
		{Name: "hardware counters", Open: func(s *Site, group string, cpus cpuset.Set) (Reader, error) {
			return s.openPerf(group, cpus, hardware.HardwareEvents, watch.Cycles, watch.Instructions)
		}},
		{Name: energy, Open: openEnergy},
	})
	r.Retry()
	return &Hardware{time.Now(), r}
}

// Sample appends the host's LLCOccupancy, Bandwidth and BandwidthLocal by Cache, its Cycles
// and Instructions, EnergyPackages and EnergyMemory. What is not there is left out. A source that fails
// is not read again.
func (h *Hardware) Sample(to []watch.Sample) []watch.Sample {
	return h.Read(watch.Time(time.Since(h.began)), to)
}

// Why says why the last sample had none of a quantity; nil where that is not
// known.
func (h *Hardware) Why(q watch.Quantity) error {
	source := 0
	switch q {
	case watch.LLCOccupancy, watch.Bandwidth, watch.BandwidthLocal:
	case watch.Cycles, watch.Instructions:
		source = 1
	case watch.EnergyPackages, watch.EnergyMemory:
		source = 2
	default:
		return nil
	}
	if r, ok := h.readers[source].(interface{ Why(watch.Quantity) error }); ok {
		return r.Why(q)
	}
	return h.why[source]
}
