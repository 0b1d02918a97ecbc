package control

import (
	"context"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

// Input is what a window has told.
type Input struct {
	// Findings are those of the window that ends now.
	Findings []detect.Finding
	// Symptoms says how strong symptoms are in that window; a *detect.Detector
	// does. Nil is a window without any signal.
	Symptoms Symptoms
	// Workloads are all groups that the loop may know of: victims, suspects, and
	// groups that hold nothing but best-effort work (berth-idle,
	// kubepods/besteffort), which may lie around others. A group that is not among
	// them is never acted on. Of groups that lie within each other, the use of the
	// outer one includes that of the inner.
	Workloads []Workload
	Host      Host
	// Elsewhere reports whether another loop has a knob (Loop.Has), which is left to it
	// then; nil is without another loop.
	Elsewhere func(Action) bool
}

// Symptoms says how much a workload lacks a resource by the last window; false
// where the signals are missing.
type Symptoms interface {
	Symptom(group string, r detect.Resource) (detect.Symptom, bool)
}

// Workload is what the loop has to know of a control group.
type Workload struct {
	// Group is its name, the same as in findings.
	Group string
	Class place.Class
	// Protected groups are never acted on, nor is a group around one. The caller
	// sets it for groups with real-time tasks, too, which weights and caps do not
	// reach or would hurt.
	Protected bool
	// CPUs are those it may run on without what the loop did; empty is all of the
	// host.
	CPUs cpuset.Set
	// Use is its CPU time per second in the last window, in CPUs; NaN if unknown.
	Use float64
	// Memory is what it has in use, in bytes; 0 is unknown.
	Memory int64
	// Limits are what it has without what the loop did.
	Limits Limits
}

// Limits are the settings of a workload that the loop has to know.
type Limits struct {
	// Idle is cpu.idle, Weight cpu.weight on the v2 scale; 0 is the default of 100.
	Idle   bool
	Weight int
	// Quota is the CPU time that it may use per Period; 0 is no limit.
	Quota, Period time.Duration
	// IOWeight is io.weight; 0 is the default of 100.
	IOWeight int
}

// Host is what the loop has to know of the host in the last window.
type Host struct {
	// CPUs are those that are online.
	CPUs cpuset.Set
	// Use is the CPU time that everything used per second, in CPUs; NaN if unknown.
	Use float64
	// Unavailable says, of remedies that this host does not have, why: "no resctrl:
	// not mounted".
	Unavailable map[detect.Remedy]string
	// NoIdle says why cpu.idle cannot be used and the lowest weight has to do;
	// "" if it can (Linux 5.15).
	NoIdle string
}

// Actuator does what the loop decides. Its methods are called one at a time.
// Being safe against crashes is its duty: it notes the way back before it
// writes (kernel.OpenLedger).
//
// An error means that what was in force before is in force still, as far as the
// Actuator could see to that; the loop calls Apply with that, or Revert, once
// more. An error that is fs.ErrNotExist, for a group that is gone, counts as
// reverted.
type Actuator interface {
	// Apply puts an action into force, in place of an earlier one of the same
	// remedy and group, and returns what it changed.
	Apply(ctx context.Context, a Action) ([]Change, error)
	// Revert gives back what the group had before the first Apply of the remedy.
	// Reverting what is not in force is no error.
	Revert(ctx context.Context, a Action) ([]Change, error)
	// Preview returns what Apply would change, and changes nothing.
	Preview(ctx context.Context, a Action) ([]Change, error)
}

// Change is one value that is or would be written. For what is no file, Path
// names the object in words.
type Change struct {
	Path string `json:"path"`
	From string `json:"from"`
	To   string `json:"to"`
}
