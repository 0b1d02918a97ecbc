package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/guard/observe"
	"berth.dev/berth/watch"
)

func watchCommand() *cobra.Command {
	f := watchOptions{}
	cmd := &cobra.Command{
		Use:   "watch [GROUP | WORKLOAD]...",
		Short: "Show live how workloads and control groups fare",
		Long: `Show live how workloads and control groups fare: those named, or those that come
first by --sort. Groups that have others below them are shown if they are named.

  CPU      CPU time used, in CPUs, and its history
  STALL%   time in which some task waited for a CPU (pressure stall information)
  DELAY    time that threads waited for a CPU, per second (run delay)
  P99      99th percentile of waits for a CPU (with --probe)
  THROT%   enforcement periods in which the own quota ran out
  MEMORY   memory in use
  SWITCH   context switches per second
  IPC      instructions per cycle
  GHZ      mean clock rate of the CPUs that it may use
  CACHE    what lies in last-level caches
  MEMBW    bytes to and from memory per second
What this host does not tell is shown as –; the last five have a column only where
some group has them, and --signals says why not. These, DELAY and P99 are of the
groups that are named, or of the eight that used most CPU time at first. On a
terminal each table takes the place of the last, elsewhere one follows the other.

--record keeps what was read, -o json prints it: one sample a line. A recording
can be shown again by --replay and judged by berth diagnose --replay.

Exit status: 0, also when interrupted; 1 if the host or the recording cannot be
read, 2 for wrong usage.`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.observe.register(cmd, false)
	cmd.Flags().BoolVar(&f.once, "once", false, "show one interval; of a recording, the last")
	cmd.Flags().BoolVar(&f.signals, "signals", false, "list the signals: whether they are there, why not, what reading them costs")
	cmd.Flags().IntVarP(&f.top, "top", "n", 10, "show the first `number` of groups")
	cmd.Flags().StringVar(&f.sort, "sort", "cpu", "`key`: cpu, stall, delay, throttled or memory")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
	completeWords(cmd, "output", "text", "json")
	completeWords(cmd, "sort", sortKeys()...)
	return cmd
}

// watchOptions are the flags of berth watch.
type watchOptions struct {
	observe       observeFlags
	once, signals bool
	top           int
	sort, output  string
}

func (f *watchOptions) run(cmd *cobra.Command, args []string) (err error) {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	if !slices.Contains(sortKeys(), f.sort) {
		return exitStatus{exitUsage, fmt.Errorf("--sort %q: none of %s", f.sort, strings.Join(sortKeys(), ", "))}
	}
	if f.top < 1 {
		return exitStatus{exitUsage, fmt.Errorf("--top %d: at least 1", f.top)}
	}
	o, err := f.observe.open(cmd)
	if err != nil {
		return err
	}
	defer func() {
		if e := o.close(); err == nil {
			err = e
		}
	}()
	if f.signals {
		return f.showSignals(cmd, o)
	}
	var named []string
	for _, arg := range args {
		group, ok := groupName(&o.header, arg)
		if !ok {
			return fmt.Errorf("watch %s: no such control group or workload", arg)
		}
		named = append(named, group)
	}
	if err := o.focus(named[:min(len(named), observe.MaxFocus)]); err != nil {
		return err
	}
	return f.show(cmd, o, named)
}

// show prints tick by tick; of two for each interval that is shown, the first
// shows nothing.
func (f *watchOptions) show(cmd *cobra.Command, o *observation, named []string) error {
	out := cmd.OutOrStdout()
	table := newWatchTable(&o.header, named)
	clear := isTerminal(out) && !f.once
	n := 0
	for samples, err := range o.ticks {
		if err != nil {
			return err
		}
		n++
		if f.output == "json" {
			if err := watch.Write(out, samples); err != nil {
				return err
			}
			if f.once && n == 2 {
				return nil
			}
			continue
		}
		table.add(samples)
		if n == 2 && len(named) == 0 {
			if err := o.focus(table.busiest(observe.MaxFocus)); err != nil {
				return err
			}
		}
		if n < 2 || f.once && f.observe.replay != "" {
			continue
		}
		text := table.text(f.sort, f.top)
		if clear {
			text = "\x1b[H\x1b[J" + text // to the corner, and clear what follows
		}
		if _, err := fmt.Fprint(out, text); err != nil || f.once {
			return err
		}
		if clear && f.observe.replay != "" {
			wait(cmd.Context(), f.observe.interval)
		}
		if cmd.Context().Err() != nil {
			return nil
		}
	}
	if f.once && f.observe.replay != "" && f.output == "text" {
		_, err := fmt.Fprint(out, table.text(f.sort, f.top))
		return err
	}
	return nil
}

func (f *watchOptions) showSignals(cmd *cobra.Command, o *observation) error {
	if f.output == "json" {
		return writeJSON(cmd.OutOrStdout(), o.header.Signals)
	}
	rows := [][]string{{"SIGNAL", "OF", "THERE", "ONE READING", "NOTE"}}
	for _, s := range o.header.Signals {
		there, cost, note := "yes", "–", s.Note
		if s.CostSeconds > 0 {
			cost = time.Duration(s.CostSeconds * 1e9).Round(100 * time.Nanosecond).String()
		}
		if !s.Available {
			there, note = "no", s.Reason
			if s.Remedy != "" {
				note += "; " + s.Remedy
			}
		}
		rows = append(rows, []string{s.Name, s.Of, there, cost, dash(note)})
	}
	var b strings.Builder
	columns(&b, rows, 3)
	_, err := fmt.Fprint(cmd.OutOrStdout(), b.String())
	return err
}

func sortKeys() []string { return []string{"cpu", "stall", "delay", "throttled", "memory"} }

// watchTable is what is known of each group: the samples of the last tick and how
// they compare with the one before.
type watchTable struct {
	header *observe.Header
	named  []string // empty is all
	groups map[string]*watchRow
	host   watchRow
	now    watch.Time
}

// watchRow is one group. Values that are missing are NaN.
type watchRow struct {
	name                                    string
	cpu, stall, delay, p99, throttled, used float64
	switches, ipc, clock, cache, bandwidth  float64
	history                                 []float64
	last, before                            map[watch.Quantity]watch.Sample
}

const historyLength = 20

func newWatchTable(h *observe.Header, named []string) *watchTable {
	return &watchTable{header: h, named: named, groups: map[string]*watchRow{}}
}

// add takes in a tick.
func (t *watchTable) add(samples []watch.Sample) {
	if len(samples) == 0 {
		return
	}
	t.now = samples[0].Time
	t.host.next()
	for _, row := range t.groups {
		row.next()
	}
	for _, s := range samples {
		if row := t.row(s.Subject); row != nil && s.By == "" && s.Time == t.now {
			s.Value += row.last[s.Quantity].Value // of the caches before
			row.last[s.Quantity] = s
		}
	}
	for group, row := range t.groups {
		if len(row.last) == 0 && len(row.before) == 0 {
			delete(t.groups, group) // it is gone
			continue
		}
		row.update()
	}
	t.host.update()
}

// row returns the row of the whole of a subject, or of one of its caches, which
// are added up.
func (t *watchTable) row(s watch.Subject) *watchRow {
	if s.Part != (watch.Part{}) && s.Part.Kind != watch.Cache {
		return nil
	}
	switch s.Scope {
	case watch.Host:
		return &t.host
	case watch.Group:
		row := t.groups[s.Name]
		if row == nil {
			row = &watchRow{name: shownName(t.header, s.Name)}
			row.next()
			t.groups[s.Name] = row
		}
		return row
	}
	return nil
}

func (r *watchRow) next() {
	r.before, r.last = r.last, map[watch.Quantity]watch.Sample{}
}

// update compares the last tick with the one before.
func (r *watchRow) update() {
	r.cpu, r.stall, r.delay = r.rate(watch.CPUTime), r.rate(watch.CPUSome), r.rate(watch.CPUWait)
	r.throttled = r.rate(watch.CPUThrottledPeriods)
	if periods := r.rate(watch.CPUPeriods); periods != 0 {
		r.throttled /= periods
	}
	r.p99, r.used = r.gauge(watch.QueueP99), r.gauge(watch.Memory)
	r.switches, r.bandwidth = r.rate(watch.Switches), r.rate(watch.Bandwidth)
	r.ipc = r.rate(watch.Instructions) / r.rate(watch.Cycles)
	r.clock, r.cache = r.gauge(watch.Frequency), r.gauge(watch.LLCOccupancy)
	r.history = append(r.history, r.cpu)
	r.history = r.history[max(0, len(r.history)-historyLength):]
}

func (r *watchRow) rate(q watch.Quantity) float64 {
	now, ok1 := r.last[q]
	before, ok2 := r.before[q]
	if !ok1 || !ok2 || now.Time <= before.Time || now.Value < before.Value {
		return math.NaN()
	}
	return (now.Value - before.Value) / (now.Time - before.Time).Seconds()
}

func (r *watchRow) gauge(q watch.Quantity) float64 {
	if s, ok := r.last[q]; ok {
		return s.Value
	}
	return math.NaN()
}

// busiest returns the groups that use most CPU time, n at most.
func (t *watchTable) busiest(n int) []string {
	var groups []string
	for group, row := range t.groups {
		if row.cpu > 0 {
			groups = append(groups, group)
		}
	}
	slices.SortFunc(groups, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.groups[b].cpu, t.groups[a].cpu), strings.Compare(a, b))
	})
	return groups[:min(n, len(groups))]
}

