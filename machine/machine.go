// Package machine describes the hardware: CPUs, the domains they share
// (socket, die, NUMA node, L3, L2, core), memory and distances.
//
// It does no I/O: machine/sysfs reads a Machine from /sys or from lscpu, Short
// builds one from a short form such as "2s4n16c2t". A Machine is read-only;
// after a hot-plug, read a new one.
//
// Nothing here assumes how domains nest. A NUMA node may be part of a socket
// or span several, an L3 may be shared by a quarter of a node or by two dies,
// cores may have one thread or two, nodes may have memory and no CPUs. Every
// domain carries its CPUs, and containment is computed from those sets.
package machine

import (
	"strconv"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
)

// Kind names a kind of domain.
type Kind = plain.Enum[kindWords]

// The kinds of domain, from the widest to the narrowest as they usually nest.
const (
	Socket Kind = iota
	Die
	Node // NUMA node
	L3
	L2
	Core
)

type kindWords struct{}

func (kindWords) Words() []string { return kindNames }

var kindNames = []string{"socket", "die", "node", "l3", "l2", "core"}

// Kinds returns every kind, from Socket to Core.
func Kinds() []Kind { return []Kind{Socket, Die, Node, L3, L2, Core} }

// Machine is one host's hardware.
type Machine struct {
	// Name says where the description comes from: a host name, a file, a short form.
	Name string `json:"name,omitempty"`
	// Model is the processor's name as the vendor writes it, if known.
	Model string `json:"model,omitempty"`
	// Online, Offline and Isolated are CPU sets. Offline CPUs are present but
	// in no domain (the kernel removes their topology). The scheduler does not
	// balance onto isolated ones (isolcpus=, isolated partitions); isolcpus=
	// may name offline CPUs too.
	Online   cpuset.Set `json:"online"`
	Offline  cpuset.Set `json:"offline,omitzero"`
	Isolated cpuset.Set `json:"isolated,omitzero"`
	// SMT is the kernel's smt/control: "on", "off", "forceoff", "notsupported"
	// or "notimplemented"; "" if unknown.
	SMT string `json:"smt,omitempty"`
	// CPUs describes each online CPU, by rising number.
	CPUs []CPU `json:"cpus"`
	// Domains are ordered by kind, then id. A kind that is missing in the source
	// has no domains.
	Domains []Domain `json:"domains"`
	// Distances is NUMA distance (SLIT, 10 = local) by position in
	// ByKind(Node): Distances[i][j] is from the i-th node to the j-th. Nil if
	// unknown.
	Distances [][]int `json:"distances,omitempty"`
}

// CPU is one logical CPU (a hardware thread).
type CPU struct {
	ID int `json:"id"`
	// Kind is the kind of core of a hybrid machine: "P", "E" or "LP"; "" if all
	// cores are alike or differ in Capacity only.
	Kind string `json:"kind,omitempty"`
	// Capacity is the kernel's cpu_capacity (1024 = the fastest), 0 if unknown.
	Capacity int `json:"capacity,omitempty"`
	// BaseKHz is cpufreq's base_frequency or ACPI CPPC's nominal_freq, MaxKHz
	// is cpufreq's cpuinfo_max_freq; in kHz, 0 if unknown.
	BaseKHz int `json:"baseKHz,omitempty"`
	MaxKHz  int `json:"maxKHz,omitempty"`
}

// Domain is a set of CPUs that share something.
type Domain struct {
	Kind Kind `json:"kind"`
	// ID is unique among the domains of its kind. NUMA nodes have the kernel's
	// number; others are numbered from 0 by their lowest CPU.
	ID int `json:"id"`
	// CPUs are the online CPUs of the domain; empty for a memory-only node.
	CPUs cpuset.Set `json:"cpus"`
	// Bytes is the size of a cache (L2, L3) or of a NUMA node's memory, in
	// whole KiB as the kernel shows it; 0 if unknown, or for a node without memory.
	Bytes int64 `json:"bytes,omitempty"`
	// KernelID is the number that the kernel or firmware gives the domain
	// (physical_package_id, die_id, core_id, cache id; of the lowest CPU where
	// they disagree). It may repeat or have gaps; -1 is unknown.
	KernelID int `json:"kernelID"`
}

// Core kinds of hybrid machines, as CPU.Kind.
const (
	KindP  = "P"  // performance: sys/devices/cpu_core
	KindE  = "E"  // efficiency: sys/devices/cpu_atom
	KindLP = "LP" // low-power efficiency: sys/devices/cpu_lowpower
)

// String returns kind and number, as in "node 1".
func (d Domain) String() string { return d.Kind.String() + " " + strconv.Itoa(d.ID) }
