package control

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
	"berth.dev/berth/machine"
)

// Remedy is something that the loop does about a finding: a value in remedies.go or share.go.
// Name, Knobs, and Propose or Divide are needed; the zero values of the others work.
type Remedy struct {
	Name detect.Remedy
	// Knobs names the settings that it changes, rows of the table in kernel/knob: where two
	// actions differ in several, the first decides which one is stronger.
	Knobs []string
	// Gives says that it gives the group more; others take from it.
	Gives bool
	// Below says that groups below the group change with it.
	Below bool
	// Weighs says that it sets a weight only, which Config.Weigh allows against more
	// groups.
	Weighs bool
	// Processes says that it acts on processes in no group; others act on groups.
	Processes bool
	// Yields says that a group has the CPU only when no other wants it. It keeps what is
	// left, which is no floor: nothing, where the others fill the CPUs.
	Yields bool
	// Delay is how long it takes to act: memory is reclaimed bit by bit.
	Delay time.Duration
	// Target returns the group whose setting changes, or why not; nil is the
	// suspect.
	Target func(victim, suspect string) (group, reason string)
	// Propose returns the next settings, or why not.
	Propose func(c *Case) (to cgroup.Limits, reason string)
	// Weaker returns settings on the way back from some to those of the step before, or to
	// the original ones; false, or nil, is to go back at once.
	Weaker func(c *Case, from cgroup.Limits, before *cgroup.Limits) (to cgroup.Limits, ok bool)
	// Divide and Widen stand in for Propose and Weaker where the settings are a Share: by groups
	// of resctrl, or classes of network devices, in place of control groups.
	Divide func(c *Case) (to Share, reason string)
	Widen  func(c *Case, from Share, before *Share) (to Share, ok bool)
	// Amount says what the settings are: "weight 10". Sentence says it of a group.
	Amount   func(cgroup.Limits) string
	Sentence func(group string, l cgroup.Limits) string
}

// rows are the knobs of a remedy.
func (r *Remedy) rows() []*knob.Knob {
	var rows []*knob.Knob
	for _, name := range r.Knobs {
		rows = append(rows, knob.Find(name))
	}
	return rows
}

// Files returns the base names of the files that the remedy is written to.
func (r *Remedy) Files() (names []string) {
	for _, k := range r.rows() {
		if r.Processes {
			names = append(names, k.Process[0].Name)
			continue
		}
		names = append(names, k.Files()...)
	}
	return names
}

// Divides reports whether the settings are those of a group of resctrl.
func (r *Remedy) Divides() bool { return r.is(knob.Class) }

// Sends reports whether they are those of a class of a network device.
func (r *Remedy) Sends() bool { return r.is(knob.Sender) }

func (r *Remedy) is(kind knob.Kind) bool {
	rows := r.rows()
	return len(rows) > 0 && rows[0].Kind == kind
}

// Controller returns the cgroup controller that has the files, or "".
func (r *Remedy) Controller() string {
	for _, k := range r.rows() {
		return k.Controller
	}
	return ""
}

// Missing says why no group of a tree of that version of cgroups has the settings; nil is
// that they have them.
func (r *Remedy) Missing(version int) error {
	for _, k := range r.rows() {
		if len(k.FilesOf(version)) == 0 && !r.Processes {
			return &kernel.NotSupportedError{Feature: k.V2[0].Name, Reason: fmt.Sprintf("cgroup v%d has no such setting", version), Remedy: k.Needs}
		}
	}
	return nil
}

// stronger reports whether settings take more away than others; it is not for a remedy that Gives.
func (r *Remedy) stronger(a, b cgroup.Limits) bool {
	x, y := a.Settings(), b.Settings()
	both := maps.Clone(x)
	maps.Copy(both, y)
	for _, id := range both.IDs() {
		k := id.Knob
		if !slices.Contains(r.rows(), k) {
			continue
		}
		if order := k.Compare(cmp.Or(x[id], k.Default), cmp.Or(y[id], k.Default)); order != 0 {
			return order < 0
		}
	}
	return false
}

// Remedies returns those that the guard carries out.
func Remedies() []Remedy {
	return []Remedy{weight, headroomCap, shrinkCPUs, burst, memoryHigh, ioWeight, ioThrottle, cacheWays, bandwidthCap, sendCap, processWeight, processCPUs}
}

var builtIn = Remedies()

// find returns a remedy by its name, or nil.
func find(all []Remedy, name detect.Remedy) *Remedy {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// advice says, of remedies that the guard does not carry out, why.
func advice(name detect.Remedy) string {
	switch name {
	case detect.ExclusiveCPUs:
		return "it takes CPUs away from every other group: place the victim with class LSE"
	}
	return "it is not for the loop to decide"
}

// validate reports what no loop could work with.
func validate(all []Remedy) error {
	var errs []error
	for i := range all {
		r := &all[i]
		if r.Name == "" || (r.Propose == nil) == (r.Divide == nil) || len(r.Knobs) == 0 || slices.Contains(r.rows(), nil) {
			errs = append(errs, fmt.Errorf("remedy %d, %q: it has no name, proposes nothing, or changes no setting that there is", i, r.Name))
		} else if r.Processes && slices.ContainsFunc(r.rows(), func(k *knob.Knob) bool { return len(k.Process) == 0 }) {
			errs = append(errs, fmt.Errorf("remedy %d, %q: it changes a setting that processes do not have", i, r.Name))
		}
		if find(all[:i], r.Name) != nil {
			errs = append(errs, fmt.Errorf("remedy %q: there are two of the name", r.Name))
		}
	}
	return errors.Join(errs...)
}

// Case is what a remedy knows when it proposes: who suffers, from whom, and how host and
// groups are set and used without what the loop did.
type Case struct {
	Host    Host
	Machine *machine.Machine // nil where it is unknown
	// Victim is the workload that is to be helped, Group that whose setting changes, and
	// BestEffort whether that one may be squeezed.
	Victim, Group Workload
	BestEffort    bool
	// Held and HeldShare are the settings by this remedy's last step in the same case, nil if there is
	// none, and MemoryBefore the memory, in bytes, that Group had in use before the first.
	Held         *cgroup.Limits
	HeldShare    *Share
	MemoryBefore int64
	// More says that Group has processes that are not under Held.
	More bool
}

const furthest = "it goes no further"

// same reports whether two actions set the same.
func same(a, b *Action) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Share == b.Share && reflect.DeepEqual(a.Limits, b.Limits) && slices.Equal(a.Processes, b.Processes)
}

// diverging is the Target of weights: they act between siblings.
func diverging(victim, suspect string) (group, reason string) {
	_, group, ok := Diverge(victim, suspect)
	if !ok {
		return "", "the two lie within each other"
	}
	return group, ""
}