// text is the host's line and the table.
func (t *watchTable) text(key string, top int) string {
	var rows []*watchRow
	idle := 0
	for group, row := range t.groups {
		switch {
		case len(t.named) > 0 && !slices.Contains(t.named, group): // nobody asked
		case len(t.named) == 0 && key != "memory" && !(row.cpu > 0):
			idle++
		default:
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *watchRow) int {
		return cmp.Or(cmp.Compare(b.key(key), a.key(key)), strings.Compare(a.name, b.name))
	})
	left := max(0, len(rows)-top)
	rows = rows[:len(rows)-left]
	var b strings.Builder
	fmt.Fprintf(&b, "%.1f s  host: %s CPUs used, CPU stall %s %%\n", t.now.Seconds(), number2(t.host.cpu), percentCell(t.host.stall))
	table := [][]string{{"GROUP", "CPU", "", "STALL%", "DELAY", "P99", "THROT%", "MEMORY"}}
	for _, r := range rows {
		table = append(table, []string{
			onLine(r.name), number2(r.cpu), spark(r.history), percentCell(r.stall), number2(r.delay), waitCell(r.p99), percentCell(r.throttled), memoryCell(r.used),
		})
	}
	right := []int{1, 3, 4, 5, 6, 7}
	for _, c := range hardwareColumns() {
		if slices.ContainsFunc(rows, func(r *watchRow) bool { return !math.IsNaN(c.value(r)) }) {
			right = append(right, len(table[0]))
			table[0] = append(table[0], c.title)
			for i, r := range rows {
				table[i+1] = append(table[i+1], c.cell(c.value(r)))
			}
		}
	}
	columns(&b, table, right...)
	if left+idle > 0 {
		fmt.Fprintf(&b, "not shown: %d, and %d that used no CPU time\n", left, idle)
	}
	return b.String()
}

