package lab

import (
	"time"

	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// Schema names the version of the result file's format.
const Schema = "berth.dev/lab/v1"

// Header is what every stored run has, whatever the experiment.
type Header struct {
	Schema  string  `json:"schema"`
	Program Program `json:"program"`
	// Started and Finished are wall-clock times; Finished is zero while running.
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished,omitzero"`
	// Resumed are the times at which the run went on after an interruption.
	Resumed []time.Time `json:"resumed,omitempty"`
	// Complete is false for a run that was interrupted or is under way.
	Complete bool      `json:"complete"`
	Host     Host      `json:"host"`
	Setup    Setup     `json:"setup"`
	Skipped  []Skipped `json:"skipped,omitempty"`
}

// Result is everything that a run of tenant and neighbour measured, as stored in
// result.json. Reports are pure functions of it. docs/lab.md documents the format.
type Result struct {
	Header
	Experiment Spec    `json:"experiment"`
	Rounds     []Round `json:"rounds"`
}

// Program is the version of Berth that ran.
type Program struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
}

// Host is the machine that the run was on.
type Host struct {
	Machine     *machine.Machine `json:"machine"`
	Kernel      string           `json:"kernel"` // uname -r
	Clocksource string           `json:"clocksource,omitempty"`
	Hypervisor  string           `json:"hypervisor,omitempty"` // "" on bare metal
	Governor    string           `json:"governor,omitempty"`
	MemoryBytes int64            `json:"memoryBytes,omitempty"`
}

// Setup is what the run settled on before the first round.
type Setup struct {
	// Backend is how scenarios are enforced: "cgroup v2", "cgroup v1", "hybrid",
	// or "sched" (affinity, nice, SCHED_IDLE: the lesser backend).
	Backend string `json:"backend"`
	// BackendNote says why not a better one.
	BackendNote string `json:"backendNote,omitempty"`
	// CPUs are those that tenant and neighbour share.
	CPUs string `json:"cpus"`
	// GeneratorCPUs is the generator's own place; "" when it shares CPUs.
	GeneratorCPUs string `json:"generatorCPUs,omitempty"`
	// GeneratorDemand is how many CPUs the generator uses at this rate.
	GeneratorDemand float64 `json:"generatorDemand"`
	// GeneratorPolicy is the scheduling policy that it got.
	GeneratorPolicy string            `json:"generatorPolicy"`
	Rate            float64           `json:"rate"`
	Tenant          load.TenantConfig `json:"tenant"`
	Neighbour       noise.Config      `json:"neighbour"`
	// CPUPerRequest is the tenant's CPU time per request, alone, as calibrated.
	CPUPerRequest Duration `json:"cpuPerRequest"`
	// TenantCPUs is the tenant's demand at the offered load, in CPUs.
	TenantCPUs float64 `json:"tenantCPUs"`
	// NeighbourNote says why its working set is smaller than it should be.
	NeighbourNote string `json:"neighbourNote,omitempty"`
	// ProbeNote says the same of the control probes.
	ProbeNote string `json:"probeNote,omitempty"`
	// OtherLab says that another user's lab seemed to run at the start.
	OtherLab string `json:"otherLab,omitempty"`
}

// Skipped is a cell that this machine cannot do.
type Skipped struct {
	Scenario string `json:"scenario"`
	Reason   string `json:"reason"`
	Remedy   string `json:"remedy,omitempty"`
}

// Round is one scenario set up, settled, measured and restored.
type Round struct {
	Block    int       `json:"block"`
	Position int       `json:"position"` // within the block
	Scenario string    `json:"scenario"`
	Started  time.Time `json:"started"`
	// Invalid says why the round does not count; "" for a good one.
	Invalid string      `json:"invalid,omitempty"`
	Knobs   []Knob      `json:"knobs,omitempty"`
	Load    load.Report `json:"load"`
	// Seconds is the length of the interval over which the figures below were read.
	Seconds   float64              `json:"seconds"`
	Tenant    Usage                `json:"tenant"`
	Neighbour *Usage               `json:"neighbour,omitempty"`
	Host      HostUsage            `json:"host"`
	Probes    []noise.ProbeReading `json:"probes,omitempty"` // taken before the round
}

// Knob is one kernel setting as read back while the round ran.
type Knob struct {
	Of    string `json:"of"`   // "tenant", "neighbour"
	File  string `json:"file"` // "cpu.weight", "affinity"
	Value string `json:"value"`
}

// Usage is what one role used and got done during a round.
type Usage struct {
	CPUSeconds float64 `json:"cpuSeconds"`
	// WaitSeconds is how long its threads were ready and waited for a CPU, summed
	// over threads (schedstat run delay; the main process only); 0 also where the
	// kernel does not count it (CONFIG_SCHED_INFO).
	WaitSeconds float64 `json:"waitSeconds"`
	// ThrottledSeconds sums the time CPUs were withheld by a bandwidth limit.
	ThrottledSeconds float64 `json:"throttledSeconds"`
	ThrottledPeriods int64   `json:"throttledPeriods"`
	// Work is in Unit ("operations", "bytes", ...), the neighbour's only.
	Work float64 `json:"work,omitempty"`
	Unit string  `json:"unit,omitempty"`
}

