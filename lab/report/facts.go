package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// title is the report's heading.
func title(r *lab.Result) string {
	name := r.Experiment.Name
	if name == "" {
		name = "experiment"
	}
	return fmt.Sprintf("%s: %s beside %s", name, orUnknown(r.Experiment.Tenant.String()), orUnknown(neighbourName(r)))
}

// facts say what ran, on what, and how far the figures can be trusted.
func facts(s *Sheet, m *lab.Measured, a *lab.Analysis) {
	r := m.Result
	s.host(&r.Header)
	s.Fact("tenant", tenantLine(r))
	s.Fact("neighbour", neighbourLine(r))
	if rate := r.Experiment.LinkRate; rate > 0 {
		s.Fact("link", fmt.Sprintf("%s, a veth of the lab's own with HTB; the tenant's answers and what the neighbour sends share it", rate))
	}
	s.Fact("rounds", roundsLine(r))
	s.Fact("alone again", floorLine(a))
	s.Fact("generator", Generator(m))
}

// NewSheet is one of any experiment: what the header of its result says.
func NewSheet(title string, h *lab.Header) *Sheet {
	s := &Sheet{Title: title, When: h.Started, By: programLine(h.Program)}
	if !h.Complete {
		s.Warn("warning", "the run did not finish: what follows is about what was measured by then")
	}
	if n := len(h.Resumed); n > 0 {
		s.Warn("warning", fmt.Sprintf("the run was interrupted, and went on %s later", plain.Count(n, "time")))
	}
	if h.Setup.OtherLab != "" {
		s.Warn("warning", h.Setup.OtherLab)
	}
	s.host(h)
	return s
}

// host says what it ran on.
func (s *Sheet) host(h *lab.Header) {
	s.Fact("machine", machineLine(h.Host))
	s.Fact("kernel", kernelLine(h.Host))
	s.Fact("backend", orUnknown(h.Setup.Backend))
	if h.Setup.Awake {
		s.Fact("idle CPUs", "kept awake in all scenarios: nothing waits for one to wake up")
	}
}

// orUnknown is what was stored, or the word for nothing.
func orUnknown(s string) string { return cmp.Or(s, "unknown") }

// dotted joins the parts that say something.
func dotted(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), " · ")
}

func machineLine(h lab.Host) string {
	var parts []string
	if m := h.Machine; m != nil {
		parts = append(parts, m.Name, m.Model, shape(m))
	}
	switch h.Hypervisor {
	case "":
	case "virtual machine": // of an unknown kind
		parts = append(parts, h.Hypervisor)
	default:
		parts = append(parts, "under "+h.Hypervisor)
	}
	if h.MemoryBytes > 0 {
		parts = append(parts, plain.Bytes(h.MemoryBytes)+" memory")
	}
	return orUnknown(dotted(parts...))
}

