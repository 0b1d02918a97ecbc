package detect

import (
	"strconv"

	"berth.dev/berth/internal/plain"
)

// Signal is a figure about one workload in one window, derived from samples.
// All are shares from 0 to 1 unless they say otherwise.
type Signal uint8

// The signals.
const (
	// CPUUse is CPU time per second, in CPUs.
	CPUUse Signal = iota
	// ThrottledPeriods is the share of enforcement periods in which the own
	// quota ran out; Withheld is the CPU time that quotas withheld, of that and
	// the time used.
	ThrottledPeriods
	Withheld
	// StealShare is the CPU time that the hypervisor took from the host, of that
	// and the time that the host used.
	StealShare
	// RunQueueP99 is the 99th percentile of run-queue latency, in seconds.
	RunQueueP99
	// WaitRatio is the run delay of threads, of run delay and run time.
	WaitRatio
	// CPUPressure, MemoryPressure and IOPressure are PSI's some.
	CPUPressure
	MemoryPressure
	IOPressure
	// SelfQueued and ForeignQueued are parts of the run delay above the baseline for the
	// CPU use: the part during which the workload itself had the CPU, and the part during
	// which others or kernel threads had it. They are 0 where the run delay is hardly above
	// the baseline. IdleQueued and ThrottledQueued are parts of all the run delay: the CPU
	// was still waking up, or a quota withheld it.
	SelfQueued
	ForeignQueued
	IdleQueued
	ThrottledQueued
	// Imposed is the run delay behind others above the baseline, of run delay and run
	// time.
	Imposed
	// OwnUse is the workload's part of the CPU time used on the host while its
	// CPUs are full, 0 while they are not.
	OwnUse
	// CPI is cycles per instruction, MPKI misses of the last-level cache per
	// thousand instructions, Clock cycles per second of CPU time.
	CPI
	MPKI
	Clock
	// Occupancy is the workload's part of last-level caches, in bytes.
	Occupancy
	// DomainBandwidth is the traffic to memory in the workload's busiest cache
	// domain, of the peak.
	DomainBandwidth
	// SiblingUse is how busy the other threads of the workload's cores are.
	SiblingUse
	// LocalMemory is the part of its memory that is on the nodes of its CPUs.
	LocalMemory
	// LimitEvents is how often the workload ran into its own memory limit, per
	// second.
	LimitEvents
	// OwnIO is its part of the bytes that went to and from its block devices, 0
	// while it is not under I/O pressure.
	OwnIO
	// RoundTrip is the mean round trip of the workload's TCP connections, in seconds, Resent
	// the part of their segments that were sent again.
	RoundTrip
	Resent
	// LinkUse is what the link by which the workload sends most sends, of its rate; LinkWait
	// the time to send what waits in its queue, in seconds; LinkLost the packets dropped
	// there per second. Where it is not known by which link, they are of the fullest.
	LinkUse
	LinkWait
	LinkLost
	// OwnSent is the workload's part of the bytes that the link sends.
	OwnSent

	// QueueShare to IOShare are a suspect's part: of that wait for a CPU; of the
	// CPU time of those whose use correlates; of the traffic to memory; of the
	// growth of cache occupancy, CPU use and memory since nobody suffered; of
	// the bytes to and from block devices; SentShare of those that a link sends.
	QueueShare
	UseShare
	BandwidthShare
	OccupancyGrowth
	UseGrowth
	MemoryGrowth
	IOShare
	SentShare
	// Correlation is that of a suspect's CPU use with the victim's symptom as in
	// CPI² (Zhang et al., EuroSys 2013), from -1 to 1.
	Correlation
)

const signals = int(Correlation) + 1

type signalInfo struct {
	name  string
	words string
	unit  string  // "" is a share
	below bool    // what is at most the threshold counts
	floor float64 // below it, it is never unusual; 0 for no floor
}

