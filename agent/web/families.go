package web

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/watch"
)

// The families that the code names.
const (
	eventsTotal      = "berth_events_total"
	refusedTotal     = "berth_placements_refused_total"
	placementSeconds = "berth_placement_duration_seconds"

	agentInfo        = "berth_agent_info"
	watchedGroups    = "berth_watched_groups"
	subtrees         = "berth_crowded_subtrees"
	subtreeGroups    = "berth_crowded_subtree_groups"
	waitingWorkloads = "berth_waiting_workloads"
	configOK         = "berth_config_last_reload_successful"
	configTime       = "berth_config_last_reload_success_timestamp_seconds"
	sampleTime       = "berth_last_sample_timestamp_seconds"
	signalAvailable  = "berth_signal_available"

	guardActions      = "berth_guard_actions_total"
	guardMode         = "berth_guard_mode"
	guardRunning      = "berth_guard_running"
	guardWindows      = "berth_guard_windows_total"
	guardLate         = "berth_guard_late_windows_total"
	guardLeftOut      = "berth_guard_left_out_groups"
	guardArmed        = "berth_guard_probe_armed"
	guardProbeCost    = "berth_guard_probe_cpus"
	guardInForce      = "berth_guard_in_force"
	guardFindings     = "berth_guard_findings"
	workloadSuffering = "berth_workload_suffering"

	allowedCPUs     = "berth_allowed_cpus"
	sharedCPUs      = "berth_shared_cpus"
	exclusiveCPUs   = "berth_exclusive_cpus"
	fencedCPUs      = "berth_fenced_cpus"
	freeCPUs        = "berth_free_cpus"
	workloads       = "berth_workloads"
	hiddenWorkloads = "berth_hidden_workloads"

	workloadCPUs      = "berth_workload_cpus"
	workloadExclusive = "berth_workload_exclusive_cpus"
	workloadRequested = "berth_workload_requested_cpus"

	nodeSwitches  = "node_context_switches_per_second"
	nodeWaiting   = "node_pressure_%s_waiting_seconds_total"
	nodeStalled   = "node_pressure_%s_stalled_seconds_total"
	nodeLLC       = "node_llc_occupancy_bytes"
	nodeBandwidth = "node_memory_bandwidth_bytes_per_second"
	nodeIPC       = "node_ipc"
)

// family is the metrics of one name.
type family struct {
	name, help string
	labels     []string
}

