package guarded

import (
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/lab"
)

// Schema names the version of the result file's format.
const Schema = "berth.dev/lab-guard/v1"

// Result is everything that was measured, as stored in result.json. Skipped are
// faults that this host cannot have.
type Result struct {
	lab.Header
	Experiment Spec    `json:"experiment"`
	Runs       []Trial `json:"runs,omitempty"`
	// Guarded is what the guard found and did in the rounds of scenario "guarded", by
	// the time since the load began.
	Guarded []Trial `json:"guarded,omitempty"`
	// Steady is the comparison in steady state as a result of its own; nil if none
	// was asked for.
	Steady *lab.Result `json:"steady,omitempty"`
}

// ReportSchema names the version of the Report's format.
const ReportSchema = "berth.dev/lab-guard-report/v1"

// Report is a result and what it comes to.
type Report struct {
	Schema   string    `json:"schema"` // "berth.dev/lab-guard-report/v1"
	Result   *Result   `json:"result"`
	Analysis *Analysis `json:"analysis"`
}

// NewReport returns the report of a result.
func NewReport(r *Result, a *Analysis) *Report { return &Report{ReportSchema, r, a} }

// binLength is the length of a Bin: ten of them have the 368 requests that an
// interval of p99 needs (docs/statistics.md) at 1,000 requests a second.
const binLength = 50 * time.Millisecond

// Trial is one fault injected. Times are in seconds from its onset, negative before.
type Trial struct {
	Fault   string    `json:"fault"`
	Number  int       `json:"number"` // from 1, of the same fault
	Started time.Time `json:"started"`
	// Invalid says why the run does not count; "" for one that does.
	Invalid string `json:"invalid,omitempty"`
	// From is when the load began, Onset that instant after it in seconds, End when
	// the fault was over.
	From float64 `json:"from"`
	End  float64 `json:"end"`
	// Bins are the requests by when they were due, each of 50 ms, from the start of
	// the measured window at BinsFrom.
	BinsFrom float64 `json:"binsFrom"`
	Bins     []Bin   `json:"bins,omitempty"`
	// Findings are those about the tenant, in each window that had any.
	Findings []Finding `json:"findings,omitempty"`
	Events   []Event   `json:"events,omitempty"`
	// Windows is how many slow windows the guard judged, Late how many came too late,
	// ProbeArmed for how many seconds the probe was armed, ProbeCost its CPU time per
	// second in CPUs meanwhile, ProbeReason why it had no probe, Errors what went wrong
	// without ending the run.
	Windows     int      `json:"windows"`
	Late        int      `json:"late,omitempty"`
	ProbeArmed  float64  `json:"probeArmed,omitempty"`
	ProbeCost   float64  `json:"probeCost,omitempty"`
	ProbeReason string   `json:"probeReason,omitempty"`
	Errors      []string `json:"errors,omitempty"`
	// Changed are settings that were not as before when the guard had let go.
	Changed []string `json:"changed,omitempty"`
	// TenantCPUs and NeighbourCPUs are what they used per second of the fault, and
	// the share (0-1) of the shared CPUs that went to others, hypervisor included,
	// over the window.
	TenantCPUs    float64 `json:"tenantCPUs"`
	NeighbourCPUs float64 `json:"neighbourCPUs"`
	Others        float64 `json:"others"`
	// LagP99 is the generator's own, in microseconds; GeneratorCPUs what it used. Results of
	// before that was kept have 0.
	LagP99        float64 `json:"lagP99"`
	GeneratorCPUs float64 `json:"generatorCPUs,omitempty"`
}

// Bin is what was due in 50 ms.
type Bin struct {
	// Response is the time from due to done of each request in microseconds, the
	// shortest first. Requests that failed or were not answered are in it with the
	// time that they had waited, and counted in Censored.
	Response []int64 `json:"response,omitempty"`
	Censored int     `json:"censored,omitempty"`
}

// bin sorts requests by when they were due.
func (run *Trial) bin(requests []lab.Request, window time.Duration) {
	var lags []int64
	for _, q := range requests {
		n := int(q.Due / binLength)
		for len(run.Bins) <= n {
			run.Bins = append(run.Bins, Bin{})
		}
		done, seen := q.Done, q.Seen
		if done < 0 {
			done = max(window, q.Due)
		}
		if seen < 0 {
			seen = done
		}
		if q.Done < 0 || q.Failed {
			run.Bins[n].Censored++
		}
		run.Bins[n].Response = append(run.Bins[n].Response, (done - q.Due).Microseconds())
		lags = append(lags, (seen - q.Due).Microseconds())
	}
	for _, bin := range run.Bins {
		slices.Sort(bin.Response)
	}
	run.LagP99 = p99(lags)
}

// different names the settings that are not the same.
func different(a, b []lab.Knob) []string {
	was := map[[2]string]string{}
	for _, k := range a {
		was[[2]string{k.Of, k.File}] = k.Value
	}
	var all []string
	for _, k := range b {
		if old := was[[2]string{k.Of, k.File}]; old != k.Value {
			all = append(all, fmt.Sprintf("%s %s: %s, was %s", k.Of, k.File, k.Value, old))
		}
	}
	return all
}

// Finding is what one window of the guard said about the tenant. Suspect is one of
// the groups of the run (lab.Neighbour), "" for no group, or the path of another.
type Finding struct {
	At         float64         `json:"at"`
	Resource   detect.Resource `json:"resource"`
	Suspect    string          `json:"suspect,omitempty"`
	Confidence float64         `json:"confidence"`
}

// Event is a step of the guard's loop.
type Event struct {
	At float64 `json:"at"`
	// Written is when its settings were in force: the guard tells of it after its writes. 0 in
	// results of before that was noted.
	Written float64 `json:"written,omitempty"`
	control.Event
	Words string `json:"words"`
}

// ReadFile reads a stored result; a folder stands for the file in it.
func ReadFile(path string) (*Result, error) {
	var r Result
	return &r, lab.Load(path, Schema, &r)
}
