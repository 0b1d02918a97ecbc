package report

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// details are what a reader may want to look up.
func details(r *lab.Result, a *lab.Analysis, rounds []round) []Block {
	blocks := []Block{
		{Heading: "Kernel settings as read back", Table: knobTable(r, a)},
		{Heading: "The machine", Facts: machineFacts(r.Host)},
		{Heading: "The experiment", Facts: experimentFacts(r)},
		{Heading: "To run it again", Lines: "berth lab --experiment experiment.json"},
		{Text: "experiment.json is among the downloads: everything that was asked for, the seed included."},
	}
	if len(rounds) > 0 {
		blocks = append(blocks, Block{
			Heading: "Rounds", Table: roundTable(rounds), Fold: true,
			Text: "Every round in the order run. Its percentiles describe that round alone; those of a scenario come from its merged histograms and are never averages of these.",
		})
	}
	return blocks
}

// knobTable has a line per kernel setting and a column per scenario, as read
// back while the rounds ran. Values that differ between rounds are all shown.
func knobTable(r *lab.Result, a *lab.Analysis) *Table {
	values := map[[2]string][]string{} // knob, scenario
	var knobs []string
	for _, round := range r.Rounds {
		for _, k := range round.Knobs {
			at := [2]string{k.Of + " " + k.File, round.Scenario}
			if !slices.Contains(knobs, at[0]) {
				knobs = append(knobs, at[0])
			}
			if !slices.Contains(values[at], k.Value) {
				values[at] = append(values[at], k.Value)
			}
		}
	}
	if knobs == nil {
		return nil
	}
	t := &Table{Columns: []Column{{Head: "setting"}}}
	for _, knob := range knobs {
		t.Columns[0].Add(knob)
	}
	for _, row := range a.Rows {
		if row.Skipped != nil {
			continue
		}
		c := Column{Head: shownName(row.Scenario)}
		for _, knob := range knobs {
			c.Add(cmp.Or(strings.Join(values[[2]string{knob, row.Scenario}], " | "), absent))
		}
		t.Columns = append(t.Columns, c)
	}
	return t
}

func machineFacts(h lab.Host) []Fact {
	var facts []Fact
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, Fact{Name: name, Value: value})
		}
	}
	if m := h.Machine; m != nil {
		add("name", m.Name)
		add("processor", m.Model)
		add("online CPUs", m.Online.String())
		add("offline CPUs", m.Offline.String())
		add("isolated CPUs", m.Isolated.String())
		for _, k := range []struct {
			kind machine.Kind
			name string
		}{{machine.Socket, "sockets"}, {machine.Die, "dies"}, {machine.Node, "NUMA nodes"}, {machine.L3, "L3s"}, {machine.L2, "L2s"}, {machine.Core, "cores"}} {
			add(k.name, domainsText(m, k.kind))
		}
	}
	add("kernel", h.Kernel)
	add("clock source", h.Clocksource)
	add("hypervisor", h.Hypervisor)
	add("governor", h.Governor)
	if h.MemoryBytes > 0 {
		add("memory", plain.Bytes(h.MemoryBytes))
	}
	return facts
}

// domainsText is "0: CPUs 0-7, 32 MiB; 1: ...", at most 16 of them.
func domainsText(m *machine.Machine, kind machine.Kind) string {
	const shown = 16
	var parts []string
	for _, d := range m.ByKind(kind) {
		text := fmt.Sprintf("%d: CPUs %s", d.ID, cmp.Or(d.CPUs.String(), absent))
		if d.Bytes > 0 {
			text += ", " + plain.Bytes(d.Bytes)
		}
		parts = append(parts, text)
	}
	if more := len(parts) - shown; more > 0 {
		parts = append(parts[:shown], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

func experimentFacts(r *lab.Result) []Fact {
	facts := []Fact{
		{Name: "experiment", Value: cmp.Or(dotted(r.Experiment.Name, r.Experiment.Preset), absent)},
		{Name: "backend", Value: dotted(orUnknown(r.Setup.Backend), r.Setup.BackendNote)},
		{Name: "units of work per request", Value: strconv.Itoa(r.Setup.Tenant.Units)},
	}
	for _, at := range []struct {
		name string
		time time.Time
	}{{"started", r.Started}, {"finished", r.Finished}} {
		if !at.time.IsZero() {
			facts = append(facts, Fact{Name: at.name, Value: at.time.UTC().Format(time.RFC3339)})
		}
	}
	return facts
}

func programLine(p lab.Program) string {
	return dotted(strings.TrimSpace("berth "+p.Version), p.Commit, p.Go)
}

// round is one round as it is shown.
type round struct {
	lab.Decoded
	// Merged over the round, in microseconds by quantile (see roundQuantiles);
	// nil where nothing was recorded.
	response, service, queue, lag []float64
}

// roundQuantiles are the percentiles given per round.
var roundQuantiles = []float64{50, 90, 95, 99, 99.9, 100}

// roundsOf are the rounds of a result in the order run.
func roundsOf(m *lab.Measured) []round {
	var rounds []round
	for _, d := range m.Decoded {
		rounds = append(rounds, round{d, quantilesOf(d.Response), quantilesOf(d.Service), quantilesOf(d.Queue), quantilesOf(d.Lag)})
	}
	slices.SortStableFunc(rounds, func(a, b round) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Block, b.Block), cmp.Compare(a.Position, b.Position))
	})
	return rounds
}

func quantilesOf(r stats.Round) []float64 {
	all := stats.Merge(r.Seconds...)
	if all.Requests() == 0 {
		return nil
	}
	out := make([]float64, len(roundQuantiles))
	for i, p := range roundQuantiles {
		out[i], _ = all.Quantile(p)
	}
	return out
}

