package lab

import (
	"fmt"
	"math"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/sched"
)

// schedBackend is the name of the lesser backend.
const schedBackend = "sched"

// attributes is the lesser backend, for a process that may not make groups:
// affinity for cpusets, nice for weights, SCHED_IDLE for cpu.idle. It acts on
// threads, not on the party as a whole, and cannot limit CPU time.
type attributes struct {
	note   string
	shared cpuset.Set
	pids   map[party]int
	given  map[party]sched.Attr // what isolate ordered
}

func openAttributes(pl places, note string) *attributes {
	return &attributes{note: note, shared: pl.shared, pids: map[party]int{}}
}

func (a *attributes) about() (name, note string) {
	return schedBackend, "affinity, nice and SCHED_IDLE of each thread instead of control groups: " + a.note
}

func (a *attributes) admit(p party, pid int) error {
	a.pids[p] = pid
	at := a.given[p]
	if at.Affinity.IsEmpty() {
		at.Affinity = a.shared
	}
	_, err := sched.Set(pid, at)
	return err
}

// attr is an order as scheduling attributes.
func attr(o order) (sched.Attr, error) {
	var at sched.Attr
	if o.quota > 0 {
		return at, &kernel.NotSupportedError{
			Feature: "cpu.max", Reason: "CPU time is limited by control groups only",
			Remedy: "run as root, or in a group delegated to you: systemd-run --user --scope -p Delegate=yes",
		}
	}
	at.Affinity = o.cpus
	if o.idle {
		at.Policy = sched.Idle
	}
	if o.weight > 0 {
		nice := niceOf(o.weight)
		at.Policy, at.Nice = sched.Other, &nice
	}
	return at, nil
}

// isolate remembers what to set on the parties when they come. What is set on a
// process ends with it, so that undo only forgets.
func (a *attributes) isolate(given map[party]order) (undo func() error, err error) {
	attrs := map[party]sched.Attr{}
	for p, o := range given {
		if attrs[p], err = attr(o); err != nil {
			return nil, err
		}
	}
	a.given = attrs
	return func() error { a.given = nil; return nil }, nil
}

// niceOf is the nice value whose weight stands in about the same ratio to nice 0
// as weight does to 100: one step is a factor of 1.25 (sched_prio_to_weight).
func niceOf(weight uint64) int {
	steps := math.Log(100/float64(weight)) / math.Log(1.25)
	return min(max(int(math.Round(steps)), -20), 19)
}

func (a *attributes) preview(given map[party]order) (string, error) {
	var b strings.Builder
	for _, p := range []party{tenantParty, neighbourParty} {
		o, ok := given[p]
		if !ok {
			continue
		}
		at, err := attr(o)
		if err != nil {
			return "", err
		}
		if !at.Affinity.IsEmpty() {
			fmt.Fprintf(&b, "every thread of the %s: affinity %s\n", p, at.Affinity)
		}
		if at.Policy != sched.Leave {
			fmt.Fprintf(&b, "every thread of the %s: %s", p, at.Policy)
			if at.Nice != nil {
				fmt.Fprintf(&b, " nice %d", *at.Nice)
			}
			b.WriteByte('\n')
		}
	}
	return b.String(), nil
}

// knobs reads the scheduling of each party's first thread.
func (a *attributes) knobs() ([]Knob, error) {
	var all []Knob
	for _, p := range []party{tenantParty, neighbourParty} {
		pid, ok := a.pids[p]
		if !ok {
			continue
		}
		state, err := sched.Get(pid)
		if err != nil {
			return nil, err
		}
		all = append(all, Knob{string(p), "scheduling", state.String()}, Knob{string(p), "affinity", state.Affinity.String()})
	}
	return all, nil
}

func (a *attributes) usage(p party) (Usage, error) { return processUsage(a.pids[p]) }

func (a *attributes) dismiss(p party) { delete(a.pids, p) }

func (a *attributes) close() error { return nil }