// HostUsage is the host during a round, in CPU seconds.
type HostUsage struct {
	CPUs int     `json:"cpus"`
	Busy float64 `json:"busy"` // of all CPUs: user, nice, system, irq, softirq
	// What others took of the SharedCPUs that tenant and neighbour share:
	SharedCPUs int     `json:"sharedCPUs"`
	Steal      float64 `json:"steal"`   // the hypervisor
	Foreign    float64 `json:"foreign"` // busy, but not by the lab
}

// Analysis is what a Result comes to: the statistics and the words. It is
// computed from a Result alone (Analyse).
type Analysis struct {
	// Floor is baseline' over baseline at p99: what "no difference" looks like here.
	Floor *stats.Interval `json:"floor,omitempty"`
	Rows  []Row           `json:"rows"`
	// Warnings are about the run as a whole: drift, steal, foreign load.
	Warnings []string `json:"warnings,omitempty"`
	// Reading is the result in words, a paragraph each.
	Reading []string `json:"reading"`
	// Recommended is the cheapest scenario equivalent to the baseline, or "".
	Recommended    string `json:"recommended,omitempty"`
	Recommendation string `json:"recommendation"`
}

// Row is one scenario of the table.
type Row struct {
	Scenario string `json:"scenario"`
	// Skipped is set, and everything else empty, for a scenario not run.
	Skipped *Skipped `json:"skipped,omitempty"`
	Rounds  int      `json:"rounds"` // run
	Valid   int      `json:"valid"`  // counted
	// Requests offered in valid rounds, and how many of them are censored.
	Requests int `json:"requests"`
	Censored int `json:"censored"`
	// Quantiles of response time; a quantile the sample does not support has a Reason.
	Quantiles []Quantile `json:"quantiles,omitempty"`
	// Ratio to the baseline's p99, each pooled over the blocks in which both count;
	// its interval resamples whole blocks. Nil for the baseline itself.
	Ratio   *stats.Interval `json:"ratio,omitempty"`
	Verdict stats.Verdict   `json:"verdict,omitempty"`
	// Why explains the verdict in one clause; MoreRounds is how many rounds
	// would decide an inconclusive one, 0 if unknown.
	Why        string `json:"why,omitempty"`
	MoreRounds int    `json:"moreRounds,omitempty"`
	// Saturated: responses arrived more slowly than requests were due; latency
	// grows with the length of the round and is a lower bound.
	Saturated bool `json:"saturated,omitempty"`
	// WorkShare is the neighbour's work per second relative to unisolated (1 =
	// same); nil without a neighbour or without unisolated rounds.
	WorkShare *float64 `json:"workShare,omitempty"`
	// Work is the neighbour's work per second, in Unit.
	Work float64 `json:"work,omitempty"`
	Unit string  `json:"unit,omitempty"`
	// HostBusy is the share (0-1) of the host's CPU time in use.
	HostBusy float64 `json:"hostBusy"`
	// TenantThrottled and NeighbourThrottled are throttled CPU seconds per second.
	TenantThrottled    float64 `json:"tenantThrottled"`
	NeighbourThrottled float64 `json:"neighbourThrottled"`
	LagP99             float64 `json:"lagP99"`   // generator's own, microseconds
	QueueP99           float64 `json:"queueP99"` // waiting for a free connection, microseconds
	TenantCPUs         float64 `json:"tenantCPUs"`
	NeighbourCPUs      float64 `json:"neighbourCPUs"`
	// TenantWait is run delay: seconds that the tenant's threads waited for a CPU,
	// per second.
	TenantWait float64 `json:"tenantWait"`
}

// Quantile is one percentile of response time, in microseconds.
type Quantile struct {
	P float64 `json:"p"` // 50, 95, 99, 99.9
	stats.Interval
	// AtLeast: censored requests reach into this quantile; it is a lower bound.
	AtLeast bool `json:"atLeast,omitempty"`
	// Reason says why it is not given ("needs 14 more rounds").
	Reason string `json:"reason,omitempty"`
}

// LowerBound reports whether the p99 is only a lower bound.
func (r Row) LowerBound() bool {
	for _, q := range r.Quantiles {
		if q.P == headline && q.AtLeast {
			return true
		}
	}
	return r.Saturated
}

// BaselineBound reports whether the baseline's p99 is only a lower bound: a ratio
// to it says nothing.
func (a *Analysis) BaselineBound() bool {
	for _, row := range a.Rows {
		if row.Scenario == Baseline && row.Valid > 0 {
			return row.LowerBound()
		}
	}
	return false
}