// families are those that a scrape makes anew; New registers the rest.
func families() []family {
	workload := func(more ...string) []string { return append([]string{"workload", "class"}, more...) }
	node := []string{"node"}
	return []family{
		{agentInfo, "How the agent places workloads; always 1.", []string{"backend", "policy"}},
		{watchedGroups, "Control groups that are present.", nil},
		{subtrees, "Subtrees of other users that are not watched group by group.", nil},
		{subtreeGroups, "Groups of those subtrees: seen, and kept as they are looked at all the same.", []string{"kind"}},
		{waitingWorkloads, "Workloads of the configuration that have no place.", nil},
		{configOK, "1 if what the configuration's file holds is in force, 0 if it was refused.", nil},
		{configTime, "When the configuration in force was loaded.", nil},
		{sampleTime, "When the statistics of workloads were last read.", nil},
		{signalAvailable, "1 if the host tells the signal, else 0 with the reason.", []string{"scope", "signal", "reason"}},

		{guardMode, "1 for the mode that the guard is to have.", []string{"mode"}},
		{guardRunning, "1 while the guard runs.", nil},
		{guardWindows, "Windows that the guard has judged since it started.", nil},
		{guardLate, "Windows that came so late that nothing new was done in them.", nil},
		{guardLeftOut, "Groups that the guard does not read, as it may open no more files.", nil},
		{guardArmed, "1 while the run-queue probe is armed.", nil},
		{guardProbeCost, "CPU time per second that the armed probe takes, by the kernel's measure.", nil},
		{guardInForce, "Actions of the guard that are in force.", []string{"remedy"}},
		{guardFindings, "Findings of the last window, by the resource that is short.", []string{"resource"}},
		{workloadSuffering, "Confidence, from 0 to 1, of the surest finding that the workload suffers; absent while there is none.", workload("resource")},

		{allowedCPUs, "CPUs that may be given away, by NUMA node.", node},
		{sharedCPUs, "CPUs that nobody owns, by NUMA node.", node},
		{exclusiveCPUs, "CPUs that workloads own, by NUMA node.", node},
		{fencedCPUs, "CPUs that stay idle beside owned ones, by NUMA node.", node},
		{freeCPUs, "Shared CPUs that a workload of any class but SYSTEM could own, by NUMA node.", node},
		{workloads, "Workloads that have a place.", []string{"class"}},
		{hiddenWorkloads, "Placed workloads that have no series of their own, as there are too many.", nil},

		{workloadCPUs, "CPUs that the workload may run on now.", workload()},
		{workloadExclusive, "CPUs that are the workload's own.", workload()},
		{workloadRequested, "CPU time that the workload asked for, in CPUs.", workload()},

		{"berth_workload_cpu_seconds_total", "CPU time used.", workload()},
		{"berth_workload_cpu_mode_seconds_total", "CPU time used, by mode.", workload("mode")},
		{"berth_workload_cpu_periods_total", "Enforcement periods of the workload's own CPU limit.", workload()},
		{"berth_workload_cpu_throttled_periods_total", "Periods in which the workload's quota ran out.", workload()},
		{"berth_workload_cpu_throttled_seconds_total", "Time for which the workload's own limit withheld CPUs, summed over CPUs.", workload()},
		{"berth_workload_cpu_throttled_any_seconds_total", "Time for which its own or an ancestor's limit withheld CPUs, summed over CPUs.", workload()},
		{"berth_workload_cpu_bursts_total", "Periods in which burst was used.", workload()},
		{"berth_workload_cpu_burst_seconds_total", "CPU time above the quota in those periods.", workload()},
		{"berth_workload_cpu_wait_seconds_total", "Time in which threads were ready to run and waited for a CPU, summed over threads.", workload()},
		{"berth_workload_context_switches_total", "Context switches to other threads.", workload()},
		{"berth_workload_involuntary_context_switches_total", "Context switches that threads did not ask for.", workload()},
		{"berth_workload_pressure_waiting_seconds_total", "Time in which at least one task waited for the resource.", workload("resource")},
		{"berth_workload_pressure_stalled_seconds_total", "Time in which all tasks waited for the resource.", workload("resource")},
		{"berth_workload_memory_bytes", "Memory in use.", workload()},
		{"berth_workload_memory_type_bytes", "Memory in use, by type.", workload("type")},
		{"berth_workload_numa_memory_bytes", "Memory in use, by NUMA node and type.", workload("node", "type")},
		{"berth_workload_memory_events_total", "Events of memory.events.", workload("event")},
		{"berth_workload_page_faults_total", "Page faults.", workload()},
		{"berth_workload_major_page_faults_total", "Page faults that read from a disk.", workload()},
		{"berth_workload_refaults_total", "Pages of the working set that were reclaimed and came back.", workload()},
		{"berth_workload_tasks", "Processes and threads.", workload()},
		{"berth_workload_io_read_bytes_total", "Bytes read from all block devices.", workload()},
		{"berth_workload_io_written_bytes_total", "Bytes written to all block devices.", workload()},
		{"berth_workload_io_reads_total", "Read operations on all block devices.", workload()},
		{"berth_workload_io_writes_total", "Write operations on all block devices.", workload()},
		{"berth_workload_cycles_total", "CPU cycles that were not halted.", workload()},
		{"berth_workload_instructions_total", "Instructions retired.", workload()},
		{"berth_workload_llc_misses_total", "Misses of the last-level cache.", workload()},
		{"berth_workload_llc_occupancy_bytes", "What lies in a last-level cache.", workload("cache")},
		{"berth_workload_memory_bandwidth_bytes_total", "Bytes to and from memory through a last-level cache.", workload("cache")},
		{"berth_workload_memory_bandwidth_local_bytes_total", "Bytes to and from the cache's own NUMA node.", workload("cache")},

		{nodeSwitches, "Context switches per second since the scrape before.", nil},
		{"node_pressure_cpu_waiting_seconds_total", "Time in which at least one task waited for a CPU.", nil},
		{"node_pressure_memory_waiting_seconds_total", "Time in which at least one task waited for memory.", nil},
		{"node_pressure_memory_stalled_seconds_total", "Time in which all tasks waited for memory.", nil},
		{"node_pressure_io_waiting_seconds_total", "Time in which at least one task waited for I/O.", nil},
		{"node_pressure_io_stalled_seconds_total", "Time in which all tasks waited for I/O.", nil},
		{nodeLLC, "What lies in a last-level cache.", []string{"cache"}},
		{nodeBandwidth, "Bytes to and from memory per second since the scrape before.", []string{"direction"}},
		{nodeIPC, "Instructions per cycle of all CPUs since the scrape before.", nil},
	}
}

