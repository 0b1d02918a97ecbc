package watch

import (
	"berth.dev/berth/internal/plain"
)

// Unit is the base unit of a value.
type Unit uint8

// The units.
const (
	Seconds Unit = iota
	Bytes
	Count
	Ratio // 0 to 1
	Hertz
	Joules
	BytesPerSecond
)

// String returns "seconds", "bytes", "count", "ratio", "hertz", "joules" or
// "bytes_per_second".
func (u Unit) String() string {
	return plain.Word([]string{"seconds", "bytes", "count", "ratio", "hertz", "joules", "bytes_per_second"}, u)
}

// Quantity is what was measured. Its unit and whether it is a counter follow
// from it.
type Quantity uint8

// The quantities. Counters only grow while their subject lives; the others are
// gauges.
const (
	// CPUTime is CPU time used, the host's own by all; CPUUser and CPUSystem are
	// its parts (counters).
	CPUTime Quantity = iota
	CPUUser
	CPUSystem
	// CPUPeriods counts the enforcement periods of a group's own CPU limit or, without the
	// cpu controller of v2, of the one above it that it is under; CPUThrottledPeriods those in
	// which the quota ran out (counters, 0 where there is no limit).
	CPUPeriods
	CPUThrottledPeriods
	// CPUThrottled is the time for which the group's own limit withheld CPUs,
	// summed over CPUs; CPUThrottledAny that for which any limit did, its
	// ancestors' included (counters).
	CPUThrottled
	CPUThrottledAny
	// CPUBursts counts the periods in which burst was used; CPUBurstTime is the
	// CPU time above quota in them (counters).
	CPUBursts
	CPUBurstTime
	// CPUWait is the time in which threads were ready to run and waited for a
	// CPU, summed over threads (counter).
	CPUWait
	// Switches counts context switches, SwitchesInvoluntary those that threads did
	// not ask for, Migrations the times that threads went on on another CPU than
	// before (counters).
	Switches
	SwitchesInvoluntary
	Migrations
	// Steal is CPU time that the hypervisor took, summed over CPUs (counter).
	Steal

	// QueueP99 is the 99th percentile of the waits for a CPU that ended since the
	// sample before, the upper bound of its bucket.
	QueueP99
	// Queued is CPUWait as the run-queue probe sees it, and the rest its parts:
	// QueuedBy while the group Sample.By had the CPU, itself included;
	// QueuedKernel while kernel threads had it, QueuedIdle while it had yet to
	// wake up, QueuedThrottled while a quota withheld it (counters).
	Queued
	QueuedBy
	QueuedKernel
	QueuedIdle
	QueuedThrottled

	// Cycles and Instructions are those of CPUs that were not halted, LLCReferences
	// the accesses to the last-level cache and LLCMisses the misses among them;
	// scaled up where events took turns on the counters of the CPU (counters).
	Cycles
	Instructions
	LLCReferences
	LLCMisses
	// LLCOccupancy is what lies in a last-level cache; Bandwidth is bytes to and
	// from memory, BandwidthLocal those to the cache's own node (counters). By
	// Cache.
	LLCOccupancy
	Bandwidth
	BandwidthLocal

	// Frequency is the mean clock rate of the CPUs that a group may use, those
	// that tell it; FrequencyLimit is the lowest of their upper limits.
	Frequency
	FrequencyLimit
	// ThrottledCores and ThrottledPackages count how often a core or a package
	// became too hot and slowed down (counters).
	ThrottledCores
	ThrottledPackages
	// IdleTime is the time that CPUs spent in idle states, IdleEntries how often
	// they entered one (counters).
	IdleTime
	IdleEntries

	// Memory is the memory in use; MemoryAnon and MemoryFile are the anonymous
	// and page-cache parts of it.
	Memory
	MemoryAnon
	MemoryFile
	// PageFaults, MajorFaults and Refaults (pages of the working set that were
	// reclaimed and came back) are counters.
	PageFaults
	MajorFaults
	Refaults
	// MemoryLow to MemoryOOMKills count the events of memory.events (counters):
	// reclaimed below the low boundary, throttled at high, at the maximum, out
	// of memory, processes killed for it.
	MemoryLow
	MemoryHigh
	MemoryMax
	MemoryOOM
	MemoryOOMKills

	// Tasks is the number of processes and threads.
	Tasks
	// IORead and IOWritten are bytes, IOReads and IOWrites operations, by block
	// device (counters).
	IORead
	IOWritten
	IOReads
	IOWrites

	// The stall times of PSI (counters): some is the time in which at least one
	// task waited for the resource, full that in which all did.
	CPUSome
	CPUFull
	MemorySome
	MemoryFull
	IOSome
	IOFull
	IRQFull

	// Populated is 1 while a group or one below it holds a process, Frozen is 1
	// while it is frozen.
	Populated
	Frozen

	// EnergyPackages is what the processor packages took, EnergyMemory their memory
	// beside it, where it is counted (counters).
	EnergyPackages
	EnergyMemory

	// NetSent and NetReceived are bytes, NetPacketsSent and NetPacketsReceived packets, by
	// Link; of a group those of its sockets beside loopback, from the IP header on, and as
	// the whole where its links are not the host's (counters).
	NetSent
	NetReceived
	NetPacketsSent
	NetPacketsReceived
	// LinkRate is what a link can send, LinkQueued what waits to be sent there, LinkDropped
	// counts packets that were dropped before they were sent (counter).
	LinkRate
	LinkQueued
	LinkDropped
	// RoundTrip is the mean smoothed round-trip time of TCP connections, weighed by what each
	// sent since the sample before; RoundTripLeast is the least of the last minutes.
	RoundTrip
	RoundTripLeast
	// Segments counts TCP segments with data that were sent, Retransmits those sent again
	// (counters).
	Segments
	Retransmits
)

