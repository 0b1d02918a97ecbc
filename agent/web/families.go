package web

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/watch"
)

// family is the metrics of one name.
type family struct {
	name, help string
	labels     []string
}

// who are the labels that say whose a figure of a workload is; on a Kubernetes node they say
// the pod and the container, too.
func who(podLabels bool) []string {
	if podLabels {
		return []string{"workload", "class", "namespace", "pod", "container"}
	}
	return []string{"workload", "class"}
}

// families are those that a scrape makes anew; New registers the rest.
func families(podLabels bool) []family {
	workload := func(more ...string) []string { return append(who(podLabels), more...) }
	node := []string{"node"}
	all := []family{
		{"berth_agent_info", "How the agent places workloads; always 1.", []string{"backend", "policy"}},
		{"berth_watched_groups", "Control groups that are present.", nil},
		{"berth_crowded_subtrees", "Subtrees of other users that are not watched group by group.", nil},
		{"berth_crowded_subtree_groups", "Groups of those subtrees: seen, and kept as they are looked at all the same.", []string{"kind"}},
		{"berth_waiting_workloads", "Workloads of the configuration that have no place.", nil},
		{"berth_pod_events_total", "Events for the API server of Kubernetes, by what became of them.", []string{"outcome"}},
		{"berth_config_last_reload_successful", "1 if what the configuration's file holds is active, 0 if it was refused.", nil},
		{"berth_config_last_reload_success_timestamp_seconds", "When the active configuration was loaded.", nil},
		{"berth_last_sample_timestamp_seconds", "When the statistics of workloads were last read.", nil},
		{"berth_signal_available", "1 if the host tells the signal, else 0 with the reason.", []string{"scope", "signal", "reason"}},

		{"berth_guard_mode", "1 for the mode that the guard is to have.", []string{"mode"}},
		{"berth_guard_running", "1 while the guard runs.", nil},
		{"berth_guard_windows_total", "Windows that the guard has judged since it started.", nil},
		{"berth_guard_late_windows_total", "Windows that came so late that nothing new was done in them.", nil},
		{"berth_guard_left_out_groups", "Groups that the guard does not read, as it may open no more files.", nil},
		{"berth_guard_probe_armed", "1 while the run-queue probe is armed.", nil},
		{"berth_guard_probe_cpus", "CPU time per second that the armed probe takes, by the kernel's measure.", nil},
		{"berth_guard_in_force", "Active actions of the guard.", []string{"remedy"}},
		{"berth_guard_findings", "Findings of the last window, by the resource that is short.", []string{"resource"}},
		{"berth_workload_suffering", "Confidence, from 0 to 1, of the surest finding that the workload suffers; absent without a finding.", workload("resource")},

		{"berth_allowed_cpus", "CPUs that may be given away, by NUMA node.", node},
		{"berth_shared_cpus", "CPUs that nobody owns, by NUMA node.", node},
		{"berth_exclusive_cpus", "CPUs that workloads own, by NUMA node.", node},
		{"berth_fenced_cpus", "CPUs that stay idle beside owned ones, by NUMA node.", node},
		{"berth_free_cpus", "Shared CPUs that a workload of any class but SYSTEM could own, by NUMA node.", node},
		{"berth_workloads", "Workloads that have a place.", []string{"class"}},
		{"berth_class_workloads", "Workloads that have a cache, I/O, power or network class, by kind.", []string{"kind", "name"}},
		{"berth_power_profile_cpus", "CPUs that have a power profile, those that no workload owns too.", []string{"name"}},
		{"berth_power_pool_clock_ratio", "How much of the highest clock a pool needs by its load; absent unless its power profile scales.", []string{"pool"}},
		{"berth_hidden_workloads", "Placed workloads that have no series of their own, as there are too many.", nil},

		{"berth_workload_cpus", "CPUs that the workload may run on now.", workload()},
		{"berth_workload_exclusive_cpus", "CPUs that are the workload's own.", workload()},
		{"berth_workload_requested_cpus", "CPU time that the workload asked for, in CPUs.", workload()},
		{"berth_workload_limit", "What Berth lets the workload use, in the unit; absent without a limit.", workload("resource", "unit", "device")},
		{"berth_workload_p99_limit_seconds", "The response time that 99 % of the workload's requests are to keep, as it says itself.", workload()},

		{"node_context_switches_per_second", "Context switches per second since the scrape before.", nil},
		{"node_pressure_cpu_waiting_seconds_total", "Time in which at least one task waited for a CPU.", nil},
		{"node_pressure_memory_waiting_seconds_total", "Time in which at least one task waited for memory.", nil},
		{"node_pressure_memory_stalled_seconds_total", "Time in which all tasks waited for memory.", nil},
		{"node_pressure_io_waiting_seconds_total", "Time in which at least one task waited for I/O.", nil},
		{"node_pressure_io_stalled_seconds_total", "Time in which all tasks waited for I/O.", nil},
		{"node_llc_occupancy_bytes", "What lies in a last-level cache.", []string{"cache"}},
		{"berth_llc_ways", "Ways of a last-level cache that the work of a group of resctrl may fill.", []string{"cache_class", "cache", "kind"}},
		{"berth_memory_bandwidth_limit", "Limit of memory bandwidth of a group of resctrl, in the unit; absent without a limit.", []string{"cache_class", "cache", "unit"}},
		{"berth_cache_classes_left", "Groups that resctrl can still make.", nil},
		{"berth_network_ceiling_bytes_per_second", "What a network class may send through a device at most.", []string{"network_class", "device"}},
		{"berth_network_dropped_packets_total", "Packets of a network class that a device has lost since the class came; absent while that is not known.", []string{"network_class", "device"}},
		{"berth_network_limit_dropped_packets_total", "Packets that the limit of a workload, or what those of a network class receive together, has dropped since it was set. Workloads of a pod share its limit: not to be summed up.", []string{"network_class", "workload"}},
		{"node_memory_bandwidth_bytes_per_second", "Bytes to and from memory per second since the scrape before.", []string{"direction"}},
		{"node_energy_joules_total", "Energy that the processor packages, or the memory beside them, took.", []string{"kind"}},
		{"node_ipc", "Instructions per cycle of all CPUs since the scrape before.", nil},
	}
	for _, f := range figureFamilies() {
		all = append(all, f.family(podLabels))
	}
	return all
}

