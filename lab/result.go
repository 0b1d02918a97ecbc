package lab

import (
	"slices"
	"time"

	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
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
	Dropped  []Dropped `json:"dropped,omitempty"`
}

func (h *Header) dropped(cell string, block int) bool {
	return slices.ContainsFunc(h.Dropped, func(d Dropped) bool { return d.Scenario == cell && block >= d.Blocks })
}

// Head is the header itself: whatever embeds one has it.
func (h *Header) Head() *Header { return h }

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
	// MemoryMax is what all roles may have together, in bytes, where they compete for that.
	MemoryMax int64 `json:"memoryMax,omitempty"`
	// CPUPerRequest is the tenant's CPU time per request, alone, as calibrated.
	CPUPerRequest Duration `json:"cpuPerRequest"`
	// TenantCPUs is the tenant's demand at the offered load, in CPUs.
	TenantCPUs float64 `json:"tenantCPUs"`
	// Server is the version of the tenant, where it is one that the lab knows by name.
	Server string `json:"server,omitempty"`
	// ProcessStart is how long a request takes that runs a shell which does nothing: what each
	// latency contains where requests are runs of a command (TenantSpec.Exec).
	ProcessStart Duration `json:"processStart,omitempty"`
	// BenchmarkTook is how long a benchmark took that tells its own figures (TenantSpec.Figures),
	// alone.
	BenchmarkTook Duration `json:"benchmarkTook,omitempty"`
	// RateNote says why the tenant wants less than was asked for.
	RateNote string `json:"rateNote,omitempty"`
	// NeighbourNote says why its working set is smaller than it should be.
	NeighbourNote string `json:"neighbourNote,omitempty"`
	// ProbeNote says the same of the control probes.
	ProbeNote string `json:"probeNote,omitempty"`
	// Awake: idle CPUs were kept from sleeping.
	Awake bool `json:"awake,omitempty"`
	// OtherLab says that another user's lab seemed to run at the start.
	OtherLab string `json:"otherLab,omitempty"`
}

// Skipped is a cell that this machine cannot do.
type Skipped struct {
	Scenario string `json:"scenario"`
	Reason   string `json:"reason"`
	Remedy   string `json:"remedy,omitempty"`
}

// Dropped is a cell that was decided after so many blocks: the others got its time.
type Dropped struct {
	Scenario string `json:"scenario"`
	Blocks   int    `json:"blocks"`
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
	// Told are the figures of the tenant's own report, where it has one; Load is then empty.
	Told program.Figures `json:"told,omitempty"`
	// Seconds is the length of the interval over which the figures below were read.
	Seconds   float64 `json:"seconds"`
	Tenant    Usage   `json:"tenant"`
	Neighbour *Usage  `json:"neighbour,omitempty"`
	// Servers are those of a cell that has some; Tenant then is their sum.
	Servers []Usage `json:"servers,omitempty"`
	// Waste is the CPU time that limits withheld from servers while CPUs were idle, in
	// seconds: in each bin the lesser of both.
	Waste float64   `json:"waste,omitempty"`
	Host  HostUsage `json:"host"`
	// LinkBytes went over the link that tenant and neighbour compete for, with their headers.
	LinkBytes *float64 `json:"linkBytes,omitempty"`
	// Guard is what the guard did, in a scenario that has one.
	Guard []Act `json:"guard,omitempty"`
	// Probes were taken before the round; most rounds have none.
	Probes []noise.ProbeReading `json:"probes,omitempty"`
	// Undrained is how many requests the tenant had not answered 2 s after the round.
	// The next round had a new tenant.
	Undrained int `json:"undrained,omitempty"`
	// Bins are the window in parts of 50 ms, Undisturbed what is left of its requests
	// without those that others disturbed. Absent in results of before there were any.
	Bins        []Bin        `json:"bins,omitempty"`
	Undisturbed *Undisturbed `json:"undisturbed,omitempty"`
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
	// Periods are those of its limit that it was active in; 0 also without a limit.
	Periods int64 `json:"periods,omitempty"`
	// What the CPUs' counters tell of it, where there are some that count by group; 0 else.
	// Misses are of the last-level cache, as the kernel's generic event knows them.
	Cycles       float64 `json:"cycles,omitempty"`
	Instructions float64 `json:"instructions,omitempty"`
	References   float64 `json:"cacheReferences,omitempty"`
	Misses       float64 `json:"cacheMisses,omitempty"`
	// Switches are context switches, of which Involuntary were not asked for; Migrations
	// are moves to another CPU. 0 also where the kernel does not show them, or nobody
	// asked.
	Switches    int64 `json:"switches,omitempty"`
	Involuntary int64 `json:"involuntarySwitches,omitempty"`
	Migrations  int64 `json:"migrations,omitempty"`
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
	// Answer is what to know and what to do, a sentence or two each.
	Answer []string `json:"answer"`
	// Floor is the tenant alone again over alone, at p99: by how much the same thing
	// measured twice differs here.
	Floor *stats.Interval `json:"floor,omitempty"`
	Rows  []Row           `json:"rows"`
	// Comparisons are all that the run makes: each scenario against alone, against no
	// isolation, and the strategies with each other.
	Comparisons []Comparison `json:"comparisons,omitempty"`
	// Undisturbed: the figures are of requests that nobody from outside disturbed;
	// those of all requests stand beside them.
	Undisturbed bool `json:"undisturbed,omitempty"`
	// Warnings are about the run as a whole: drift, steal, foreign load.
	Warnings []string `json:"warnings,omitempty"`
	// Reading is the result in words, a paragraph each.
	Reading []string `json:"reading"`
	// Recommended is the cheapest scenario as good as alone; else, of those that are
	// better than nothing, the best; or "".
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
	// Requests offered in valid rounds, how many of them are censored, and how many were
	// disturbed from outside.
	Requests  int `json:"requests"`
	Censored  int `json:"censored"`
	Disturbed int `json:"disturbed,omitempty"`
	// Quantiles of response time; a quantile the sample does not support has a Reason.
	Quantiles []Quantile `json:"quantiles,omitempty"`
	// Ratio to the tenant alone, at p99, in the typical block. Nil for the baseline itself.
	Ratio *stats.Interval `json:"ratio,omitempty"`
	// Verdict is against alone; Against, against no isolation.
	Verdict stats.Verdict `json:"verdict,omitempty"`
	Against stats.Verdict `json:"verdictUnisolated,omitempty"`
	// Why explains the verdict in one clause; MoreRounds is how many blocks more
	// would decide one that is inconclusive, 0 if unknown.
	Why        string `json:"why,omitempty"`
	MoreRounds int    `json:"moreRounds,omitempty"`
	// Saturated: in a fifth of the rounds or more responses arrived more slowly than
	// requests were due; latency grows with the length of the round and is a lower bound.
	Saturated bool `json:"saturated,omitempty"`
	// Bound: in a fifth of the rounds or more one request in 100 failed or was not answered.
	Bound bool `json:"lowerBound,omitempty"`
	// Failed: in a fifth of the rounds or more one request in 100 failed.
	Failed bool `json:"failed,omitempty"`
	// Limits are those of the spec, and how many rounds met them.
	Limits []Met `json:"slo,omitempty"`
	// WorkShare is the neighbour's work per second relative to unisolated (1 =
	// same), over the blocks that have both; nil where there is none.
	WorkShare *float64 `json:"workShare,omitempty"`
	// WorkKept is the same of the typical block, with its interval.
	WorkKept *stats.Interval `json:"workKept,omitempty"`
	// Work is the neighbour's work per second, in Unit.
	Work float64 `json:"work,omitempty"`
	Unit string  `json:"unit,omitempty"`
	// HostBusy is the share (0-1) of the host's CPU time in use.
	HostBusy float64 `json:"hostBusy"`
	// LinkUse is the share (0-1) of the link's rate that was sent, where they compete for one.
	LinkUse *float64 `json:"linkUse,omitempty"`
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
	// Estimate is that of all rounds' requests together; All includes those that were
	// disturbed, where Estimate does not.
	Estimate float64 `json:"estimate"`
	All      float64 `json:"all,omitempty"`
	// Typical is that of the typical round, with its interval; nil for p99.9.
	Typical *stats.Interval `json:"typical,omitempty"`
	// AtLeast: censored requests reach into this quantile; it is a lower bound.
	AtLeast bool `json:"atLeast,omitempty"`
	// AtMost says why it is an upper bound: the generator's own lag is a part of it, and not
	// a small one; "" where it is small.
	AtMost string `json:"atMost,omitempty"`
	// Reason says why it is not given ("needs 14 more rounds").
	Reason string `json:"reason,omitempty"`
}

