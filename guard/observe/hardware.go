package observe

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/hardware"
)

// Hardware reads the counters of the whole host, for agent/web: what lies in
// last-level caches and goes to memory, by cache, and the cycles and instructions
// of all CPUs. It is for one goroutine at a time.
type Hardware struct {
	began    time.Time
	caches   *hardware.Caches // or nil
	noCaches error
	cycles   *hardware.Counter // or nil
	noCycles error
}

// OpenHardware opens what there is of them below a root directory; Why says why
// the rest is not there.
func OpenHardware(root string) *Hardware {
	root = cmp.Or(root, "/")
	h := &Hardware{began: time.Now()}
	h.caches, h.noCaches = hardware.OpenCaches(hardware.Resctrl(filepath.Join(root, hardware.ResctrlDir)))
	h.cycles, h.noCycles = openCycles(root)
	return h
}

func openCycles(root string) (*hardware.Counter, error) {
	if filepath.Clean(root) != "/" {
		return nil, &kernel.NotSupportedError{Feature: hardware.HardwareEvents.String(), Reason: "the root directory is not that of the running kernel"}
	}
	text, err := fs.ReadFile(os.DirFS(root), hardware.CPUDir+"/online")
	if err != nil {
		return nil, fmt.Errorf("open hardware counters: %w", err)
	}
	cpus, err := cpuset.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("open hardware counters: %w", err)
	}
	return hardware.OpenCounter(hardware.CounterConfig{CPUs: cpus, Set: hardware.HardwareEvents, Only: []watch.Quantity{watch.Cycles, watch.Instructions}})
}

// Sample appends the host's LLCOccupancy, Bandwidth and BandwidthLocal by Cache and
// its Cycles and Instructions. What is not there is left out. A source that fails
// is not read again.
func (h *Hardware) Sample(to []watch.Sample) ([]watch.Sample, error) {
	now := watch.Time(time.Since(h.began))
	var errs []error
	if h.caches != nil {
		var err error
		if to, err = h.caches.Read(now, to); err != nil {
			errs = append(errs, err, h.caches.Close())
			h.caches, h.noCaches = nil, err
		}
	}
	if h.cycles != nil {
		var err error
		if to, err = h.cycles.Read(now, to); err != nil {
			errs = append(errs, err, h.cycles.Close())
			h.cycles, h.noCycles = nil, err
		}
	}
	return to, errors.Join(errs...)
}

// Why says why the last sample had none of a quantity; nil where that is not
// known.
func (h *Hardware) Why(q watch.Quantity) error {
	switch q {
	case watch.LLCOccupancy, watch.Bandwidth, watch.BandwidthLocal:
		if h.caches != nil {
			return h.caches.Why(q)
		}
		return h.noCaches
	case watch.Cycles, watch.Instructions:
		if h.cycles != nil {
			return h.cycles.Missing()[q]
		}
		return h.noCycles
	}
	return nil
}

// Close closes what is open.
func (h *Hardware) Close() error {
	var errs []error
	if h.caches != nil {
		errs = append(errs, h.caches.Close())
	}
	if h.cycles != nil {
		errs = append(errs, h.cycles.Close())
	}
	h.caches, h.cycles = nil, nil
	return errors.Join(errs...)
}