// figureFamily is a family of figures of workloads, which the sampler reads.
type figureFamily struct {
	name, help string // the name is after figurePrefix
	part       watch.PartKind
	label      string // or ""
	of         words
}

// words are the quantities of a family, each by the value of its label.
type words = map[string]watch.Quantity

const figurePrefix = "berth_workload_"

// figureFamilies are the families of figures. A quantity that is in none is not shown.
func figureFamilies() []figureFamily {
	return []figureFamily{
		{"cpu_seconds_total", "CPU time used.", watch.Whole, "", words{"": watch.CPUTime}},
		{"cpu_mode_seconds_total", "CPU time used, by mode.", watch.Whole, "mode", words{"user": watch.CPUUser, "system": watch.CPUSystem}},
		{"cpu_periods_total", "Enforcement periods of the CPU limit that the workload is under.", watch.Whole, "", words{"": watch.CPUPeriods}},
		{"cpu_throttled_periods_total", "Periods in which the workload's quota ran out.", watch.Whole, "", words{"": watch.CPUThrottledPeriods}},
		{"cpu_throttled_seconds_total", "Time for which the workload's own limit withheld CPUs, summed over CPUs.", watch.Whole, "", words{"": watch.CPUThrottled}},
		{"cpu_throttled_any_seconds_total", "Time for which its own or an ancestor's limit withheld CPUs, summed over CPUs.", watch.Whole, "", words{"": watch.CPUThrottledAny}},
		{"cpu_bursts_total", "Periods in which burst was used.", watch.Whole, "", words{"": watch.CPUBursts}},
		{"cpu_burst_seconds_total", "CPU time above the quota in those periods.", watch.Whole, "", words{"": watch.CPUBurstTime}},
		{"cpu_wait_seconds_total", "Time in which threads were ready to run and waited for a CPU, summed over threads.", watch.Whole, "", words{"": watch.CPUWait}},
		{"context_switches_total", "Context switches to other threads.", watch.Whole, "", words{"": watch.Switches}},
		{"involuntary_context_switches_total", "Context switches that threads did not ask for.", watch.Whole, "", words{"": watch.SwitchesInvoluntary}},
		{"pressure_waiting_seconds_total", "Time in which at least one task waited for the resource.", watch.Whole, "resource", words{"cpu": watch.CPUSome, "memory": watch.MemorySome, "io": watch.IOSome}},
		{"pressure_stalled_seconds_total", "Time in which all tasks waited for the resource.", watch.Whole, "resource", words{"cpu": watch.CPUFull, "memory": watch.MemoryFull, "io": watch.IOFull, "irq": watch.IRQFull}},
		{"memory_bytes", "Memory in use.", watch.Whole, "", words{"": watch.Memory}},
		{"memory_type_bytes", "Memory in use, by type.", watch.Whole, "type", words{"anon": watch.MemoryAnon, "file": watch.MemoryFile}},
		{"numa_memory_bytes", "Memory in use, by NUMA node and type.", watch.Node, "type", words{"anon": watch.MemoryAnon, "file": watch.MemoryFile}},
		{"memory_events_total", "Events of memory.events.", watch.Whole, "event", words{"low": watch.MemoryLow, "high": watch.MemoryHigh, "max": watch.MemoryMax, "oom": watch.MemoryOOM, "oom_kill": watch.MemoryOOMKills}},
		{"page_faults_total", "Page faults.", watch.Whole, "", words{"": watch.PageFaults}},
		{"major_page_faults_total", "Page faults that read from a disk.", watch.Whole, "", words{"": watch.MajorFaults}},
		{"refaults_total", "Pages of the working set that were reclaimed and came back.", watch.Whole, "", words{"": watch.Refaults}},
		{"tasks", "Processes and threads.", watch.Whole, "", words{"": watch.Tasks}},
		{"io_read_bytes_total", "Bytes read from all block devices.", watch.Device, "", words{"": watch.IORead}},
		{"io_written_bytes_total", "Bytes written to all block devices.", watch.Device, "", words{"": watch.IOWritten}},
		{"io_reads_total", "Read operations on all block devices.", watch.Device, "", words{"": watch.IOReads}},
		{"io_writes_total", "Write operations on all block devices.", watch.Device, "", words{"": watch.IOWrites}},
		{"cycles_total", "CPU cycles that were not halted.", watch.Whole, "", words{"": watch.Cycles}},
		{"instructions_total", "Instructions retired.", watch.Whole, "", words{"": watch.Instructions}},
		{"llc_misses_total", "Misses of the last-level cache.", watch.Whole, "", words{"": watch.LLCMisses}},
		{"llc_occupancy_bytes", "What lies in a last-level cache.", watch.Cache, "", words{"": watch.LLCOccupancy}},
		{"memory_bandwidth_bytes_total", "Bytes to and from memory through a last-level cache.", watch.Cache, "", words{"": watch.Bandwidth}},
		{"memory_bandwidth_local_bytes_total", "Bytes to and from the cache's own NUMA node.", watch.Cache, "", words{"": watch.BandwidthLocal}},
		{"tcp_round_trip_seconds", "Mean round-trip time of TCP connections to other hosts that sent something.", watch.Whole, "", words{"": watch.RoundTrip}},
		{"tcp_segments_total", "TCP segments with data sent to other hosts.", watch.Whole, "", words{"": watch.Segments}},
		{"tcp_retransmits_total", "Those sent again.", watch.Whole, "", words{"": watch.Retransmits}},
	}
}

