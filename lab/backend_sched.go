package lab

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// schedBackend is the name of the lesser backend.
const schedBackend = "sched"

// attributes is the lesser backend, for a process that may not make groups:
// affinity for cpusets, nice for weights, SCHED_IDLE for the idle class. It acts on
// threads, not on the role as a whole, and cannot limit CPU time.
type attributes struct {
	shared cpuset.Set
	pids   map[Role]int
	given  map[Role]sched.Attr // for the processes attached from now on
}

func openAttributes(pl places) *attributes {
	return &attributes{shared: pl.shared, pids: map[Role]int{}}
}

func (a *attributes) attach(r Role, pid int) error {
	if r != generator { // whose usage is counted apart
		a.pids[r] = pid
	}
	at := a.given[r]
	if at.Affinity.IsEmpty() {
		at.Affinity = a.shared
	}
	_, err := sched.Set(pid, at)
	return err
}

// attr is the settings of a role as scheduling attributes. Memory nodes are left to
// the kernel, which allocates where a thread runs.
func attr(l cgroup.Limits) (sched.Attr, error) {
	var at sched.Attr
	if l.Quota > 0 {
		return at, &kernel.NotSupportedError{
			Feature: "limit of CPU time", Reason: "CPU time is limited by control groups only",
			Remedy: "run as root, or in a group delegated to you: systemd-run --user --scope -p Delegate=yes",
		}
	}
	for id := range l.Settings() {
		if c := id.Knob.Controller; c != "cpu" && c != "cpuset" {
			return at, &kernel.NotSupportedError{
				Feature: id.Knob.Words + " of the " + c + " controller", Reason: "memory and I/O are limited by control groups only", Remedy: "run as root, or in a group delegated to you",
			}
		}
	}
	at.Affinity = l.CPUs
	if l.Idle == cgroup.On {
		at.Policy = sched.Idle
	}
	if l.Weight > 0 {
		nice := niceOf(l.Weight)
		at.Policy, at.Nice = sched.Other, &nice
	}
	return at, nil
}

// plan sets the affinity of the tenant, or the servers, and remembers what to set on a
// neighbour when it is attached: an ordinary user may not undo nice and SCHED_IDLE, which
// end with the process. Without control groups all are together at all times.
func (a *attributes) plan(s Settings, _ bool) (change, error) {
	var b strings.Builder
	given := map[Role]sched.Attr{}
	for _, r := range slices.Backward(slices.Sorted(maps.Keys(s))) { // the tenant first
		at, err := attr(s[r])
		if err != nil {
			return change{}, err
		}
		given[r] = at
		if !at.Affinity.IsEmpty() {
			fmt.Fprintf(&b, "every thread of the %s: affinity %s\n", r, at.Affinity)
		}
		if at.Policy != sched.Leave {
			fmt.Fprintf(&b, "every thread of the %s: %s", r, at.Policy)
			if at.Nice != nil {
				fmt.Fprintf(&b, " nice %d", *at.Nice)
			}
			b.WriteByte('\n')
		}
	}
	return change{b.String(), func() (func() error, error) {
		undo := func() error { return nil }
		for _, r := range slices.Sorted(maps.Keys(given)) {
			pid, lives := a.pids[r]
			if !lives || r == Neighbour {
				continue
			}
			for _, p := range tree(pid) {
				back, err := sched.Set(p, given[r])
				if err != nil {
					return nil, errors.Join(err, undo())
				}
				before := undo
				undo = func() error { return errors.Join(back(), before()) }
			}
		}
		a.given = given
		return func() error { a.given = nil; return undo() }, nil
	}}, nil
}

// niceOf is the nice value whose weight stands in about the same ratio to nice 0
// as weight does to 100: one step is a factor of 1.25 (sched_prio_to_weight).
func niceOf(weight int) int {
	steps := math.Log(100/float64(weight)) / math.Log(1.25)
	return min(max(int(math.Round(steps)), -20), 19)
}

// knobs reads the scheduling of each role's first thread.
func (a *attributes) knobs() ([]Knob, error) {
	var all []Knob
	for _, r := range slices.Backward(slices.Sorted(maps.Keys(a.pids))) { // the tenant first
		state, err := sched.Get(a.pids[r])
		if err != nil {
			return nil, err
		}
		all = append(all, Knob{string(r), "scheduling", state.String()}, Knob{string(r), "affinity", state.Affinity.String()})
	}
	return all, nil
}

func (a *attributes) statistics(Role, ...cgroupstat.Signal) (map[watch.Quantity]float64, error) {
	return nil, nil
}

func (a *attributes) usage(r Role) (Usage, error) { return processUsage(a.pids[r]) }

func (a *attributes) used() (float64, error) { return processesUsed(a.pids) }

func (a *attributes) stands(r Role, pid int) error {
	a.pids[r] = pid
	return nil
}

func (a *attributes) detach(r Role) { delete(a.pids, r) }

func (a *attributes) lasting(r Role) string {
	at, ok := a.given[r]
	if !ok {
		return ""
	}
	nice := 0
	if at.Nice != nil {
		nice = *at.Nice
	}
	return fmt.Sprintf("%s nice %d on %s", at.Policy, nice, at.Affinity)
}

func (a *attributes) group(Role) cgroup.Group { return cgroup.Group{} }

func (a *attributes) close() error { return nil }
