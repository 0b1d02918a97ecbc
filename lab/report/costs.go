package report

import (
	"fmt"
	"slices"
	"strconv"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// Costs is the table of what the judged cells took: their worst response times, CPU time, and
// what the scheduler did with whoever answered (who: "tenant"), and beside whom ("" for nobody).
func Costs(m *lab.Measured, j Judged, who, beside string) Block {
	heads := []string{j.Head, "p99.9", "worst", who + " CPUs"}
	if beside != "" {
		heads = append(heads, beside+" CPUs")
	}
	heads = append(heads, "switches/s", "unasked/s", "migrations/s", "run delay ms/s", "throttled ms/s", "IPC", "cache hits %")
	per := func(sum, seconds float64) string {
		if sum == 0 {
			return absent
		}
		return strconv.FormatFloat(sum/seconds, 'f', 0, 64)
	}
	ratio := func(format string, of, to float64) string {
		if to == 0 {
			return absent
		}
		return fmt.Sprintf(format, of/to)
	}
	var rows [][]string
	for _, c := range j.Cells {
		t := m.Total(c.Name)
		if t.Seconds == 0 {
			continue
		}
		u, responses := t.Tenant, lab.Responses(m.Valid(c.Name))
		row := []string{c.Name, Tail(responses, 99.9), Tail(responses, 100), fmt.Sprintf("%.2f", u.CPUSeconds/t.Seconds)}
		if beside != "" {
			row = append(row, fmt.Sprintf("%.2f", t.Neighbour.CPUSeconds/t.Seconds))
		}
		rows = append(rows, append(row,
			per(float64(u.Switches), t.Seconds), per(float64(u.Involuntary), t.Seconds), per(float64(u.Migrations), t.Seconds),
			per(1e3*u.WaitSeconds, t.Seconds), per(1e3*(u.ThrottledSeconds+t.Neighbour.ThrottledSeconds), t.Seconds),
			ratio("%.2f", u.Instructions, u.Cycles), ratio("%.0f", 100*(u.References-u.Misses), u.References)))
	}
	table := NewTable(heads, rows...)
	for i := range table.Columns {
		table.Columns[i].PageOnly = !slices.ContainsFunc(rows, func(row []string) bool { return row[i] != absent })
	}
	table.Legend = "p99.9 and worst are of all requests together, disturbed ones included, and a few bad moments decide them; switches, those that it did not ask for, and migrations are of the threads of the " + who + "; " +
		"run delay sums the time for which they were ready and waited. IPC (instructions per cycle) and cache hits are of the " + who + ", where the CPUs' counters count by group. " +
		"What nothing has is on the page alone: none of it, not shown by this kernel or machine, or too few requests."
	return Block{Heading: "What it took", Table: table}
}

// Tail is a percentile of all requests of rounds together, and 100 their worst; "–" where
// fewer than ten are beyond it.
func Tail(rounds []stats.Round, p float64) string {
	var all []stats.Distribution
	for _, r := range rounds {
		all = append(all, r.Seconds...)
	}
	merged := stats.Merge(all...)
	us, ok := merged.Quantile(p)
	if !ok || p < 100 && float64(merged.Requests())*(100-p) < 10*100 {
		return absent
	}
	return lab.Latency(us)
}

// Bill is what CPUs of one's own cost, as nobody else may use them.
type Bill struct {
	Reserved int     `json:"reserved"` // CPUs
	Of       int     `json:"of"`       // so many
	Used     float64 `json:"used"`     // CPUs, by those who have them
}

// Lost is the share (0-1) of the reserved CPUs that lies idle.
func (b Bill) Lost() float64 { return max(0, 1-b.Used/float64(max(1, b.Reserved))) }

// String is the bill in a clause.
func (b Bill) String() string {
	return fmt.Sprintf("%d of %d CPUs are reserved, and %.0f %% of that lies idle", b.Reserved, b.Of, 100*b.Lost())
}

// Facts are the bill, line by line; who has the CPUs.
func (b Bill) Facts(who string) []Fact {
	lost := float64(b.Reserved) * b.Lost()
	return []Fact{
		{Name: "CPUs reserved", Value: fmt.Sprintf("%d of %d", b.Reserved, b.Of)},
		{Name: "used by the " + who, Value: fmt.Sprintf("%.2f CPUs", b.Used)},
		{Name: "utilisation lost", Value: fmt.Sprintf("%.2f CPUs, %.0f %% of the shared CPUs", lost, 100*lost/float64(max(1, b.Of)))},
	}
}