type info struct {
	name    string
	unit    Unit
	counter bool
}

var infos = [...]info{
	CPUTime:             {"cpu_time", Seconds, true},
	CPUUser:             {"cpu_user", Seconds, true},
	CPUSystem:           {"cpu_system", Seconds, true},
	CPUPeriods:          {"cpu_periods", Count, true},
	CPUThrottledPeriods: {"cpu_throttled_periods", Count, true},
	CPUThrottled:        {"cpu_throttled", Seconds, true},
	CPUThrottledAny:     {"cpu_throttled_any", Seconds, true},
	CPUBursts:           {"cpu_bursts", Count, true},
	CPUBurstTime:        {"cpu_burst_time", Seconds, true},
	CPUWait:             {"cpu_wait", Seconds, true},
	Switches:            {"switches", Count, true},
	SwitchesInvoluntary: {"switches_involuntary", Count, true},
	Migrations:          {"migrations", Count, true},
	Steal:               {"steal", Seconds, true},
	QueueP99:            {"queue_p99", Seconds, false},
	Queued:              {"queued", Seconds, true},
	QueuedBy:            {"queued_by", Seconds, true},
	QueuedKernel:        {"queued_kernel", Seconds, true},
	QueuedIdle:          {"queued_idle", Seconds, true},
	QueuedThrottled:     {"queued_throttled", Seconds, true},
	Cycles:              {"cycles", Count, true},
	Instructions:        {"instructions", Count, true},
	LLCReferences:       {"llc_references", Count, true},
	LLCMisses:           {"llc_misses", Count, true},
	LLCOccupancy:        {"llc_occupancy", Bytes, false},
	Bandwidth:           {"bandwidth", Bytes, true},
	BandwidthLocal:      {"bandwidth_local", Bytes, true},
	Frequency:           {"frequency", Hertz, false},
	FrequencyLimit:      {"frequency_limit", Hertz, false},
	ThrottledCores:      {"throttled_cores", Count, true},
	ThrottledPackages:   {"throttled_packages", Count, true},
	IdleTime:            {"idle_time", Seconds, true},
	IdleEntries:         {"idle_entries", Count, true},
	Memory:              {"memory", Bytes, false},
	MemoryAnon:          {"memory_anon", Bytes, false},
	MemoryFile:          {"memory_file", Bytes, false},
	PageFaults:          {"page_faults", Count, true},
	MajorFaults:         {"major_faults", Count, true},
	Refaults:            {"refaults", Count, true},
	MemoryLow:           {"memory_low", Count, true},
	MemoryHigh:          {"memory_high", Count, true},
	MemoryMax:           {"memory_max", Count, true},
	MemoryOOM:           {"memory_oom", Count, true},
	MemoryOOMKills:      {"memory_oom_kills", Count, true},
	Tasks:               {"tasks", Count, false},
	IORead:              {"io_read", Bytes, true},
	IOWritten:           {"io_written", Bytes, true},
	IOReads:             {"io_reads", Count, true},
	IOWrites:            {"io_writes", Count, true},
	CPUSome:             {"cpu_some", Seconds, true},
	CPUFull:             {"cpu_full", Seconds, true},
	MemorySome:          {"memory_some", Seconds, true},
	MemoryFull:          {"memory_full", Seconds, true},
	IOSome:              {"io_some", Seconds, true},
	IOFull:              {"io_full", Seconds, true},
	IRQFull:             {"irq_full", Seconds, true},
	Populated:           {"populated", Count, false},
	Frozen:              {"frozen", Count, false},
	EnergyPackages:      {"energy_packages", Joules, true},
	EnergyMemory:        {"energy_memory", Joules, true},
	NetSent:             {"net_sent", Bytes, true},
	NetReceived:         {"net_received", Bytes, true},
	NetPacketsSent:      {"net_packets_sent", Count, true},
	NetPacketsReceived:  {"net_packets_received", Count, true},
	LinkRate:            {"link_rate", BytesPerSecond, false},
	LinkQueued:          {"link_queued", Bytes, false},
	LinkDropped:         {"link_dropped", Count, true},
	RoundTrip:           {"round_trip", Seconds, false},
	RoundTripLeast:      {"round_trip_least", Seconds, false},
	Segments:            {"segments", Count, true},
	Retransmits:         {"retransmits", Count, true},
}

// Unit returns the unit of the quantity's values.
func (q Quantity) Unit() Unit { return infos[q].unit }

// Counter says whether the quantity only grows, so that its rate is what
// matters; it is a gauge otherwise.
func (q Quantity) Counter() bool { return infos[q].counter }

// String returns the quantity's name, "cpu_time".
func (q Quantity) String() string { return plain.Word(quantityNames(), q) }

// MarshalText writes the quantity's name.
func (q Quantity) MarshalText() ([]byte, error) { return plain.MarshalWord(quantityNames(), q) }

// UnmarshalText reads the quantity's name.
func (q *Quantity) UnmarshalText(text []byte) error {
	return plain.UnmarshalWord(quantityNames(), text, q)
}

func quantityNames() []string {
	names := make([]string, len(infos))
	for i, info := range infos {
		names[i] = info.name
	}
	return names
}
