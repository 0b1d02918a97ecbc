package detect

import (
	"maps"
	"math"
	"slices"

	"berth.dev/berth/watch"
)

// Usage returns the CPU time per second that a workload used between its last two samples,
// in CPUs, NaN if it is not known, and the memory that it had in use, in bytes, 0 if that is
// not known.
func (d *Detector) Usage(group string) (cpus float64, memory int64) {
	w := d.byGroup[group]
	if w == nil {
		return math.NaN(), 0
	}
	if at := w.find(watch.Memory, watch.Part{}, ""); at != nil {
		bytes, _, _ := at.series.Last(0)
		memory = int64(bytes)
	}
	return w.rate(watch.CPUTime), memory
}

// Traffic returns the bytes per second between a group's busiest last-level cache and memory
// by the last window; 0 where they are not known.
func (d *Detector) Traffic(group string) float64 {
	w := d.byGroup[group]
	if w == nil {
		return 0
	}
	at := w.busiest(watch.Bandwidth)
	if at == nil {
		return 0
	}
	v, _ := at.lately(w.from, w.to)
	if !(v > 0) {
		return 0
	}
	return v
}

// DeviceUse is what a workload reads and writes per second on one block device.
type DeviceUse struct {
	Device        string // "MAJOR:MINOR"
	Read, Written float64
}

// DeviceUse returns what a workload reads and writes per second, by rising device, over the
// last window or, where that is silent, the last ten.
func (d *Detector) DeviceUse(group string) (all []DeviceUse) {
	w := d.byGroup[group]
	if w == nil {
		return nil
	}
	of := map[int]*DeviceUse{}
	for i := range w.all {
		at := &w.all[i]
		if at.quantity != watch.IORead && at.quantity != watch.IOWritten || at.part.Kind != watch.Device {
			continue
		}
		use := of[at.part.ID]
		if use == nil {
			use = &DeviceUse{Device: at.part.String()}
			of[at.part.ID] = use
		}
		if v, _ := at.lately(w.from, w.to); v > 0 && at.quantity == watch.IORead {
			use.Read = v
		} else if v > 0 {
			use.Written = v
		}
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		if of[id].Read > 0 || of[id].Written > 0 {
			all = append(all, *of[id])
		}
	}
	return all
}

// HostUse returns likewise the CPU time per second that everything used.
func (d *Detector) HostUse() float64 { return d.host.rate(watch.CPUTime) }