var signalInfos = [signals]signalInfo{
	CPUUse:           {"cpu_use", "CPU use", "CPUs", false, 0},
	ThrottledPeriods: {"throttled_periods", "periods in which its quota ran out", "", false, 0.10},
	Withheld:         {"withheld", "CPU time withheld by quotas", "", false, 0.10},
	StealShare:       {"steal", "CPU time taken by the hypervisor", "", false, 0.05},
	RunQueueP99:      {"run_queue_p99", "99th percentile of run-queue latency", "s", false, 0.001},
	WaitRatio:        {"wait_ratio", "run delay, of run delay and run time", "", false, 0.10},
	CPUPressure:      {"cpu_pressure", "CPU pressure (PSI)", "", false, 0.20},
	MemoryPressure:   {"memory_pressure", "memory pressure (PSI)", "", false, 0.02},
	IOPressure:       {"io_pressure", "I/O pressure (PSI)", "", false, 0.10},
	SelfQueued:       {"self_queued", "part of the run delay above baseline behind its own threads", "", false, 0},
	ForeignQueued:    {"foreign_queued", "part of the run delay above baseline behind others", "", false, 0},
	IdleQueued:       {"idle_queued", "part of the run delay while a CPU wakes up", "", false, 0},
	ThrottledQueued:  {"throttled_queued", "part of the run delay for quota", "", false, 0},
	Imposed:          {"imposed", "run delay above baseline behind others, of run delay and run time", "", false, 0.10},
	OwnUse:           {"own_use", "its part of full CPUs", "", false, 0},
	CPI:              {"cpi", "cycles per instruction", "cycles", false, 0},
	MPKI:             {"mpki", "cache misses per 1000 instructions", "misses", false, 0},
	Clock:            {"clock", "clock rate", "Hz", true, 0},
	Occupancy:        {"occupancy", "cache occupancy", "bytes", true, 0},
	DomainBandwidth:  {"domain_bandwidth", "memory traffic, of the peak", "", false, 0},
	SiblingUse:       {"sibling_use", "use of sibling threads", "", false, 0},
	LocalMemory:      {"local_memory", "memory on its own nodes", "", true, 0},
	LimitEvents:      {"limit_events", "times at its own memory limit", "/s", false, 0},
	OwnIO:            {"own_io", "its part of the I/O", "", false, 0},
	RoundTrip:        {"round_trip", "round trip of its TCP connections", "s", false, 0},
	Resent:           {"resent", "segments sent again", "", false, 0.01},
	LinkUse:          {"link_use", "bytes sent by the link, of its rate", "", false, 0.90},
	LinkWait:         {"link_wait", "time to send what waits in the link's queue", "s", false, 0.002},
	LinkLost:         {"link_lost", "packets dropped before the link", "/s", false, 0},
	OwnSent:          {"own_sent", "its part of what the link sends", "", false, 0},
	QueueShare:       {"queue_share", "part of the run delay above baseline", "", false, 0},
	UseShare:         {"use_share", "part of the others' CPU use", "", false, 0},
	BandwidthShare:   {"bandwidth_share", "part of the memory traffic", "", false, 0},
	OccupancyGrowth:  {"occupancy_growth", "part of the growth in the cache", "", false, 0},
	UseGrowth:        {"use_growth", "part of the growth in CPU use", "", false, 0},
	MemoryGrowth:     {"memory_growth", "part of the growth in memory", "", false, 0},
	IOShare:          {"io_share", "part of the I/O", "", false, 0},
	SentShare:        {"sent_share", "part of what the link sends", "", false, 0},
	Correlation:      {"correlation", "correlation of CPU use with the symptom", "r", false, 0},
}

var signalNames = func() []string {
	names := make([]string, signals)
	for i, info := range signalInfos {
		names[i] = info.name
	}
	return names
}()

// String returns the signal's name, "wait_ratio".
func (s Signal) String() string { return plain.Word(signalNames, s) }

// Words says in a few words what the signal is.
func (s Signal) Words() string {
	if int(s) >= signals {
		return s.String()
	}
	return signalInfos[s].words
}

// MarshalText writes the signal's name.
func (s Signal) MarshalText() ([]byte, error) { return plain.MarshalWord(signalNames, s) }

// UnmarshalText reads the signal's name.
func (s *Signal) UnmarshalText(text []byte) error { return plain.UnmarshalWord(signalNames, text, s) }

// format writes a value of the signal for a person.
func (s Signal) format(v float64) string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	switch unit := signalInfos[s].unit; unit {
	case "":
		return number(100*v) + " %"
	case "r":
		return number(v)
	case "s":
		return number(1000*v) + " ms"
	case "Hz":
		return number(v/1e9) + " GHz"
	case "bytes":
		return number(v/(1<<20)) + " MiB"
	case "/s":
		return number(v) + " per second"
	default:
		return number(v) + " " + unit
	}
}