// at is one of a round's quantiles as text.
func at(quantiles []float64, p float64) string {
	if quantiles == nil {
		return absent
	}
	return latency(quantiles[slices.Index(roundQuantiles, p)])
}

// roundTable is every round as it was measured.
func roundTable(rounds []round) *Table {
	heads := []string{
		"block.position", "scenario", "offered", "done", "failed", "unfinished", "p50", "p95", "p99", "max", "lag p99",
		"CPUs, tenant", "CPUs, neighbour", "neighbour's work /s", "host CPU %", "steal %", "foreign %", "does not count",
	}
	var rows [][]string
	for _, r := range rounds {
		perSecond := func(v float64) string {
			if r.Seconds <= 0 {
				return absent
			}
			return digits3(v / r.Seconds)
		}
		host := func(v float64, cpus int) string {
			if r.Seconds <= 0 || cpus == 0 {
				return absent
			}
			return percent(v / r.Seconds / float64(cpus))
		}
		neighbourCPUs, work := absent, absent
		if n := r.Neighbour; n != nil {
			neighbourCPUs, work = perSecond(n.CPUSeconds), strings.TrimSpace(perSecond(n.Work)+" "+n.Unit)
		}
		rows = append(rows, []string{
			fmt.Sprintf("%d.%d", r.Block+1, r.Position+1), shownName(r.Scenario),
			strconv.Itoa(r.Load.Offered), strconv.Itoa(r.Load.Done), strconv.Itoa(r.Load.Failed), strconv.Itoa(r.Load.Unfinished),
			at(r.response, 50), at(r.response, 95), at(r.response, 99), at(r.response, 100), at(r.lag, 99),
			perSecond(r.Tenant.CPUSeconds), neighbourCPUs, work,
			host(r.Host.Busy, r.Host.CPUs), host(r.Host.Steal, r.Host.SharedCPUs), host(r.Host.Foreign, r.Host.SharedCPUs), r.Excluded,
		})
	}
	return NewTable(heads, rows...)
}

// RoundsFile is the name of the file with one line per round and percentile.
const RoundsFile = "rounds.csv"

// files are what a report has within itself.
func files(m *lab.Measured, a *lab.Analysis, rounds func() []round) []File {
	out := []File{
		resultFile(m),
		{"experiment.json", "what was asked for, to run it again", "application/json", func(w io.Writer) error { return JSON(w, m.Experiment) }},
		{RoundsFile, "one line per round and percentile", "text/csv", func(w io.Writer) error { return writeRounds(w, rounds()) }},
	}
	for i, row := range a.Rows {
		out = append(out, File{
			fmt.Sprintf("%d-%s.hgrm", i+1, fileName(row.Scenario)),
			"response time of " + shownName(row.Scenario) + " in ms, all valid rounds merged, for HdrHistogram's plotter", "text/plain",
			func(w io.Writer) error {
				var seconds []stats.Distribution
				for _, r := range lab.Responses(m.Valid(row.Scenario)) {
					seconds = append(seconds, r.Seconds...)
				}
				h := stats.Merge(seconds...).Histogram()
				if h.TotalCount() == 0 {
					return nil // no file
				}
				_, err := h.PercentilesPrint(w, 5, 1000)
				return err
			},
		})
	}
	return out
}

// resultFile is the result itself.
func resultFile(m *lab.Measured) File {
	return File{"result.json", "everything that was measured, every second's histograms included; berth lab report and compare read it", "application/json",
		func(w io.Writer) error { return json.NewEncoder(w).Encode(m.Result) }}
}

// writeRounds writes one line per round and percentile: response time and its parts in
// microseconds, with the round's counts beside them.
func writeRounds(w io.Writer, rounds []round) error {
	lines := [][]string{{
		"block", "position", "scenario", "started", "excluded", "percentile", "response_us", "service_us", "queue_us", "lag_us",
		"offered", "done", "failed", "unfinished", "seconds", "tenant_cpu_s", "neighbour_cpu_s", "neighbour_work", "neighbour_work_unit",
		"tenant_wait_s", "tenant_throttled_s", "neighbour_throttled_s", "host_busy_cpu_s", "host_steal_cpu_s", "host_foreign_cpu_s",
	}}
	float := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	us := func(quantiles []float64, i int) string {
		if quantiles == nil {
			return ""
		}
		return float(quantiles[i])
	}
	for _, r := range rounds {
		neighbour := make([]string, 4)
		if n := r.Neighbour; n != nil {
			neighbour = []string{float(n.CPUSeconds), float(n.Work), n.Unit, float(n.ThrottledSeconds)}
		}
		for i, p := range roundQuantiles {
			lines = append(lines, []string{
				strconv.Itoa(r.Block), strconv.Itoa(r.Position), r.Scenario, r.Started.UTC().Format(time.RFC3339Nano), r.Excluded, float(p),
				us(r.response, i), us(r.service, i), us(r.queue, i), us(r.lag, i),
				strconv.Itoa(r.Load.Offered), strconv.Itoa(r.Load.Done), strconv.Itoa(r.Load.Failed), strconv.Itoa(r.Load.Unfinished),
				float(r.Seconds), float(r.Tenant.CPUSeconds), neighbour[0], neighbour[1], neighbour[2],
				float(r.Tenant.WaitSeconds), float(r.Tenant.ThrottledSeconds), neighbour[3], float(r.Host.Busy), float(r.Host.Steal), float(r.Host.Foreign),
			})
		}
	}
	return csv.NewWriter(w).WriteAll(lines)
}

// fileName keeps letters, digits and dashes of a scenario's name; the prime of
// the second baseline becomes a word.
func fileName(scenario string) string {
	if scenario == lab.BaselineAgain {
		return "baseline-again"
	}
	return strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
			return c
		}
		return '-'
	}, scenario)
}