// source is a figure: a quantity of the whole or of a kind of part.
type source struct {
	quantity watch.Quantity
	part     watch.PartKind
}

// target is where a figure is shown. Its labels after workload and class are the
// part's number, if numbered, and value, if any.
type target struct {
	family string
	part   partUse
	value  string
}

// partUse is what becomes of a figure's part.
type partUse int

const (
	whole    partUse = iota // there is none
	numbered                // its number is a label
	summed                  // parts are added up
)

// sources says where each figure of a workload is shown. A quantity that is not
// there is not shown.
func sources() map[source]target {
	const p = "berth_workload_"
	all := map[source]target{
		{watch.MemoryAnon, watch.Node}:      {p + "numa_memory_bytes", numbered, "anon"},
		{watch.MemoryFile, watch.Node}:      {p + "numa_memory_bytes", numbered, "file"},
		{watch.IORead, watch.Device}:        {p + "io_read_bytes_total", summed, ""},
		{watch.IOWritten, watch.Device}:     {p + "io_written_bytes_total", summed, ""},
		{watch.IOReads, watch.Device}:       {p + "io_reads_total", summed, ""},
		{watch.IOWrites, watch.Device}:      {p + "io_writes_total", summed, ""},
		{watch.LLCOccupancy, watch.Cache}:   {p + "llc_occupancy_bytes", numbered, ""},
		{watch.Bandwidth, watch.Cache}:      {p + "memory_bandwidth_bytes_total", numbered, ""},
		{watch.BandwidthLocal, watch.Cache}: {p + "memory_bandwidth_local_bytes_total", numbered, ""},
	}
	for q, t := range map[watch.Quantity]target{
		watch.CPUTime:             {family: "cpu_seconds_total"},
		watch.CPUUser:             {family: "cpu_mode_seconds_total", value: "user"},
		watch.CPUSystem:           {family: "cpu_mode_seconds_total", value: "system"},
		watch.CPUPeriods:          {family: "cpu_periods_total"},
		watch.CPUThrottledPeriods: {family: "cpu_throttled_periods_total"},
		watch.CPUThrottled:        {family: "cpu_throttled_seconds_total"},
		watch.CPUThrottledAny:     {family: "cpu_throttled_any_seconds_total"},
		watch.CPUBursts:           {family: "cpu_bursts_total"},
		watch.CPUBurstTime:        {family: "cpu_burst_seconds_total"},
		watch.CPUWait:             {family: "cpu_wait_seconds_total"},
		watch.Switches:            {family: "context_switches_total"},
		watch.SwitchesInvoluntary: {family: "involuntary_context_switches_total"},
		watch.CPUSome:             {family: "pressure_waiting_seconds_total", value: "cpu"},
		watch.CPUFull:             {family: "pressure_stalled_seconds_total", value: "cpu"},
		watch.MemorySome:          {family: "pressure_waiting_seconds_total", value: "memory"},
		watch.MemoryFull:          {family: "pressure_stalled_seconds_total", value: "memory"},
		watch.IOSome:              {family: "pressure_waiting_seconds_total", value: "io"},
		watch.IOFull:              {family: "pressure_stalled_seconds_total", value: "io"},
		watch.IRQFull:             {family: "pressure_stalled_seconds_total", value: "irq"},
		watch.Memory:              {family: "memory_bytes"},
		watch.MemoryAnon:          {family: "memory_type_bytes", value: "anon"},
		watch.MemoryFile:          {family: "memory_type_bytes", value: "file"},
		watch.MemoryLow:           {family: "memory_events_total", value: "low"},
		watch.MemoryHigh:          {family: "memory_events_total", value: "high"},
		watch.MemoryMax:           {family: "memory_events_total", value: "max"},
		watch.MemoryOOM:           {family: "memory_events_total", value: "oom"},
		watch.MemoryOOMKills:      {family: "memory_events_total", value: "oom_kill"},
		watch.PageFaults:          {family: "page_faults_total"},
		watch.MajorFaults:         {family: "major_page_faults_total"},
		watch.Refaults:            {family: "refaults_total"},
		watch.Tasks:               {family: "tasks"},
		watch.Cycles:              {family: "cycles_total"},
		watch.Instructions:        {family: "instructions_total"},
		watch.LLCMisses:           {family: "llc_misses_total"},
	} {
		t.family = p + t.family
		all[source{q, watch.Whole}] = t
	}
	return all
}

// figure shows a figure of a workload.
func (s scrape) figure(t target, f *api.Figure, id, class string) {
	labels := make([]string, 0, 4)
	labels = append(labels, id, class)
	if t.part == numbered {
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
