package place

import (
	"fmt"

	"berth.dev/berth/cpuset"
)

// Refusal is implemented by all errors of this package: a request was refused. Kind
// is the one word for the error in scenarios, in results and over the wire.
type Refusal interface {
	error
	Kind() string
}

// Refusals returns one Refusal of each kind.
func Refusals() []Refusal {
	return []Refusal{
		&InvalidError{}, &CPUsError{}, &SMTError{}, &NUMAError{}, &MemoryError{}, &DeviceError{},
		&FloorError{}, &ConflictError{}, &RejectedError{}, &StaleError{}, &NotHeldError{}, &HeldError{},
	}
}

// Kind implements Refusal.
func (*InvalidError) Kind() string  { return "invalid" }
func (*CPUsError) Kind() string     { return "not-enough-cpus" }
func (*SMTError) Kind() string      { return "smt-alignment" }
func (*NUMAError) Kind() string     { return "numa" }
func (*MemoryError) Kind() string   { return "memory" }
func (*DeviceError) Kind() string   { return "device" }
func (*FloorError) Kind() string    { return "floor" }
func (*ConflictError) Kind() string { return "conflict" }
func (*RejectedError) Kind() string { return "rejected" }
func (*StaleError) Kind() string    { return "stale" }
func (*NotHeldError) Kind() string  { return "not-held" }
func (*HeldError) Kind() string     { return "held" }

// InvalidError is a request or a configuration that makes no sense on any machine.
type InvalidError struct{ ID, Reason string }

func (e *InvalidError) Error() string { return fmt.Sprintf("request %q: %s", e.ID, e.Reason) }

// CPUsError is too few CPUs for a request.
type CPUsError struct {
	Asked, Available int // CPUs; milli-CPU if Milli
	Milli            bool
	Rule             Rule // what left less than is free, if anything did
}

// Rule is a rule of a policy that leaves a request fewer CPUs than are free.
type Rule struct {
	Text   string     // a clause, with the setting that changes it in parentheses
	Within cpuset.Set // the CPUs that it leaves; empty is all
	Alone  bool       // it refuses the request whoever has the CPUs
}

func (e *CPUsError) Error() string {
	text := fmt.Sprintf("not enough CPUs: %d asked, %d available", e.Asked, e.Available)
	if e.Milli {
		text = fmt.Sprintf("not enough CPUs: %s asked, %s available", Milli(e.Asked), Milli(e.Available))
	}
	if e.Rule.Text != "" {
		text += ": " + e.Rule.Text
	}
	return text
}

// SMTError is a request that whole physical cores cannot serve.
type SMTError struct {
	Asked, PerCore int
	Available      int    // free CPUs in cores that may be taken whole
	Setting        string // that whole cores are asked for by
}

func (e *SMTError) Error() string {
	text := fmt.Sprintf("SMT alignment: %d CPUs asked, %d available in whole cores", e.Asked, e.Available)
	if e.PerCore > 1 && e.Asked%e.PerCore != 0 {
		text = fmt.Sprintf("SMT alignment: %d CPUs asked, not a multiple of the %d CPUs of a core", e.Asked, e.PerCore)
	}
	if e.Setting != "" {
		text += " (" + e.Setting + ")"
	}
	return text
}

// NUMAError is a request that the NUMA nodes cannot serve as it demands.
type NUMAError struct {
	Nodes  cpuset.Set // the nodes looked at; empty if not about certain ones
	Reason string
}

func (e *NUMAError) Error() string {
	if e.Nodes.IsEmpty() {
		return "NUMA alignment: " + e.Reason
	}
	return fmt.Sprintf("NUMA alignment on nodes %s: %s", e.Nodes, e.Reason)
}

// MemoryError is too little of a NUMA node's resource.
type MemoryError struct {
	Resource         string
	Asked, Available int64 // bytes
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("not enough %s: %s asked, %s available", e.Resource, Bytes(e.Asked), Bytes(e.Available))
}

// DeviceError is a device that does not exist, is held or asked for twice, or is too few of a kind.
type DeviceError struct{ Device, Reason string }

func (e *DeviceError) Error() string { return fmt.Sprintf("device %q: %s", e.Device, e.Reason) }

// FloorError is a change that would leave a workload without any CPU.
type FloorError struct {
	CPUs cpuset.Set // the CPUs that must stay shared
}

func (e *FloorError) Error() string {
	return "not enough CPUs are left to share"
}

// ConflictError is a grant that takes CPUs, memory or devices that another grant
// holds, or that may not be taken. A policy that gets it from Commit has a defect, unless the grant
// was saved on another machine or under another configuration.
type ConflictError struct {
	ID     string
	CPUs   cpuset.Set
	Reason string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("grant %q: CPUs %s: %s", e.ID, e.CPUs, e.Reason)
}

// RejectedError is a request that a policy refuses by its own rules.
type RejectedError struct {
	ID, Reason string
	Short      bool       // more free CPUs would have helped
	Within     cpuset.Set // where; empty is anywhere
}

func (e *RejectedError) Error() string { return fmt.Sprintf("request %q: %s", e.ID, e.Reason) }

// StaleError is an offer made on a state that is no longer the current one.
type StaleError struct {
	Offered, Current uint64 // generations
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("stale offer: made on generation %d, the state is at %d", e.Offered, e.Current)
}

// NotHeldError is an id that the state does not know.
type NotHeldError struct{ ID string }

func (e *NotHeldError) Error() string { return fmt.Sprintf("workload %q: holds nothing", e.ID) }

// HeldError is an id that already holds a grant.
type HeldError struct{ ID string }

func (e *HeldError) Error() string { return fmt.Sprintf("workload %q: already holds a grant", e.ID) }
