package kubelet

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// Checkpoint is what the CPU manager keeps over a restart.
type Checkpoint struct {
	Default  cpuset.Set            // the shared pool
	Assigned map[string]cpuset.Set // by container
}

// CheckpointError is a checkpoint with which the kubelet does not start.
type CheckpointError struct {
	Reason string // one of the constants below
	CPUs   cpuset.Set
}

// The reasons of a CheckpointError.
const (
	ReservedCount   = "reserved-count"   // as many CPUs are reserved as the list has
	ReservedMissing = "reserved-missing" // from the shared pool
	ReservedPresent = "reserved-present" // in the shared pool, with strict-cpu-reservation
	DefaultEmpty    = "default-empty"    // although something is assigned
	Overlap         = "overlap"          // of an assignment and the shared pool
	CPUsDiffer      = "cpus-differ"      // from those of the machine
)

func (e *CheckpointError) Error() string {
	return fmt.Sprintf("CPU manager state: %s: CPUs %s", e.Reason, e.CPUs)
}

// Check returns the checkpoint to start with: the one given if the kubelet would
// start with it, a new one if it is empty, else a *CheckpointError. reserved are
// the reserved CPUs, count is their number as the reserved CPU time tells; -1 is
// unknown.
func (p Policy) Check(t *place.Topology, reserved cpuset.Set, count int, c Checkpoint) (Checkpoint, error) {
	bad := func(reason string, cpus cpuset.Set) (Checkpoint, error) {
		return Checkpoint{}, &CheckpointError{reason, cpus}
	}
	known := c.Default
	for _, cpus := range c.Assigned {
		known = known.Union(cpus)
	}
	strict := cpuset.Set{}
	if p.StrictReservation {
		strict = reserved
	}
	switch {
	case count >= 0 && count != reserved.Len():
		return bad(ReservedCount, reserved)
	case c.Default.IsEmpty() && len(c.Assigned) == 0:
		return Checkpoint{Default: t.Online().Minus(strict), Assigned: map[string]cpuset.Set{}}, nil
	case c.Default.IsEmpty():
		return bad(DefaultEmpty, known)
	case c.Default.Overlaps(strict):
		return bad(ReservedPresent, c.Default.Intersect(strict))
	case !p.StrictReservation && !c.Default.Contains(reserved):
		return bad(ReservedMissing, reserved.Minus(c.Default))
	}
	for _, cpus := range c.Assigned {
		if cpus.Overlaps(c.Default) {
			return bad(Overlap, cpus.Intersect(c.Default))
		}
	}
	if all := known.Union(strict); all != t.Online() {
		return bad(CPUsDiffer, all.Minus(t.Online()).Union(t.Online().Minus(all)))
	}
	return c, nil
}