// source is a figure: a quantity of the whole or of a kind of part.
type source struct {
	quantity watch.Quantity
	part     watch.PartKind
}

// target is where a figure is shown, and the value of its label, if any.
type target struct{ family, value string }

// partLabels are the labels of the parts that are shown one by one. Devices are added up.
func partLabels() map[watch.PartKind]string {
	return map[watch.PartKind]string{watch.Node: "node", watch.Cache: "cache"}
}

// family is that of the figures.
func (f *figureFamily) family(podLabels bool) family {
	labels := append(who(podLabels), partLabels()[f.part], f.label)
	return family{figurePrefix + f.name, f.help, slices.DeleteFunc(labels, func(l string) bool { return l == "" })}
}

// sources says where each figure of a workload is shown.
func sources() map[source]target {
	all := map[source]target{}
	for _, f := range figureFamilies() {
		for value, q := range f.of {
			all[source{q, f.part}] = target{figurePrefix + f.name, value}
		}
	}
	return all
}

// figure shows a figure of the workload that some labels name.
func (s scrape) figure(t target, f *api.Figure, who []string) {
	labels := append(make([]string, 0, len(who)+2), who...)
	if f.Part.Kind != watch.Whole {
		labels = append(labels, strconv.Itoa(f.Part.ID))
	}
	if t.value != "" {
		labels = append(labels, t.value)
	}
	kind := prometheus.GaugeValue
	if f.Quantity.Counter() {
		kind = prometheus.CounterValue
	}
	s.to <- prometheus.MustNewConstMetric(s.families[t.family], kind, f.Value, labels...)
}