// hardwareColumn is one that most hosts do not fill.
type hardwareColumn struct {
	title string
	value func(*watchRow) float64
	cell  func(float64) string
}

func hardwareColumns() []hardwareColumn {
	return []hardwareColumn{
		{"SWITCH", func(r *watchRow) float64 { return r.switches }, wholeCell},
		{"IPC", func(r *watchRow) float64 { return r.ipc }, number2},
		{"GHZ", func(r *watchRow) float64 { return r.clock / 1e9 }, number2},
		{"CACHE", func(r *watchRow) float64 { return r.cache }, memoryCell},
		{"MEMBW", func(r *watchRow) float64 { return r.bandwidth }, memoryCell},
	}
}

func (r *watchRow) key(key string) float64 {
	switch key {
	case "stall":
		return r.stall
	case "delay":
		return r.delay
	case "throttled":
		return r.throttled
	case "memory":
		return r.used
	}
	return r.cpu
}

// spark draws values from 0 to the highest of them; what is missing is a gap.
func spark(values []float64) string {
	highest := 0.0
	for _, v := range values {
		if v > highest {
			highest = v
		}
	}
	bars := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range values {
		switch {
		case math.IsNaN(v):
			b.WriteByte(' ')
		case highest == 0:
			b.WriteRune(bars[0])
		default:
			b.WriteRune(bars[int(v/highest*float64(len(bars)-1)+0.5)])
		}
	}
	return b.String()
}

func number2(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func wholeCell(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func percentCell(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return strconv.FormatFloat(100*v, 'f', 1, 64)
}

func waitCell(seconds float64) string {
	if math.IsNaN(seconds) {
		return "–"
	}
	d := time.Duration(seconds * 1e9)
	if d < time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

func memoryCell(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return size(int64(v))
}
