package control

import (
	"context"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// Input is what the loop knows of a window.
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
	// Near says that the window is one of the short ones, of the length Config.Near.
	// Findings may hold some of the other windows, too: they explain others.
	Near bool
	// Closely reports whether a victim's lack of a resource is judged, and acted on, by the
	// short windows; nil is that none is.
	Closely func(victim string, r detect.Resource) bool
	// Resting says that no short windows come now: what is active for the victims that are
	// judged by those stays, by the rules and with the floors, and nothing is tried.
	Resting bool
}

// Symptoms says how much a workload lacks a resource by the last window; false
// where the signals are missing.
type Symptoms interface {
	Symptom(group string, r detect.Resource) (detect.Symptom, bool)
	// RunDelay is how long the workload waits for a CPU by the last windows, and which
	// part of that is a suspect's; false where the signals are missing.
	RunDelay(group, suspect string, windows int) (detect.RunDelay, bool)
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
	// Why says why, for events; it may be "".
	Why string
	// CPUs are those it may run on without what the loop did; empty is all of the
	// host.
	CPUs cpuset.Set
	// Use is its CPU time per second in the last window, in CPUs; NaN if unknown.
	Use float64
	// Recent is that of the last few short windows; nil if unknown.
	Recent *float64
	// Memory is what it has in use, in bytes; 0 is unknown.
	Memory int64
	// Devices are the block devices that it uses, and how much.
	Devices []detect.DeviceUse
	// Limits are what it has without what the loop did: Idle, Weight, Quota and Period,
	// IOWeight and the bytes per second of IOMax count.
	Limits cgroup.Limits
	// Cache is what it has of caches and memory bandwidth without what the loop did. It is known
	// of suspects that findings about these name.
	Cache Cache
	// Traffic is how many bytes per second it moves between its busiest last-level cache and
	// memory; 0 is unknown.
	Traffic float64
	// Link is the number of the network link that it waits for, 0 if it waits for none. Sending is what
	// a suspect may send over those of its victims.
	Link    int
	Sending []Sending
	// NoIdle says why cpu.idle must not be set on this group; "" if it may. The lowest weight
	// has to do then.
	NoIdle string
	// Processes are, of detect.Outside alone, the processes in no group that may be acted on:
	// those that use most. Without any it is never acted on.
	Processes []Process
	// Writer is who else writes settings of the group, for events: "the kubelet"; "" is not
	// known.
	Writer string
}

// recently is its use by the newest windows.
func (w *Workload) recently() float64 {
	if w.Recent != nil {
		return *w.Recent
	}
	return w.Use
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
// writes (kernel.OpenUndoLog).
//
// An error means that what was active before is active still, as far as the
// Actuator could see to that; the loop calls Apply with that, or Revert, once
// more. An error that is fs.ErrNotExist, for a group that is gone, counts as
// reverted.
type Actuator interface {
	// Apply applies an action, in place of an earlier one of the same
	// remedy and group, and returns what it changed.
	Apply(ctx context.Context, a Action) ([]Change, error)
	// Revert restores what the group had before the first Apply of the remedy.
	// Reverting what is not active is no error.
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
	// Process is whose value it is, of an action on processes.
	Process Process `json:"-"`
}