// shape is "8 CPUs, 4 cores, 1 socket, 2 NUMA nodes, L3 32 MiB".
func shape(m *machine.Machine) string {
	parts := []string{plain.Count(len(m.CPUs), "CPU")}
	for _, d := range []struct {
		kind machine.Kind
		noun string
	}{{machine.Core, "core"}, {machine.Socket, "socket"}, {machine.Node, "NUMA node"}} {
		if n := len(m.ByKind(d.kind)); n > 0 {
			parts = append(parts, plain.Count(n, d.noun))
		}
	}
	if l3 := m.ByKind(machine.L3); len(l3) > 0 && l3[0].Bytes > 0 {
		text := "L3 " + plain.Bytes(l3[0].Bytes)
		if len(l3) > 1 {
			text = fmt.Sprintf("%d × %s", len(l3), text)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func kernelLine(h lab.Host) string {
	kernel := "unknown"
	if h.Kernel != "" {
		kernel = "Linux " + h.Kernel
	}
	named := func(name, value string) string {
		if value == "" {
			return ""
		}
		return name + " " + value
	}
	return dotted(kernel, named("clock", h.Clocksource), named("governor", h.Governor))
}

// neighbour is the neighbour as it ran, or as asked for if the run never got there.
func neighbour(r *lab.Result) noise.Config {
	if r.Setup.Neighbour.Kernel != "" {
		return r.Setup.Neighbour
	}
	return r.Experiment.Neighbour
}

// neighbourName is its kernel, or its command.
func neighbourName(r *lab.Result) string {
	n := neighbour(r)
	if len(n.Command) > 0 {
		return program.Text(n.Command)
	}
	return n.Kernel
}

func tenantLine(r *lab.Result) string {
	s := r.Setup
	parts := []string{orUnknown(r.Experiment.Tenant.String()), s.Server}
	if s.Rate > 0 {
		parts = append(parts, strconv.FormatFloat(s.Rate, 'g', 4, 64)+" requests/s due (open loop)")
	}
	if asks := r.Experiment.Tenant.Exec; asks != "" {
		parts = append(parts, "each a run of "+asks+", of which starting a process that does nothing takes "+span(time.Duration(s.ProcessStart)))
	}
	if s.TenantCPUs > 0 {
		want := "wants " + digits3(s.TenantCPUs) + " CPUs"
		if s.CPUPerRequest > 0 {
			want += ", " + span(time.Duration(s.CPUPerRequest)) + " per request"
		}
		parts = append(parts, want)
	}
	if n := r.Experiment.Tenant.WorkingSetBytes; n > 0 && r.Experiment.Tenant.Service == lab.Article {
		parts = append(parts, plain.Bytes(n)+" working set")
	}
	return dotted(parts...)
}

func neighbourLine(r *lab.Result) string {
	n := neighbour(r)
	if len(n.Command) > 0 {
		return neighbourName(r)
	}
	parts := []string{orUnknown(n.Kernel)}
	if n.Threads > 0 {
		parts = append(parts, plain.Count(n.Threads, "thread"))
	}
	if n.Intensity > 0 {
		parts = append(parts, fmt.Sprintf("%d %% intensity", n.Intensity))
	}
	if n.Bytes > 0 {
		parts = append(parts, plain.Bytes(n.Bytes)+" each")
	}
	if r.Setup.CPUs != "" {
		parts = append(parts, "shares CPUs "+r.Setup.CPUs+" with the tenant")
	}
	return dotted(parts...)
}

func roundsLine(r *lab.Result) string {
	e := r.Experiment
	line := fmt.Sprintf("%s × %s after %s to settle", plain.Count(e.Blocks, "block"), span(time.Duration(e.Window)), span(time.Duration(e.Settle)))
	parts := []string{line, fmt.Sprintf("seed %d", e.Seed)}
	if e.Preset != "" {
		parts = append([]string{e.Preset}, parts...)
	}
	if !r.Started.IsZero() {
		when := r.Started.UTC().Format("2006-01-02 15:04 UTC")
		if took := r.Finished.Sub(r.Started); !r.Finished.IsZero() && took > 0 {
			when += ", took " + span(took.Round(time.Second))
		}
		parts = append(parts, when)
	}
	return dotted(parts...)
}

func floorLine(a *lab.Analysis) string {
	if a.Floor == nil {
		return "not measured twice in the same blocks"
	}
	return fmt.Sprintf("p99 differs from itself by × %s: nothing was changed between the two", times(*a.Floor))
}

// Others says what others took of a run, and what the generator did. undisturbed: requests that
// others disturbed are left out.
func (s *Sheet) Others(m *lab.Measured, undisturbed bool) {
	var took, all float64
	for _, r := range m.Decoded {
		took += r.Host.Steal + r.Host.Foreign
		all += r.Seconds * float64(r.Host.SharedCPUs)
	}
	if all == 0 {
		return
	}
	text := fmt.Sprintf("processes outside of the run and the hypervisor took %.1f %% of the shared CPUs", 100*took/all)
	if undisturbed {
		text += "; requests that they disturbed are left out"
	}
	s.Fact("others", text)
	s.Fact("generator", Generator(m))
}

// Generator is what the load generator cost and how late it was, of any experiment: a part of
// every response time, and of the CPUs' time.
func Generator(m *lab.Measured) string {
	s := m.Setup
	where := "shares the tenant's CPUs"
	if s.GeneratorCPUs != "" {
		where = "on CPUs of its own: " + s.GeneratorCPUs
	}
	lags := map[string][]stats.Distribution{}
	var cells []string
	used, seconds, policy := 0.0, 0.0, s.GeneratorPolicy
	for _, d := range m.Decoded {
		used, seconds, policy = used+d.Load.CPUSeconds, seconds+d.Seconds, cmp.Or(policy, d.Load.Policy)
		if d.Excluded == "" {
			if lags[d.Scenario] == nil {
				cells = append(cells, d.Scenario)
			}
			lags[d.Scenario] = append(lags[d.Scenario], d.Lag.Seconds...)
		}
	}
	worst, lag, cost := 0.0, "", ""
	for _, cell := range cells {
		if us, _ := stats.Merge(lags[cell]...).Quantile(99); us > worst {
			worst, lag = us, fmt.Sprintf("own lag p99 at most %s (%s)", latency(us), shownName(cell))
		}
	}
	if used > 0 && seconds > 0 {
		cost = "used " + digits3(used/seconds) + " CPUs"
	}
	return dotted(orUnknown(policy), where, cost, lag)
}

// alarms are what a reader must know before any figure.
func alarms(r *lab.Result) []string {
	var out []string
	if s := interruption(r); s != "" {
		out = append(out, s)
	}
	return out
}

// interruption says what is missing of a run that did not finish; "" for one that did.
func interruption(r *lab.Result) string {
	if r.Complete {
		return ""
	}
	planned := r.Experiment.Blocks * (len(r.Experiment.Scenarios) - len(r.Skipped))
	return fmt.Sprintf("The run did not finish: %d of %s stored. What follows is about those alone.", len(r.Rounds), plain.Count(planned, "planned round"))
}