// Comparison is one scenario compared with another.
type Comparison struct {
	Scenario string `json:"scenario"`
	// Against is what it is compared with; "baseline" stands for alone and alone again.
	Against string `json:"against"`
	// Blocks in which both count, and in how many the p99 was Higher and Lower.
	Blocks  int      `json:"blocks"`
	Higher  int      `json:"higher"`
	Lower   int      `json:"lower"`
	Figures []Figure `json:"figures"`
}

// Figure is one quantity of a comparison: "p50", "p95" and "p99" are compared by their
// ratio, "slow" is the difference in the share (0-1) of requests that take longer than
// the tenant's p99 alone, in the typical round.
type Figure struct {
	Quantity string `json:"quantity"`
	// Interval is of the typical block.
	stats.Interval
	// P is the p-value of no difference, corrected for all comparisons of the run.
	P       float64       `json:"p"`
	Verdict stats.Verdict `json:"verdict"`
	Why     string        `json:"why,omitempty"`
	// MoreBlocks would decide a verdict that is inconclusive, about; 0 if unknown.
	MoreBlocks int `json:"moreBlocks,omitempty"`
	// Sees is the smallest difference that this comparison finds with 80 % chance.
	Sees float64 `json:"sees,omitempty"`
	// Pooled is the same of all blocks' requests together. What is rare but bad shows
	// here, and not in the typical block.
	Pooled float64 `json:"pooled"`
	// All is the interval with the requests that were disturbed, where Interval is
	// without.
	All *stats.Interval `json:"all,omitempty"`
}

// Met is a limit and how many rounds met it.
type Met struct {
	Limit
	Met    int `json:"met"`
	Rounds int `json:"rounds"`
	// Low and High are the 95 % interval of the share of rounds that meet it.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Compared returns the comparison of two scenarios.
func (a *Analysis) Compared(scenario, against string) (Comparison, bool) {
	for _, c := range a.Comparisons {
		if c.Scenario == scenario && c.Against == against {
			return c, true
		}
	}
	return Comparison{}, false
}

// Figure returns a quantity of the comparison.
func (c Comparison) Figure(quantity string) (Figure, bool) {
	for _, f := range c.Figures {
		if f.Quantity == quantity {
			return f, true
		}
	}
	return Figure{}, false
}

// LowerBound reports whether the p99 of the typical round is only a lower bound.
func (r Row) LowerBound() bool { return r.Bound || r.Saturated }

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
